"""What every adapter needs: which paths are URLs, and local files that stand for them for one call."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

from remoteio import _counters, _lookup, _probe, _settings, _stores, _transfer
from remoteio._settings import Settings
from remoteio._staging import staged_local
from remoteio._staging_remote import short_name
from remoteio._stores import Location
from remoteio._urls import Url, basename

__all__ = ["Outgoing", "incoming", "outgoing", "target", "written"]


def target(path: Any) -> tuple[Any, Url | None]:
    """What a path means here: a local path and None, or anything and the URL.

    Args:
        path: As a caller gave it; what is no path (an open file) is given back as it is.
    """
    url = _stores.parse(path, _settings.current())
    if url is None:
        return path, None
    if url.is_local:
        return os.fsencode(url.local_path) if url.as_bytes else url.local_path, None
    return path, url


@contextlib.contextmanager
def incoming(url: Url, settings: Settings, function: str) -> Iterator[str]:
    """The local path of what is at a URL, shared by all who read it on this node.

    Args:
        url: The file.
        settings: The options in force.
        function: Whose counts it belongs to.

    Raises:
        FileNotFoundError: There is nothing.
        IsADirectoryError: It is a directory.
        OSError: It could not be fetched.
    """
    location = _lookup.locate(url, settings)
    with staged_local(url.text, "r", progress=False) as path:
        if os.path.isdir(path):
            raise location.error(errno.EISDIR)
        _counters.count(function, url.scheme, bytes_read=os.path.getsize(path))
        yield path


class Outgoing:
    """A new local file that becomes the object at a URL, when it is sent.

    Attributes:
        path: Where it is to be written; it has the object's own name.
    """

    def __init__(self, url: Url, settings: Settings, function: str) -> None:
        """Make room for it.

        Args:
            url: The file.
            settings: The options in force.
            function: Whose counts it belongs to.

        Raises:
            IsADirectoryError: There is a directory at the URL.
            FileNotFoundError: The bucket is missing.
            OSError: The store could not be asked.
        """
        self._location: Location = _lookup.locate(url, settings)
        self._function = function
        _probe.before_writing(self._location, "w")
        self._folder = tempfile.mkdtemp(prefix="remoteio-")
        self.path = os.path.join(self._folder, short_name(basename(self._location.key)))

    def send(self) -> None:
        """Publish it, whole or not at all, and remove it.

        Raises:
            OSError: Nothing was published.
        """
        try:
            _transfer.upload([(self.path, self._location)], progress=False)
            _counters.count(self._function, self._location.url.scheme, bytes_written=os.path.getsize(self.path))
        finally:
            self.remove()

    def remove(self) -> None:
        """Remove it; more than once is fine."""
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def outgoing(url: Url, settings: Settings, function: str) -> Iterator[str]:
    """The path of a new local file that is published when the block ends, unless it ends by an exception.

    Args:
        url: The file.
        settings: The options in force.
        function: Whose counts it belongs to.

    Raises:
        OSError: Nothing can be, or was, published.
    """
    file = Outgoing(url, settings, function)
    try:
        yield file.path
    except BaseException:
        file.remove()
        raise
    file.send()


@contextlib.contextmanager
def written(path: Any, function: str) -> Iterator[Any]:
    """The local path to write to for a path or URL; what was written for a URL is published when the block ends well.

    Args:
        path: As a caller gave it.
        function: Whose counts it belongs to.

    Raises:
        OSError: Nothing can be, or was, published.
    """
    local, url = target(path)
    if url is None:
        yield local
        return
    _counters.count(function, url.scheme, calls=1)
    with outgoing(url, _settings.current(), function) as staged:
        yield staged

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

__all__ = ["Outgoing", "incoming", "outgoing", "raised_also_as", "target", "written"]


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


def _of_both(kind: type[OSError], local: type[Exception]) -> type[OSError]:
    def reduce(self: OSError) -> Any:
        return (kind, *OSError.__reduce__(self)[1:])

    return type(kind.__name__, (kind, local), {"__module__": kind.__module__, "__reduce__": reduce})


@contextlib.contextmanager
def raised_also_as(local: type[Exception] | None) -> Iterator[None]:
    """Raise what a store says as the class too that the library raises for a file on a disk.

    Args:
        local: Such as the ``RuntimeError`` of torch's C++ code; None where the library raises an
            ``OSError`` itself.
    """
    try:
        yield
    except OSError as error:
        if local is None or isinstance(error, local):
            raise
        told = _of_both(type(error), local)(*OSError.__reduce__(error)[1])
        told.__dict__.update(error.__dict__)
        raise told.with_traceback(error.__traceback__) from error.__cause__


@contextlib.contextmanager
def incoming(url: Url, settings: Settings, function: str, local: type[Exception] | None = None) -> Iterator[str]:
    """The local path of what is at a URL, shared by all who read it on this node.

    Args:
        url: The file.
        settings: The options in force.
        function: Whose counts it belongs to.
        local: See `raised_also_as`.

    Raises:
        FileNotFoundError: There is nothing.
        IsADirectoryError: It is a directory.
        OSError: It could not be fetched.
    """
    with contextlib.ExitStack() as stack:
        with raised_also_as(local):
            location = _lookup.locate(url, settings)
            path = stack.enter_context(staged_local(url.text, "r", progress=False))
            if os.path.isdir(path):
                raise location.error(errno.EISDIR)
        _counters.count(function, url.scheme, bytes_read=os.path.getsize(path))
        yield path


class Outgoing:
    """A new local file that becomes the object at a URL, when it is sent.

    Attributes:
        path: Where it is to be written; it has the object's own name.
    """

    def __init__(self, url: Url, settings: Settings, function: str, local: type[Exception] | None = None) -> None:
        """Make room for it.

        Args:
            url: The file.
            settings: The options in force.
            function: Whose counts it belongs to.
            local: See `raised_also_as`.

        Raises:
            IsADirectoryError: There is a directory at the URL.
            FileNotFoundError: The bucket is missing.
            OSError: The store could not be asked.
        """
        self._function = function
        self._local = local
        with raised_also_as(local):
            self._location: Location = _lookup.locate(url, settings)
            _probe.before_writing(self._location, "w")
        self._folder = tempfile.mkdtemp(prefix="remoteio-")
        self.path = os.path.join(self._folder, short_name(basename(self._location.key)))

    def send(self) -> None:
        """Publish it, whole or not at all, and remove it.

        Raises:
            OSError: Nothing was published.
        """
        try:
            with raised_also_as(self._local):
                _transfer.upload([(self.path, self._location)], progress=False)
            _counters.count(self._function, self._location.url.scheme, bytes_written=os.path.getsize(self.path))
        finally:
            self.remove()

    def remove(self) -> None:
        """Remove it; more than once is fine."""
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def outgoing(url: Url, settings: Settings, function: str, local: type[Exception] | None = None) -> Iterator[str]:
    """The path of a new local file that is published when the block ends, unless it ends by an exception.

    Args:
        url: The file.
        settings: The options in force.
        function: Whose counts it belongs to.
        local: See `raised_also_as`.

    Raises:
        OSError: Nothing can be, or was, published.
    """
    file = Outgoing(url, settings, function, local)
    try:
        yield file.path
    except BaseException:
        file.remove()
        raise
    file.send()


@contextlib.contextmanager
def written(path: Any, function: str, local: type[Exception] | None = None) -> Iterator[Any]:
    """The local path to write to for a path or URL; what was written for a URL is published when the block ends well.

    Args:
        path: As a caller gave it.
        function: Whose counts it belongs to.
        local: See `raised_also_as`.

    Raises:
        OSError: Nothing can be, or was, published.
    """
    given, url = target(path)
    if url is None:
        yield given
        return
    _counters.count(function, url.scheme, calls=1)
    with outgoing(url, _settings.current(), function, local) as staged:
        yield staged

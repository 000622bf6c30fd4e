"""Questions about a tree of files on a store, and changes to it: the nine path functions but ``open`` and ``glob``.

Each answers for a URL as its original answers for a local path: same results, same
exception classes, with ``errno`` and the URL in ``filename``. Nothing is cached.

Source: the documentation of ``os``, ``os.path`` and ``shutil``, and a local Linux file system.
"""

from __future__ import annotations

import errno
import operator
from dataclasses import replace

from remoteio import _lookup, _vanished
from remoteio._copy import copy
from remoteio._rmtree import rmtree
from remoteio._settings import Settings
from remoteio._stores import Location, resolve
from remoteio._urls import Url

__all__ = ["copy", "exists", "getsize", "isdir", "listdir", "makedirs", "remove", "rmtree"]

# A key may hold empty and dotted segments ("a//b", "a/./b"); as names they would lead a program in a circle.
NO_NAMES = frozenset({"", ".", ".."})

STREAM_BLOCK = 2**20


def exists(path: Url, *, settings: Settings) -> bool:
    """Whether there is a file or a directory at a URL.

    Raises:
        OSError: The store could not be asked; False is said only when the store said so.
    """
    location = _lookup.find(path, settings)
    return location is not None and _lookup.is_there(location)


def isdir(s: Url, *, settings: Settings) -> bool:
    """Whether there is a directory at a URL: a prefix, a marker, a made directory, a bucket.

    Raises:
        OSError: The store could not be asked.
    """
    location = _lookup.find(s, settings)
    return location is not None and location.store.is_prefix(location.key)


def getsize(filename: Url, *, settings: Settings) -> int:
    """The size of a file in bytes; 0 for a directory.

    Raises:
        FileNotFoundError: There is nothing.
        NotADirectoryError: A file is used as a directory.
    """
    location = _lookup.locate(filename, settings)
    found = _lookup.entry(location)
    if found.is_dir:
        return 0
    return streamed_size(location) if found.size is None else found.size


def streamed_size(location: Location) -> int:
    """The size of what does not tell it: every byte has to pass."""
    total = 0
    with location.store.stream(location.key) as reader:
        while block := reader.read(STREAM_BLOCK):
            total += len(block)
    return total


def listdir(path: Url, *, settings: Settings) -> list[str] | list[bytes]:
    """The bare names in a directory, each once, in the store's order; bytes where the URL was bytes.

    Raises:
        FileNotFoundError: There is nothing.
        NotADirectoryError: It is a file.
    """
    location = _lookup.locate(path, settings)
    names = dict.fromkeys(info.key.rpartition("/")[2] for info in location.store.scan(location.key))
    for odd in NO_NAMES:
        names.pop(odd, None)
    if not names:  # an empty directory, a file, or nothing: only here it is worth a request to know
        _lookup.entry(replace(location, wants_directory=True))
    return [path.answer(name) for name in names]  # type: ignore[return-value]  # all of one kind


def makedirs(name: Url, mode: int = 0o777, exist_ok: bool = False, *, settings: Settings) -> None:
    """Make a directory and those above it. A bucket is never created.

    On stores where a directory is a prefix nothing is written, unless the scope asks for
    markers: the directory is known to this process.

    Args:
        name: The directory.
        mode: Of no meaning on a store.
        exist_ok: Whether it may exist already.
        settings: Those of the scope.

    Raises:
        FileExistsError: It exists (and not ``exist_ok``), or a file has this name.
        NotADirectoryError: A file is in the way.
        FileNotFoundError: The bucket is missing.
    """
    operator.index(mode)  # what is no number is refused before anything is made
    location = resolve(name, settings)
    if location.store.is_prefix(location.key):
        if not exist_ok:
            raise location.error(errno.EEXIST)
        location.store.note_directory(location.key)
        return
    if location.is_root:
        raise location.error(errno.ENOENT, "buckets are never created")
    _refuse_file_in_the_way(location)
    location.store.make_directory(location.key, marker=settings.directory_markers)


def _refuse_file_in_the_way(location: Location) -> None:
    """Raise for a file of the directory's own name (about which is known that it is no prefix) or above it."""
    # A location one step further down has the directory itself among its ancestors.
    below = location.child("-")
    blocking = _lookup.file_above(below)
    if blocking is None:
        return
    steps = location.key.count("/") - blocking.count("/")
    if not steps:
        spelled_as_inside = location.wants_directory and not location.url.rest.endswith("/")
        raise location.error(errno.ENOTDIR if spelled_as_inside else errno.EEXIST)
    # As os.makedirs does, blame the first directory that could not be made.
    blamed = location.url.rest
    if steps > 1 or blamed.endswith("/."):
        blamed = blamed.rstrip("/").removesuffix("/.").rstrip("/").rsplit("/", steps - 1)[0]
    raise replace(location, url=replace(location.url, rest=blamed)).error(errno.ENOTDIR)


def remove(path: Url, *, dir_fd: int | None = None, settings: Settings) -> None:
    """Delete one file, exactly the named one.

    Raises:
        FileNotFoundError: There is nothing.
        IsADirectoryError: It is a directory.
        NotImplementedError: ``dir_fd`` was given.
    """
    _lookup.refuse_dir_fd(dir_fd, path)
    location = _lookup.locate(path, settings)
    _lookup.file(location)
    location.store.delete(location.key)
    _vanished.note_removal(location)

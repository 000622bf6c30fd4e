"""Making and removing single directories and empty files: ``os.mkdir``, ``os.rmdir``, ``Path.touch``, ``os.open``."""

from __future__ import annotations

import errno
import os
import pathlib
import tempfile
from typing import BinaryIO, cast

from remoteio import _files, _lookup, _transfer, _vanished
from remoteio._settings import Settings
from remoteio._stores import Location, resolve
from remoteio._tree import remove
from remoteio._urls import Url

__all__ = ["mkdir", "os_open", "rmdir", "touch", "unlink"]

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

unlink = remove


def mkdir(path: Url, mode: int = 0o777, *, dir_fd: int | None = None, settings: Settings) -> None:
    """Make one directory. A bucket is never created.

    Nothing is written, unless the scope asks for markers: the directory is known to this
    process, as after ``makedirs``.

    Raises:
        FileExistsError: There is something of this name.
        FileNotFoundError: The directory it is to lie in is missing.
        NotADirectoryError: That is a file.
    """
    _lookup.refuse_dir_fd(dir_fd, path)
    location = resolve(path, settings)
    store, key = location.store, location.key
    if store.is_prefix(key):
        raise location.error(errno.EEXIST)
    if location.is_root:
        raise location.error(errno.ENOENT, "buckets are never created")
    if store.head(key) is not None:
        raise location.error(errno.EEXIST)
    _require_parent(location)
    store.make_directory(key, marker=settings.directory_markers)


def _require_parent(location: Location) -> None:
    parent = location.key.rpartition("/")[0]
    try:
        if location.store.is_prefix(parent) or _vanished.has_vanished(location, parent):
            return
    except PermissionError:  # who may write need not be allowed to list
        return
    raise _lookup.missing(location)


def rmdir(path: Url, *, dir_fd: int | None = None, settings: Settings) -> None:
    """Remove an empty directory, its marker too. A bucket is never removed.

    A directory that has gone with the last file that this process removed from it counts
    as removed by this.

    Raises:
        FileNotFoundError: There is nothing.
        NotADirectoryError: It is a file.
        OSError: ENOTEMPTY where something lies in it.
        PermissionError: It is a bucket or the root of a store.
    """
    _lookup.refuse_dir_fd(dir_fd, path)
    location = _lookup.locate(path, settings)
    try:
        if not _lookup.entry(location).is_dir:
            raise location.error(errno.ENOTDIR)
    except FileNotFoundError:
        if not _vanished.has_vanished(location):
            raise
    if location.is_root:
        raise location.error(errno.EPERM, "buckets are never removed")
    own = f"{location.key}/"
    for info in location.store.walk(location.key):
        if info.key != own:
            raise location.error(errno.ENOTEMPTY)
        for _, error in location.store.delete_many([own]):
            raise error
    location.store.forget_directories(location.key)
    _vanished.forget(location)
    _vanished.note_removal(location)


def touch(self: Url, mode: int = 0o666, exist_ok: bool = True, *, settings: Settings) -> None:
    """``Path.touch``: make an empty file where there is nothing. The time of what is there stays.

    Raises:
        FileExistsError: There is something, and not ``exist_ok``.
    """
    if self.is_local:
        pathlib.Path(self.local_path).touch(mode, exist_ok)
        return
    location = _lookup.locate(self, settings)
    if _lookup.is_there(location):
        if exist_ok:
            return
        raise location.error(errno.EEXIST)
    _files.open(self, "wb" if exist_ok else "xb", settings=settings).close()


def os_open(path: Url, flags: int, mode: int = 0o777, *, dir_fd: int | None = None, settings: Settings) -> int:
    """A descriptor for reading: of a private copy of the file, as it is now.

    A directory gives the descriptor of an empty file: there is nothing to read from it, but
    a program may ``fsync`` it.

    Args:
        path: The URL.
        flags: As for ``os.open``; only those for reading.
        mode: Of no meaning.
        dir_fd: Refused.
        settings: Those of the scope.

    Raises:
        OSError: ENOTSUP for writing: nobody would learn when the descriptor is closed, so
            nothing could be published.
        FileNotFoundError: There is nothing.
    """
    _lookup.refuse_dir_fd(dir_fd, path)
    location = _lookup.locate(path, settings)
    if flags & WRITING:
        raise location.error(errno.ENOTSUP, "a descriptor cannot write to a URL; use the built-in open()")
    info = _lookup.entry(location)
    if not info.is_dir and flags & getattr(os, "O_DIRECTORY", 0):
        raise location.error(errno.ENOTDIR)
    with tempfile.TemporaryFile(buffering=0) as copy:
        if not info.is_dir:
            _transfer.fetch_into(location, info, cast(BinaryIO, copy))
            copy.seek(0)
        return os.dup(copy.fileno())

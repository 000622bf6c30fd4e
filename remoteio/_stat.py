"""What ``os.stat`` and the questions built on it say of a URL.

Source: the documentation of ``os`` and ``os.path``, and a local Linux file system.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import stat as _modes
import sys
from typing import Any

from remoteio import _lookup, _tree
from remoteio._settings import Settings
from remoteio._store import Info
from remoteio._stores import Location
from remoteio._telling import told_apart
from remoteio._urls import Url

__all__ = [
    "access", "chmod", "disk_usage", "getatime", "getctime", "getmtime", "isfile", "islink", "ismount", "lexists",
    "lstat", "readlink", "result", "samefile", "stat", "utime",
]  # fmt: skip

FILE_MODE = _modes.S_IFREG | 0o644
DIRECTORY_MODE = _modes.S_IFDIR | 0o755
BLOCK = 512  # bytes, in which st_blocks counts everywhere
UNBOUNDED = sys.maxsize

_log = logging.getLogger("remoteio")
_told: set[str] = set()


def stat(path: Url, *, dir_fd: int | None = None, follow_symlinks: bool = True, settings: Settings) -> os.stat_result:
    """What is known of a file or directory: kind, size, and when the store last got it.

    Mode bits, owner and link count are invented: a store has none. So is the time of a
    directory, which is the epoch. ``st_dev`` and ``st_ino`` are the same for two spellings
    of one place and differ for two places.

    Raises:
        FileNotFoundError: There is nothing.
        NotADirectoryError: A file is used as a directory.
        OSError: The store could not be asked.
        NotImplementedError: ``dir_fd`` was given.
    """
    _lookup.refuse_dir_fd(dir_fd, path)
    with told_apart():
        location = _lookup.locate(path, settings)
        return result(location, _lookup.entry(location))


def lstat(path: Url, *, dir_fd: int | None = None, settings: Settings) -> os.stat_result:
    """The same: there are no links."""
    return stat(path, dir_fd=dir_fd, settings=settings)


def result(location: Location, info: Info) -> os.stat_result:
    """The ``os.stat_result`` of something that was found."""
    size = 0 if info.is_dir else info.size
    if size is None:
        size = _tree.streamed_size(location)
    mtime = info.mtime or 0.0
    seconds, nanoseconds = int(mtime // 1), round(mtime * 1e9)
    device, number = _identity(location)
    return os.stat_result(
        (
            DIRECTORY_MODE if info.is_dir else FILE_MODE,
            number,
            device,
            1,
            os.getuid(),
            os.getgid(),
            size,
            seconds,
            seconds,
            seconds,
        ),
        {
            **dict.fromkeys(("st_atime", "st_mtime", "st_ctime"), mtime),
            **dict.fromkeys(("st_atime_ns", "st_mtime_ns", "st_ctime_ns"), nanoseconds),
            "st_blksize": 2**20,
            "st_blocks": -(-size // BLOCK),
            "st_rdev": 0,
        },
    )


def _identity(location: Location) -> tuple[int, int]:
    """Device and inode: of the store, and of the key in it."""
    store = location.store
    return _number(f"{store.protocol} {getattr(store, 'endpoint', '')}"), _number(location.key)


def inode(location: Location) -> int:
    """The number that stands for a key."""
    return _identity(location)[1]


def _number(text: str) -> int:
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1 or 1  # 0 means "unknown" to some programs


# ---- os.path


def isfile(path: Url, *, settings: Settings) -> bool:
    """Whether there is a file at a URL; one request.

    Raises:
        OSError: The store could not be asked; False is said only when the store said so.
    """
    location = _lookup.find(path, settings)
    if location is None or location.wants_directory or location.is_root:
        return False
    found = location.store.head(location.key)
    return found is not None and not found.is_dir


def lexists(path: Url, *, settings: Settings) -> bool:
    """Whether there is anything: ``exists``, as there are no links."""
    return _tree.exists(path, settings=settings)


def islink(path: Url, *, settings: Settings) -> bool:
    """False: a store holds no links."""
    return False


def ismount(path: Url, *, settings: Settings) -> bool:
    """Whether it is the root of a store, or a bucket: a program that climbs to the mount point stops there."""
    location = _lookup.find(path, settings)
    return location is not None and location.is_root


def getmtime(filename: Url, *, settings: Settings) -> float:
    """When the store last got the file, in seconds since the epoch; the epoch where it does not tell."""
    return stat(filename, settings=settings).st_mtime


def getatime(filename: Url, *, settings: Settings) -> float:
    """The same: when it was read nobody notes."""
    return stat(filename, settings=settings).st_atime


def getctime(filename: Url, *, settings: Settings) -> float:
    """The same: nothing of an object changes but all of it."""
    return stat(filename, settings=settings).st_ctime


def samefile(f1: Any, f2: Any, *, settings: Settings) -> bool:
    """Whether two paths are one file or directory, however they are spelled.

    Raises:
        FileNotFoundError: One of them is missing.
    """
    one, other = (
        stat(path, settings=settings) if isinstance(path, Url) and not path.is_local else os.stat(_plain(path))
        for path in (f1, f2)
    )
    return os.path.samestat(one, other)


def _plain(path: Any) -> Any:
    return path.local_path if isinstance(path, Url) else path


# ---- what a store has no place for


def _note(what: str) -> None:
    if what not in _told:
        _told.add(what)
        _log.debug("%s is accepted on a URL and does nothing: a store keeps neither times nor modes", what)


def utime(
    path: Url,
    times: tuple[float, float] | None = None,
    *,
    ns: tuple[int, int] | None = None,
    dir_fd: int | None = None,
    follow_symlinks: bool = True,
    settings: Settings,
) -> None:
    """Nothing, once it is certain that there is something: a store sets the times itself.

    Raises:
        FileNotFoundError: There is nothing.
        ValueError: Both ``times`` and ``ns`` were given.
    """
    if times is not None and ns is not None:
        raise ValueError("utime: you may specify either 'times' or 'ns' but not both")
    stat(path, dir_fd=dir_fd, settings=settings)
    _note("utime")


def chmod(path: Url, mode: int, *, dir_fd: int | None = None, follow_symlinks: bool = True, settings: Settings) -> None:
    """Nothing, once it is certain that there is something: a store has rights of another kind.

    Raises:
        FileNotFoundError: There is nothing.
    """
    stat(path, dir_fd=dir_fd, settings=settings)
    _note("chmod")


def access(
    path: Url,
    mode: int,
    *,
    dir_fd: int | None = None,
    effective_ids: bool = False,
    follow_symlinks: bool = True,
    settings: Settings,
) -> bool:
    """Whether there is anything: what else one may do only trying tells.

    Raises:
        OSError: The store could not be asked.
    """
    _lookup.refuse_dir_fd(dir_fd, path)
    try:
        location = _lookup.locate(path, settings)
    except FileNotFoundError:  # no store holds such a name
        return False
    return _lookup.is_there(location)


def readlink(path: Url, *, dir_fd: int | None = None, settings: Settings) -> str:
    """Raise what a local disk raises for what is no link.

    Raises:
        OSError: EINVAL, or what ``stat`` raises.
    """
    stat(path, dir_fd=dir_fd, settings=settings)
    raise _lookup.locate(path, settings).error(errno.EINVAL)


def disk_usage(path: Url, *, settings: Settings) -> Any:
    """Total, used and free bytes: nothing is used and there is no end to what is free.

    Raises:
        FileNotFoundError: There is nothing.
    """
    stat(path, settings=settings)
    return shutil._ntuple_diskusage(UNBOUNDED, 0, UNBOUNDED)

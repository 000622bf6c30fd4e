"""What stands at a location: a file, a directory, nothing; and which error says so, as a local disk would."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from remoteio._settings import Settings
from remoteio._store import Info
from remoteio._stores import Location, resolve
from remoteio._urls import Url
from remoteio.errors import ObjectChangedError

T = TypeVar("T")

WORKERS = 16
RENEWALS = 9  # looks at a file that others replace again and again, beyond the first


def find(url: Url, settings: Settings) -> Location | None:
    """The location of a URL, or None where no store can hold such a name (a null byte, a lone surrogate)."""
    if "\0" in url.rest or not _is_utf8(url.rest):
        return None
    return resolve(url, settings)


def locate(url: Url, settings: Settings) -> Location:
    """The location of something that has to exist.

    Raises:
        ValueError: The name holds a null byte, or a surrogate that no file name can hold.
        FileNotFoundError: The name is no UTF-8, so no store holds it.
    """
    try:
        return resolve(url, settings)
    except OSError as error:
        if error.errno != errno.EILSEQ:
            raise
        os.fsencode(url.rest)  # raises UnicodeEncodeError where the local call does
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), url.shown) from None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_there(location: Location) -> bool:
    """Whether there is a file or a directory; one request or two."""
    store, key = location.store, location.key
    if location.wants_directory or location.is_root:
        return store.is_prefix(key)
    return store.head(key) is not None or store.is_prefix(key)


def entry(location: Location) -> Info:
    """The file or directory at a location; a name that is both is a file unless it is spelled as a directory.

    Raises:
        FileNotFoundError: There is nothing.
        NotADirectoryError: The name, or a name above it, is a file that is used as a directory.
    """
    store, key = location.store, location.key
    as_directory = location.wants_directory or location.is_root
    found = None if as_directory else store.head(key)
    if found is not None:
        return found
    if store.is_prefix(key):
        return Info(key, 0, is_dir=True)
    if location.wants_directory and not location.is_root and store.head(key) is not None:
        raise location.error(errno.ENOTDIR)
    raise missing(location)


def file(location: Location) -> Info:
    """The file at a location.

    Raises:
        FileNotFoundError: There is nothing.
        IsADirectoryError: It is a directory.
        NotADirectoryError: A file is used as a directory.
    """
    found = entry(location)
    if found.is_dir:
        raise location.error(errno.EISDIR)
    return found


def newest(location: Location, read: Callable[[Info], T]) -> T:
    """Read a file, or begin to: where it is replaced meanwhile, the new one, as when a local name is opened.

    Args:
        location: The file.
        read: Reads what is described, of which nobody may have been told before.

    Raises:
        ObjectChangedError: It is replaced all the time.
        OSError: As of `file`, and of ``read``.
    """
    for _ in range(RENEWALS):
        with contextlib.suppress(ObjectChangedError):
            return read(file(location))
    return read(file(location))


def missing(location: Location) -> OSError:
    """The error for a location at which there is nothing: a file above it makes it NotADirectoryError."""
    return location.error(errno.ENOENT if file_above(location) is None else errno.ENOTDIR)


def file_above(location: Location) -> str | None:
    """The key of the file that is in the way of everything below it, if one of the ancestors is such a file."""
    store = location.store
    above = ancestors(location)
    infos = together(lambda key: _head_or_none(location, key), above)
    files = [key for key, info in zip(above, infos, strict=True) if info is not None and not info.is_dir]
    # Only the deepest can be in the way: below the others there is something, so they are directories too.
    if not files or store.is_prefix(files[-1]):
        return None
    return files[-1]


def _head_or_none(location: Location, key: str) -> Info | None:
    try:
        return location.store.head(key)
    except PermissionError:  # what was asked for is missing in either case; only the reason stays open
        return None


def ancestors(location: Location) -> list[str]:
    """The keys above a location, from the top, without root and bucket."""
    parts = location.key.split("/")
    first = 1
    if "://" in location.key:  # keys of http are whole URLs
        first = 4
    elif location.store.has_buckets:
        first = 2
    keys = ("/".join(parts[:end]) for end in range(first, len(parts)))
    return [key for key in keys if key]


def together(ask: Callable[[str], T], keys: Sequence[str]) -> list[T]:
    """Ask about several keys at once; answers in the keys' order."""
    if len(keys) < 2:
        return [ask(key) for key in keys]
    pool = concurrent.futures.ThreadPoolExecutor(min(WORKERS, len(keys)), "remoteio-lookup")
    try:
        return list(pool.map(ask, keys))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def refuse_dir_fd(dir_fd: int | None, url: Url) -> None:
    """Refuse a directory descriptor: a URL is never relative to one.

    Raises:
        NotImplementedError: One was given.
    """
    if dir_fd is not None:
        raise NotImplementedError(f"dir_fd is not available for a URL: {url.shown}")

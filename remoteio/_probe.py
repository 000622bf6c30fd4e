"""What stands where ``open`` is to write, and which errors a local disk would raise for it."""

from __future__ import annotations

import errno
import os
from typing import NoReturn

from remoteio import _lookup
from remoteio._store import Info
from remoteio._stores import Location

__all__ = ["before_writing"]

PAGE = 100  # keys of the one listing: more take longer to read than another request


def before_writing(location: Location, mode: str) -> Info | None:
    """The file that a writing mode starts from; None where it starts with an empty one.

    Raises:
        OSError: As the built-in for this mode.
    """
    if "r" in mode:
        return _lookup.file(location)
    if location.url.rest.endswith("/") and not location.url.chain:
        raise location.error(errno.EISDIR)  # whatever is there: a file is not made by such a name
    if location.is_root:
        _refuse_root(location, mode)
    if location.url.is_local:
        return _probe_tree(location, mode)
    return _probe_prefix(location, mode)


def _refuse_root(location: Location, mode: str) -> NoReturn:
    """A store's root or a bucket is a directory, if it is there."""
    if not location.key or _is_prefix(location):
        raise location.error(errno.EEXIST if "x" in mode else errno.EISDIR)
    raise location.error(errno.ENOENT)


def _probe_prefix(location: Location, mode: str) -> Info | None:
    """The same where directories are prefixes: parents need not be there."""
    found = _head(location) if "w" not in mode or location.wants_directory else None
    if found is not None and not found.is_dir:
        return _judge_file(location, mode, found)
    obstacle = _obstacle(location)
    if obstacle == errno.EISDIR and "x" in mode:
        raise location.error(errno.EEXIST)
    if obstacle:
        raise location.error(obstacle)
    if location.wants_directory:
        raise _lookup.missing(location)
    return None


def _obstacle(location: Location) -> int:
    """What keeps a file from being written here: EISDIR, ENOTDIR, ENOENT, or 0; one listing as a rule."""
    try:
        if location.store.has_buckets:
            return _obstacle_in_bucket(location)
        if location.store.is_prefix(location.key):
            return errno.EISDIR
        return errno.ENOTDIR if _lookup.file_above(location) is not None else 0
    except PermissionError:  # whoever may not list may still be allowed to write; the write itself will tell
        return 0
    except FileNotFoundError:
        return errno.ENOENT  # the bucket is missing


def _obstacle_in_bucket(location: Location) -> int:
    """The same from one listing, which tells of the parent and, unless it is large, of the name itself.

    The keys that begin with the parent's name come in order: the parent as a file, its
    neighbours, then what lies below it. If anything does, it is a directory, and so is
    everything above it.
    """
    store, key = location.store, location.key
    parent = key.rpartition("/")[0]
    in_directory = "/" in parent  # otherwise directly in the bucket, which has nothing above it
    above, _, stem = (parent if in_directory else key).rpartition("/")
    keys = [info.key for info in store.walk(above, stem, PAGE)]
    if any(one.startswith(f"{key}/") for one in keys):
        return errno.EISDIR
    if len(keys) >= PAGE and store.is_prefix(key):  # the page may have ended before the name was reached
        return errno.EISDIR
    if not in_directory or any(one.startswith(f"{parent}/") for one in keys):
        return 0
    return errno.ENOTDIR if parent in keys or _lookup.file_above(location) is not None else 0


def _probe_tree(location: Location, mode: str) -> Info | None:
    """The same on the local disk, where the parent must be there."""
    found = _head(location)
    if found is not None and found.is_dir:
        raise location.error(errno.EEXIST if "x" in mode else errno.EISDIR)
    if found is not None:
        return _judge_file(location, mode, found)
    if location.wants_directory:
        raise _lookup.missing(location)
    parent = location.key.rpartition("/")[0]
    if parent and not location.store.is_prefix(parent):
        raise _lookup.missing(location)
    return None


def _judge_file(location: Location, mode: str, found: Info) -> Info | None:
    if location.wants_directory:
        raise location.error(errno.ENOTDIR)
    if "x" in mode:
        raise location.error(errno.EEXIST)
    if location.url.is_local and not os.access(location.key, os.W_OK):
        raise location.error(errno.EACCES)
    return found if "a" in mode else None


def _head(location: Location) -> Info | None:
    """The file; None also where a store that lets one write does not let one look."""
    try:
        return location.store.head(location.key)
    except PermissionError:
        if location.url.is_local:
            raise
        return None


def _is_prefix(location: Location) -> bool:
    """Whether there is a directory; no where the store does not let one list, for writing may be allowed still."""
    try:
        return location.store.is_prefix(location.key)
    except PermissionError:
        return False

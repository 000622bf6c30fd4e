"""Directories that went with the last file this process took out of them.

On a local disk a directory outlives its files, and a program that clears a tree removes it
next. On a store it is gone by then: that program must not be told that it never was.
"""

from __future__ import annotations

from remoteio._stores import Location

__all__ = ["forget", "has_vanished", "note_removal"]

LIMIT = 10_000

# A dictionary used as a set in order of entry; its single operations are atomic, also over a fork.
_emptied: dict[tuple[str, str, str], None] = {}


def note_removal(location: Location, key: str | None = None) -> None:
    """Something was removed: the directory it was in may be gone with it.

    Args:
        location: In the same store.
        key: What was removed; by default what is at the location.
    """
    parent = (location.key if key is None else key).rstrip("/").rpartition("/")[0]
    if parent and not location.store.has_directories:
        _emptied[_token(location, parent)] = None
        if len(_emptied) > LIMIT:
            _emptied.pop(next(iter(_emptied), _token(location, parent)), None)


def has_vanished(location: Location, key: str | None = None) -> bool:
    """Whether this process removed something from a directory of which nothing is left."""
    return _token(location, location.key if key is None else key) in _emptied


def forget(location: Location) -> None:
    """The directory was removed by its name."""
    _emptied.pop(_token(location, location.key), None)


def _token(location: Location, key: str) -> tuple[str, str, str]:
    return location.store.protocol, getattr(location.store, "endpoint", ""), key

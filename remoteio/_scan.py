"""``os.scandir`` on a URL: entries whose every answer comes from the listing."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any, Generic, TypeVar

from remoteio import _lookup, _stat
from remoteio._settings import Settings
from remoteio._store import Info
from remoteio._stores import Location
from remoteio._telling import told_apart
from remoteio._tree import NO_NAMES
from remoteio._urls import Url

__all__ = ["DirEntry", "Entries", "scandir"]

E = TypeVar("E", bound="DirEntry | LocalEntry")


class DirEntry:
    """An ``os.DirEntry`` of a store. No method of it asks the store again.

    Attributes:
        name: The bare name; bytes where the URL was bytes.
        path: The URL that was given, joined with the name.
    """

    __slots__ = ("_info", "_parent", "name", "path")

    def __init__(self, parent: Location, info: Info, name: Any, path: Any) -> None:
        """Keep what the listing said."""
        self.name = name
        self.path = path
        self._parent = parent
        self._info = info

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a directory."""
        return self._info.is_dir

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a file."""
        return not self._info.is_dir

    def is_symlink(self) -> bool:
        """False: there are no links."""
        return False

    def is_junction(self) -> bool:
        """False: there are none."""
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """What the listing said, as ``os.stat`` would say it."""
        return _stat.result(self._location, self._info)

    def inode(self) -> int:
        """The number that stands for the key."""
        return _stat.inode(self._location)

    @property
    def _location(self) -> Location:
        return self._parent.child(os.fsdecode(self.name))

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"


class LocalEntry:
    """A real ``os.DirEntry`` of a ``file://`` directory, with the URL for its path."""

    def __init__(self, entry: Any, path: Any) -> None:
        """Wrap an entry."""
        self._entry = entry
        self.path = path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entry, name)

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return repr(self._entry)


class Entries(Generic[E]):
    """What ``os.scandir`` returns: an iterator and a context manager."""

    def __init__(self, entries: Iterator[E], close: Callable[[], None] = lambda: None) -> None:
        """Take the entries, and what is to be closed with them."""
        self._entries: Iterator[E] = entries
        self._close = close

    def __iter__(self) -> Entries[E]:
        return self

    def __next__(self) -> E:
        with told_apart():
            return next(self._entries)

    def close(self) -> None:
        """Give nothing any more."""
        self._entries = iter(())
        self._close()

    def __enter__(self) -> Entries[E]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def scandir(path: Url, *, original: Callable[..., Any], settings: Settings) -> Entries[DirEntry] | Entries[LocalEntry]:
    """The entries of a directory, each name once, in the store's order and as its pages come.

    Args:
        path: The directory.
        original: Answers for ``file://``.
        settings: Those of the scope.

    Raises:
        FileNotFoundError: There is nothing.
        NotADirectoryError: It is a file.
        OSError: The store could not be asked.
    """
    if path.is_local:
        return _scan_local(path, original)
    with told_apart():
        location = _lookup.locate(path, settings)
        infos = location.store.scan(location.key)
        first = next(infos, None)
        if first is None:
            _lookup.entry(replace(location, wants_directory=True))
            infos = iter(())
        else:
            infos = itertools.chain((first,), infos)
    return Entries(_entries(location, infos, path))


def _entries(location: Location, infos: Iterator[Info], path: Url) -> Iterator[DirEntry]:
    given = os.fspath(path.given)
    seen: set[str] = set(NO_NAMES)
    for info in infos:
        name = info.key.rpartition("/")[2]
        if name in seen:
            continue
        seen.add(name)
        answered = path.answer(name)
        yield DirEntry(location, info, answered, os.path.join(given, answered))


def _scan_local(path: Url, original: Callable[..., Any]) -> Entries[LocalEntry]:
    given = os.fspath(path.given)
    try:
        entries = original(path.answer(path.local_path))
    except OSError as error:
        error.filename = given
        raise
    return Entries((LocalEntry(entry, os.path.join(given, entry.name)) for entry in entries), entries.close)

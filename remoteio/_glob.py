"""``glob.glob`` on a store: the running Python's own code, over a virtual ``os``.

A private copy of the standard library's module is run with its ``os`` replaced by one that
answers from the store (``_glob_tree``), so that what matches, hidden names, ``**``, ``*/``
and ``root_dir`` are Python's own in every version.

A pattern may stand in the name of a bucket too: that needs the right to list the buckets.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import glob as _standard
import os
import posixpath
import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from remoteio import _lookup
from remoteio._glob_tree import StoreFailedError, Tree
from remoteio._settings import Settings
from remoteio._urls import Url

__all__ = ["glob"]


def glob(
    pathname: Any,
    *,
    root_dir: Any = None,
    dir_fd: int | None = None,
    recursive: bool = False,
    include_hidden: bool = False,
    settings: Settings,
) -> list[Any]:
    """The paths that match a pattern, in the caller's spelling, in the store's order.

    Args:
        pathname: The pattern: a ``Url``, or a local pattern where ``root_dir`` is one.
        root_dir: Where a relative pattern begins; results are then relative.
        dir_fd: Refused.
        recursive: Whether ``**`` stands for any depth.
        include_hidden: Whether wildcards match names that begin with a dot.
        settings: Those of the scope.

    Raises:
        OSError: The store could not be asked. What is missing merely does not match.
        NotImplementedError: ``dir_fd`` was given.
    """
    options: dict[str, Any] = {"recursive": recursive}
    if include_hidden:  # Python 3.10 does not know it
        options["include_hidden"] = True
    if isinstance(pathname, Url):
        _lookup.refuse_dir_fd(dir_fd, pathname)
        _refuse_mixture(pathname, root_dir)
        return _glob_url(pathname, options, settings)
    _lookup.refuse_dir_fd(dir_fd, root_dir)
    if isinstance(pathname, (str, bytes)) and os.path.isabs(pathname):
        # An absolute pattern does not begin at root_dir.
        return _run(None, pathname, {**options, "root_dir": root_dir.given})
    return _glob_below(pathname, root_dir, options, settings)


def _refuse_mixture(pathname: Url, root_dir: Any) -> None:
    """Raise the TypeError that Python has for a pattern that is no text, and for str beside bytes."""
    _standard.has_magic(pathname.given)
    if root_dir is not None:
        os.path.join(os.fspath(root_dir.given if isinstance(root_dir, Url) else root_dir), pathname.given)


def _glob_url(url: Url, options: dict[str, Any], settings: Settings) -> list[Any]:
    spelling = _Spelling.of(url)
    # With a slash before it the pattern is an absolute one, which it is to the caller.
    pattern = f"/{spelling.body}"
    disk = _Disk(pattern, spelling, options, settings)
    before, after = url.answer(spelling.before), url.answer(spelling.after)
    return [before + found[1:] + after for found in _run(disk, url.answer(pattern), options)]


def _glob_below(pathname: Any, root: Url, options: dict[str, Any], settings: Settings) -> list[Any]:
    spelling = _Spelling.of(root)
    start = f"/{spelling.body}"
    pattern = os.fsdecode(pathname) if isinstance(pathname, (str, bytes)) else ""
    # What is magic in the name of the root directory means itself.
    disk = _Disk(pattern, spelling, options, settings, start)
    return _run(disk, pathname, {**options, "root_dir": root.answer(start)})


def _run(disk: _Disk | None, pattern: Any, options: dict[str, Any]) -> list[Any]:
    """Run Python's own ``glob`` over a disk; None is the real one."""
    space: dict[str, Any] = {"__name__": "remoteio._glob.standard"}
    exec(_code(), space)
    if disk is not None:
        space["os"] = disk
    try:
        found: list[Any] = space["glob"](pattern, **options)
        return found
    except StoreFailedError as failed:
        error = failed.error
    raise error


@functools.cache
def _code() -> types.CodeType:
    """The code of the running Python's ``glob`` module."""
    loader: Any = _standard.__spec__.loader
    code: types.CodeType = loader.get_code("glob")
    return code


@dataclass(frozen=True, slots=True)
class _Spelling:
    """A URL cut into what a pattern may stand in, and what is before and after it.

    In a chain whose first part names a place (``zip://*.csv::s3://bucket/a.zip``) the
    pattern is there; in others (``simplecache::s3://bucket/*.csv``) it is in the last.
    """

    url: Url
    before: str
    body: str
    after: str = ""

    @classmethod
    def of(cls, url: Url) -> _Spelling:
        if not url.chain:
            return cls(url, url.prefix, url.rest)
        first, mark, others = url.rest.partition("::")
        if "://" in first:
            head, slashes, body = first.partition("://")
            return cls(url, head + slashes, body, mark + others)
        head, slashes, body = url.rest.rpartition("://")
        return cls(url, head + slashes, body)

    def at(self, body: str) -> Url:
        """The URL of another place in the same store."""
        rest = f"{self.before}{body}{self.after}" if self.url.chain else body
        return replace(self.url, rest=rest)


class _Disk:
    """The ``os`` module, as far as ``glob`` uses it, over the part of a store that one pattern touches.

    It is its own ``os.path``. Paths begin with a slash that stands for the store.
    """

    curdir = os.curdir
    fspath = staticmethod(os.fspath)
    fsencode = staticmethod(os.fsencode)
    split = staticmethod(posixpath.split)
    join = staticmethod(posixpath.join)

    def __init__(
        self, pattern: str, spelling: _Spelling, options: dict[str, Any], settings: Settings, root: str = ""
    ) -> None:
        """Cut the pattern into its literal stem and its segments; ask nothing yet."""
        self._spelling = spelling
        self._settings = settings
        stem, parts = _cut(pattern)
        self._stem = posixpath.join(root, stem) if root and stem else root or stem
        self._is_plain = "\0" not in pattern and pattern.isprintable()
        self._base = _lookup.find(spelling.at(self._stem[1:]), settings)
        self._tree: Tree | None = None
        if self._base is not None:
            hidden = bool(options.get("include_hidden"))
            self._tree = Tree(self._base.store, parts, recursive=bool(options["recursive"]), include_hidden=hidden)

    @property
    def path(self) -> _Disk:
        """What ``glob`` knows as ``os.path``."""
        return self

    def lexists(self, path: str | bytes) -> bool:
        """Whether there is a file or a directory."""
        place = self._place(os.fsdecode(path))
        if place is None or self._tree is None:
            return False
        key, as_directory = place
        return self._tree.is_dir(key) if as_directory else self._tree.exists(key)

    def isdir(self, path: str | bytes) -> bool:
        """Whether there is a directory."""
        place = self._place(os.fsdecode(path))
        return place is not None and self._tree is not None and self._tree.is_dir(place[0])

    @contextlib.contextmanager
    def scandir(self, path: str | bytes) -> Iterator[Iterator[_Entry]]:
        """The entries of a directory, none where there is no directory."""
        text = os.fsdecode(path)
        place = self._place(text)
        if place is None or self._tree is None:
            _lookup.locate(self._spelling.at(text[1:]), self._settings)  # raises what the local call raises
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), text)
        names = self._tree.names(place[0], self._depth(text))
        encode = os.fsencode if isinstance(path, bytes) else str
        yield (_Entry(encode(name), is_dir) for name, is_dir in names.items())

    def _depth(self, text: str) -> int:
        return sum(1 for part in text[len(self._stem) :].split("/") if part)

    def _place(self, text: str) -> tuple[str, bool] | None:
        """The key of a path, and whether it is spelled as a directory; None where no store can hold the name."""
        below = text[len(self._stem) :].removeprefix("/")
        if self._base is not None and self._is_plain and _is_straight(below):
            # A directory that "**" stands for nothing in comes with a slash at its end.
            start, name = self._base.key.rstrip("/"), below.rstrip("/")
            return f"{start}/{name}" if self._base.key else name, name != below
        location = _lookup.find(self._spelling.at(text[1:]), self._settings)
        return None if location is None else (location.key, location.wants_directory)


def _is_straight(below: str) -> bool:
    """Whether a relative path has no segment that must be resolved."""
    return below[:1] not in ("", "/") and "//" not in below and "/." not in f"/{below}"


class _Entry:
    """An ``os.DirEntry``, as far as ``glob`` uses it."""

    __slots__ = ("_is_dir", "name")

    def __init__(self, name: str | bytes, is_dir: bool) -> None:
        self.name = name
        self._is_dir = is_dir

    def is_dir(self) -> bool:
        return self._is_dir


def _cut(pattern: str) -> tuple[str, list[str]]:
    """A pattern's literal stem, and its segments from the first with magic on; cut as ``glob`` cuts it."""
    stem = pattern
    parts: list[str] = []
    while _standard.has_magic(stem):
        stem, part = posixpath.split(stem)
        if part:
            parts.insert(0, part)
    return stem, parts

"""Putting replacements in place, and setting everything back.

What is replaced, by what, and when, is the caller's: it hands in rows. Every function here
that changes something expects the caller to hold one lock around it.
"""

from __future__ import annotations

import functools
import operator
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

__all__ = ["Installation", "Row", "original_of", "places"]


@dataclass(frozen=True, slots=True)
class Row:
    """One original and how its replacement is made.

    Attributes:
        places: Where it is looked up, as ``module:name`` or ``module:class.name``.
        sources: Further places of the original that are not written to.
        make: Makes the replacement of the original it is given.
    """

    places: tuple[str, ...]
    sources: tuple[str, ...]
    make: Callable[[Any], Any]


class _Swaps:
    """Originals and their replacements, found by identity either way."""

    def __init__(self) -> None:
        # The objects are kept beside their ids, so that no id can come to mean another object.
        self.forward: dict[int, tuple[Any, Any]] = {}
        self.backward: dict[int, tuple[Any, Any]] = {}

    def add(self, original: Any, replacement: Any) -> None:
        self.forward[id(original)] = (original, replacement)
        self.backward[id(replacement)] = (replacement, original)

    @property
    def ids(self) -> frozenset[int]:
        return frozenset((*self.forward, *self.backward))


# Each replacement ever made, with its original, as long as anybody keeps it.
_originals: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
# The replacement that each row made last: the same original gets the same one again.
_latest: dict[str, tuple[Any, Any]] = {}
_UNSET: Any = object()


def original_of(candidate: Any) -> Any:
    """The original behind one of our replacements; None for anything else."""
    try:
        return _originals.get(candidate)
    except TypeError:  # what cannot be referred to weakly, or hashed, is not ours
        return None


class Installation:
    """The replacements of one table of rows, put in place and set back together."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = tuple(rows)
        self._swaps: _Swaps | None = None
        self._census = _Census()
        self._settled = True
        self._covered: set[str] = set()

    @property
    def installed(self) -> bool:
        """Whether the replacements are in place."""
        return self._swaps is not None

    @property
    def is_settled(self) -> bool:
        """Whether the last installation or restoration came to its end: an interrupted one has to be done again."""
        return self._settled

    def is_original(self, candidate: Any) -> bool:
        """Whether it is what one of the installed replacements stands in for."""
        return self._swaps is not None and id(candidate) in self._swaps.forward

    def install(self) -> None:
        """Put a replacement around whatever stands in each place, and where other modules bound it early.

        It may be interrupted anywhere, by an exception or by a signal handler that installs or
        restores itself, and done again.
        """
        self._settled = False
        swaps = _Swaps()
        found = [(row, place, value) for row in self.rows for place, value in _values(row)]
        for row, _, value in found:
            _pair(row, value, swaps)
        self._covered = {place for _, place, _ in found if place is not None}
        self._swaps = swaps
        _share_memberships(swaps)
        for _, place, _ in found:
            _exchange(place, swaps.forward)
        self._census.update(swaps.ids)
        self._census.exchange(swaps.forward)
        self._settled = True

    def extend(self) -> None:
        """Put replacements in the places of modules that were imported since, and nowhere else."""
        swaps = self._swaps
        if swaps is None:
            return
        for row in self.rows:
            for place in row.places:
                if place not in self._covered and (value := _value(place)) is not _UNSET:
                    _pair(row, value, swaps)
                    self._covered.add(place)
                    _exchange(place, swaps.forward)

    def restore(self) -> None:
        """Set back every name that still holds one of our replacements, also in modules imported since.

        It may be interrupted like `install`.
        """
        swaps = self._swaps
        if swaps is None:
            self._settled = True
            return
        self._settled = False
        for row in self.rows:
            for place in row.places:
                _exchange(place, swaps.backward)
        self._census.exchange(swaps.backward)  # also in modules that have left sys.modules since
        self._census.update(swaps.ids)
        self._census.exchange(swaps.backward)
        _withdraw_memberships(swaps)
        self._swaps = None
        self._settled = True


def places(rows: Iterable[Row]) -> Iterator[tuple[str, Any]]:
    """Each place of the rows that exists, and what stands there."""
    for row in rows:
        for place in row.places:
            value = _value(place)
            if value is not _UNSET:
                yield place, value


def _values(row: Row) -> Iterator[tuple[str | None, Any]]:
    for place in row.places:
        value = _value(place)
        if value is not _UNSET:
            yield place, value
    for place in row.sources:
        value = _value(place)
        if value is not _UNSET:
            yield None, value


def _pair(row: Row, value: Any, swaps: _Swaps) -> None:
    original = original_of(value)
    if original is not None:
        # Somebody's undo put ours back after an earlier block: it goes on for its own original.
        swaps.add(original, value)
        return
    if id(value) in swaps.forward:
        return
    key = f"{row.places[0]}#{id(value)}"
    had = _latest.get(key)
    if had is not None:  # the original in it is alive, so the id is still its own
        swaps.add(*had)
        return
    replacement = row.make(value)
    _originals[replacement] = value
    _forget_others(row.places[0])
    swaps.add(*_latest.setdefault(key, (value, replacement)))


def _forget_others(place: str, limit: int = 8) -> None:
    """Keep few replacements of one place alive: there is a new one for each foreign function met."""
    keys = [key for key in _latest if key.startswith(f"{place}#")]
    for key in keys[1 : max(1, len(keys) - limit)]:  # the first is the standard library's own
        del _latest[key]


def _holder(place: str | None) -> tuple[Any, str] | None:
    """The dictionary or class that a place is in, and the name there; None while its module is not loaded."""
    if place is None:
        return None
    module_name, class_name, name = _parsed(place)
    module = sys.modules.get(module_name)
    if module is None:
        return None
    if not class_name:
        return vars(module), name
    cls = vars(module).get(class_name)
    return None if cls is None else (cls, name)


@functools.cache
def _parsed(place: str) -> tuple[str, str, str]:
    module_name, _, path = place.partition(":")
    class_name, _, name = path.rpartition(".")
    return module_name, class_name, name


def _value(place: str) -> Any:
    found = _holder(place)
    if found is None:
        return _UNSET
    holder, name = found
    if isinstance(holder, dict):
        return holder.get(name, _UNSET)
    value = vars(holder).get(name, _UNSET)
    return value.__func__ if isinstance(value, staticmethod) else value


def _exchange(place: str | None, table: dict[int, tuple[Any, Any]]) -> None:
    found = _holder(place)
    if found is None:
        return
    holder, name = found
    if isinstance(holder, dict):
        _exchange_in(holder, name, table)
        return
    value = vars(holder).get(name, _UNSET)
    is_static = isinstance(value, staticmethod)
    function = value.__func__ if is_static else value
    swap = table.get(id(function))
    if swap is not None and swap[0] is function:
        setattr(holder, name, staticmethod(swap[1]) if is_static else swap[1])


def _exchange_in(names: dict[str, Any], name: str, table: dict[int, tuple[Any, Any]]) -> None:
    value = names.get(name, _UNSET)
    swap = table.get(id(value))
    if swap is not None and swap[0] is value:
        names[name] = swap[1]


def _capability_sets() -> list[set[Any]]:
    names = ("supports_dir_fd", "supports_effective_ids", "supports_fd", "supports_follow_symlinks")
    return [found for name in names if isinstance(found := getattr(os, name, None), set)]


def _share_memberships(swaps: _Swaps) -> None:
    """``os.supports_fd`` and its like hold functions: the replacements are members where their originals are."""
    for members in _capability_sets():
        have = set(map(id, list(members)))  # a copy at once: a signal handler may change them
        for original, replacement in swaps.forward.values():
            if id(original) in have:
                members.add(replacement)


def _withdraw_memberships(swaps: _Swaps) -> None:
    for members in _capability_sets():
        have = set(map(id, list(members)))  # a copy at once: a signal handler may change them
        for replacement, _ in swaps.backward.values():
            if id(replacement) in have:
                members.discard(replacement)


_module_dict: Callable[[Any], dict[str, Any]] = vars(ModuleType)["__dict__"].__get__


def _is_excluded(name: str) -> bool:
    """Modules that keep the originals: importlib works with them, and so do we."""
    head = name.partition(".")[0]
    return head in ("posix", "nt", "importlib", "_frozen_importlib", "_frozen_importlib_external", "zipimport") or (
        head == "remoteio"
    )


class _Census:
    """Which names of which loaded modules hold an original or a replacement.

    A module whose dictionary has the size it had is not searched again, `__main__` apart.
    Only real module dictionaries are looked at, and no attribute of a module is asked for:
    a lazy module stays unloaded.
    """

    def __init__(self) -> None:
        self.ids: frozenset[int] = frozenset()
        self.modules: list[Any] = []
        self.dicts: list[dict[str, Any]] = []
        self.sizes: list[int] = []
        self.hits: dict[int, tuple[dict[str, Any], tuple[str, ...]]] = {}

    def update(self, ids: frozenset[int]) -> None:
        """Bring the census up to date for a set of identities."""
        modules = list(sys.modules.values())
        if ids != self.ids or not self._is_current(modules):
            self._search(ids, list(sys.modules.items()), modules)
        main = sys.modules.get("__main__")
        if main is not None and issubclass(type(main), ModuleType):
            self._look_into(_module_dict(main), ids, self.hits)

    def exchange(self, table: dict[int, tuple[Any, Any]]) -> None:
        """Exchange what the names found hold, where a table has something for it."""
        for names, found in list(self.hits.values()):
            for name in found:
                _exchange_in(names, name, table)

    def _is_current(self, modules: list[Any]) -> bool:
        # With thousands of modules each of these steps is felt, so they are C's own loops.
        return (
            len(modules) == len(self.modules)
            and all(map(operator.is_, modules, self.modules))
            and list(map(len, self.dicts)) == self.sizes
        )

    def _search(self, ids: frozenset[int], items: list[tuple[str, Any]], modules: list[Any]) -> None:
        sizes_before = dict(zip(map(id, self.dicts), self.sizes, strict=True)) if ids == self.ids else {}
        hits_before = self.hits
        hits: dict[int, tuple[dict[str, Any], tuple[str, ...]]] = {}
        dicts: dict[int, dict[str, Any]] = {}
        sizes: list[int] = []
        for name, module in items:
            if not issubclass(type(module), ModuleType) or _is_excluded(name):
                continue
            names = _module_dict(module)
            key = id(names)
            if key in dicts:
                continue
            dicts[key] = names
            size = len(names)
            sizes.append(size)
            if sizes_before.get(key) != size:
                self._look_into(names, ids, hits)
            elif key in hits_before:
                hits[key] = hits_before[key]
        # All together and last: a search that is interrupted is as if it had not begun.
        self.ids, self.modules, self.dicts, self.sizes, self.hits = ids, modules, list(dicts.values()), sizes, hits

    @staticmethod
    def _look_into(
        names: dict[str, Any], ids: frozenset[int], hits: dict[int, tuple[dict[str, Any], tuple[str, ...]]]
    ) -> None:
        # `list` of a dictionary's values is one step: another thread may be importing.
        if ids.isdisjoint(map(id, list(names.values()))):
            hits.pop(id(names), None)
        else:
            hits[id(names)] = (names, tuple(name for name, value in list(names.items()) if id(value) in ids))

"""Modules of a table that are imported while it is installed: their places are covered as soon as they have run.

Nothing is imported for a table's sake. A finder of ours stands in front of the others
while a table is installed of which modules are missing; it finds nothing by itself, and has
the table extended when one of them was imported.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from importlib.machinery import ModuleSpec
from typing import Any

__all__ = ["follow", "missing"]

# By the names of modules: what is called, by whom it was asked for, when one has been imported.
_watched: dict[str, dict[int, Callable[[], None]]] = {}


def missing(places: Iterable[str]) -> frozenset[str]:
    """The modules of some places that are not loaded."""
    return frozenset(name for place in places if (name := place.partition(":")[0]) not in sys.modules)


def follow(owner: object, names: Iterable[str], call: Callable[[], None]) -> None:
    """Have something called after each import of one of these modules. The caller holds a lock around this.

    Args:
        owner: Who asks. What it asked for before is forgotten.
        names: The modules; none to have nothing called any more.
        call: Called in the thread that imported, which may hold locks of the import system.
    """
    for name, calls in list(_watched.items()):
        if calls.pop(id(owner), None) is not None and not calls:
            del _watched[name]
    for name in names:
        _watched.setdefault(name, {})[id(owner)] = call
    if _watched and _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    elif not _watched and _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


class _Finder:
    """Lets the other finders find the module, and calls when it has run."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The others' answer, for a module that somebody waits for."""
        if name not in _watched:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                _run_then_call(spec)
                return spec
        return None


_finder: Any = _Finder()


def _run_then_call(spec: ModuleSpec) -> None:
    loader: Any = spec.loader
    if getattr(loader, "name", None) != spec.name or not hasattr(loader, "exec_module"):
        return  # a loader of several modules; the next entry into a scope covers this one
    run = loader.exec_module

    @functools.wraps(run)
    def exec_module(module: Any) -> None:
        loader.__dict__.pop("exec_module", None)
        run(module)
        for call in list(_watched.get(spec.name, {}).values()):
            call()

    loader.exec_module = exec_module

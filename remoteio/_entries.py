"""Which scopes are open in this process, and the tables that are installed because of them.

The first entry of the process installs a table, the last exit restores it. The lock is
never held across input or output.
"""

from __future__ import annotations

import functools
import importlib
import os
import threading
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from remoteio import _dispatch, _late, _patches, _replacement, _shadow, _stack, _threads, _vendors
from remoteio._route import route
from remoteio._stack import Entry, Kind

__all__ = [
    "ROWS",
    "close_entry",
    "end_entries",
    "installations",
    "look_back",
    "mend",
    "open_entries",
    "open_entry",
    "tables",
]


def _rows(patches: Iterable[_patches.Patch]) -> Iterator[_dispatch.Row]:
    for patch in patches:
        yield _dispatch.Row(patch.places, patch.sources, functools.partial(_replacement.build, patch, route=route))


ROWS = (*_rows(_patches.TEN), *_threads.HOOKS)
_MODULES = ("io", "os.path", "shutil", "glob", "threading", "concurrent.futures.thread")

# By the words of `remote_io(also=...)`, in the order in which they were first asked for; the ten come first.
installations: dict[str, _dispatch.Installation] = {"": _dispatch.Installation(ROWS)}
tables: dict[str, Any] = {}

# Reentrant: a signal handler or a finalizer may enter a scope while this very thread installs.
_lock = threading.RLock()
_open: set[Entry] = set()


# The tables whose modules are loaded. Each is loaded once: an import of what is there already takes that module's lock
# for a moment, and a fork by another thread at that moment leaves it locked in the child for ever.
_loaded: set[str] = set()


def _load_places(words: Iterable[str]) -> None:
    """Import the modules that are patched, and the further tables."""
    # Not under the lock: an import takes locks of its own.
    for word in words:
        if word in _loaded:
            continue
        table = importlib.import_module(f"remoteio._patches_{word}") if word else None
        for name in table.MODULES if table else _MODULES:
            importlib.import_module(name)
        if not table:
            _vendors.register()  # also for programs whose libraries ask fsspec themselves
        if table and word not in installations:
            made = _dispatch.Installation(tuple(_rows(table.PATCHES)))
            tables[word] = table
            installations.setdefault(word, made)
        _loaded.add(word)


def open_entry(entry: Entry) -> None:
    """Count an entry, and install at the first of the process."""
    if entry.kind is not Kind.REMOTE:
        return
    _load_places(_words_of(entry))
    with _lock:
        _open.add(entry)
        _reconcile()
    if _stack.is_outermost(entry):
        entry.seen = _shadow.look()


def close_entry(entry: Entry) -> None:
    """Take an entry back, and restore at the last of the process. Doing it twice does no harm."""
    entry.alive = False
    with _lock:
        _open.discard(entry)
        _reconcile()


def look_back(entry: Entry, stacklevel: int) -> None:
    """Warn of what a scope that was closed leaves behind.

    Args:
        entry: The scope's entry.
        stacklevel: As for ``warnings.warn``, counted from the caller.
    """
    if entry.kind is not Kind.REMOTE:
        return
    if not _open and (names := _threads.still_inside()):
        warnings.warn(
            f"the last scope ends while threads that are inside are still running: {', '.join(names)};"
            " from here on what they call is native",
            ResourceWarning,
            stacklevel + 1,
        )
    _shadow.warn_of_new(entry.seen, stacklevel + 1)


def _words_of(entry: Entry) -> tuple[str, ...]:
    return ("", *entry.settings.also) if entry.settings.also else ("",)


def _reconcile() -> None:
    """Make what is installed agree with the entries that are open. The lock is held.

    A signal handler or a finalizer can come here while this very thread is at it further up:
    it does the whole work then, and what the outer one still does changes nothing.
    """
    while (found := _differing()) is not None:
        table, wanted = found
        if wanted:
            table.install()
            absent = _late.missing(place for row in table.rows for place in row.places)
            _late.follow(table, absent, functools.partial(_extend, table))
        else:
            table.restore()
            _late.follow(table, (), table.extend)


def _extend(table: _dispatch.Installation) -> None:
    """Cover a module that was imported while the table is installed."""
    with _lock:
        table.extend()


def _differing() -> tuple[_dispatch.Installation, bool] | None:
    """A table that is not as it should be, and whether it should be installed."""
    words = {word for entry in list(_open) for word in _words_of(entry)}  # a signal handler may enter meanwhile
    for word, table in list(installations.items()):
        if table.installed != (word in words) or not table.is_settled:
            return table, word in words
    return None


def end_entries(entries: Iterable[Entry]) -> None:
    """Close entries that nobody will leave any more, whichever thread they are of."""
    for entry in entries:
        close_entry(entry)


def open_entries() -> frozenset[Entry]:
    """The entries of all threads that are open now."""
    with _lock:
        return frozenset(_open)


def mend() -> None:
    """Set back a replacement that somebody's undo put back after its scope had ended."""
    with _lock:
        for table in () if _open else installations.values():
            if any(_dispatch.original_of(value) is not None for _, value in _dispatch.places(table.rows)):
                table.install()
                table.restore()


def _after_fork_in_child() -> None:
    """One thread has survived: only its blocks are open."""
    try:
        kept = _stack.reachable()
        for entry in _open - kept:
            entry.alive = False
        _open.intersection_update(kept)
        _reconcile()
    finally:
        _lock.release()


if hasattr(os, "register_at_fork"):
    # The lock is held over the fork, so that the child never finds a half-done installation.
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_after_fork_in_child)

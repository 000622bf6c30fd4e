"""The scope: ``remote_io`` and ``native_io``, who is in which, and what is installed meanwhile."""

from __future__ import annotations

import functools
import importlib
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar, overload

from remoteio import _counters, _dispatch, _late, _patches, _replacement, _settings, _shadow, _stack, _threads, _vendors
from remoteio._decorate import decorated
from remoteio._options import Options, is_enabled
from remoteio._route import route
from remoteio._settings import DEFAULT, OptionTable, Settings
from remoteio._stack import Entry, Kind
from remoteio._status import Status
from remoteio.errors import ScopeError

__all__ = ["NativeIO", "RemoteIO", "bind", "is_remote", "native_io", "remote_io", "status", "url_to_fs"]

Function = TypeVar("Function", bound=Callable[..., Any])
Block = TypeVar("Block", bound="_Block")


def _rows(patches: Iterable[_patches.Patch]) -> Iterator[_dispatch.Row]:
    for patch in patches:
        yield _dispatch.Row(patch.places, patch.sources, functools.partial(_replacement.build, patch, route=route))


_ROWS = (*_rows(_patches.TEN), *_threads.HOOKS)
_MODULES = ("io", "os.path", "shutil", "glob", "threading", "concurrent.futures.thread")

# By the words of `remote_io(also=...)`, in the order in which they were first asked for; the ten come first.
_installations: dict[str, _dispatch.Installation] = {"": _dispatch.Installation(_ROWS)}
_tables: dict[str, Any] = {}

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
        if table and word not in _installations:
            made = _dispatch.Installation((*_rows(table.PATCHES), *table.HOOKS))
            _tables[word] = table
            _installations.setdefault(word, made)
        _loaded.add(word)


def _open_entry(entry: Entry) -> None:
    """Count an entry, and install at the first of the process."""
    if entry.kind is not Kind.REMOTE:
        return
    _load_places(_words_of(entry))
    with _lock:
        _open.add(entry)
        _reconcile()
    if _stack.is_outermost(entry):
        entry.seen = _shadow.look()


def _close_entry(entry: Entry) -> None:
    """Take an entry back, and restore at the last of the process. Doing it twice does no harm."""
    entry.alive = False
    with _lock:
        _open.discard(entry)
        _reconcile()


def _look_back(entry: Entry, stacklevel: int) -> None:
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
    for word, table in list(_installations.items()):
        if table.installed != (word in words) or not table.is_settled:
            return table, word in words
    return None


def end_entries(entries: Iterable[Entry]) -> None:
    """Close entries that nobody will leave any more, whichever thread they are of."""
    for entry in entries:
        _close_entry(entry)


def open_entries() -> frozenset[Entry]:
    """The entries of all threads that are open now."""
    with _lock:
        return frozenset(_open)


def mend() -> None:
    """Set back a replacement that somebody's undo put back after its scope had ended."""
    with _lock:
        for table in () if _open else _installations.values():
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


class _Block:
    """What ``remote_io`` and ``native_io`` have in common: enter, leave, decorate."""

    def _entry(self) -> Entry:
        raise NotImplementedError

    def _enter(self: Block) -> Block:
        entry = self._entry()
        own = _stack.here.own
        try:
            own.append(entry)  # first: a fork at any later moment finds it
            _open_entry(entry)
            return self
        except BaseException:  # Ctrl-C too leaves nothing behind
            _close_entry(entry)
            own[:] = [other for other in own if other is not entry]
            raise

    def _leave(self) -> None:
        own = _stack.here.own
        for position in range(len(own) - 1, -1, -1):
            if own[position].block is self:
                entry = own[position]
                try:
                    _close_entry(entry)
                except BaseException:  # Ctrl-C in the middle: what was begun is finished, then it is passed on
                    _close_entry(entry)
                    raise
                finally:
                    own[:] = [other for other in own if other is not entry]
                _look_back(entry, stacklevel=3)
                return
        raise ScopeError(f"{self!r} is left by a thread that has not entered it, or was left already")

    def __exit__(self, *exc_info: object) -> None:
        self._leave()

    def __call__(self, fn: Function) -> Function:
        """Decorate a function or coroutine function: every call is in the block.

        Raises:
            TypeError: A generator function, an async generator function or a class.
        """
        wrapped: Function = decorated(fn, self)
        return wrapped

    def run(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """A function every call of which is in the block."""

        def run(*args: Any, **kwargs: Any) -> Any:
            self._enter()
            try:
                return fn(*args, **kwargs)
            finally:
                self._leave()

        return run

    # A coroutine's block is open from its first step to its last, and on its thread's stack only during a step.

    def begin(self) -> Entry:
        """Open the block for a coroutine, without being in it yet."""
        entry = self._entry()
        _open_entry(entry)
        return entry

    def step_in(self, token: Entry) -> None:
        """Be in it for one step."""
        _stack.here.own.append(token)

    def step_out(self, token: Entry) -> None:
        """Be out of it; it stays open."""
        _stack.here.own.remove(token)

    def end(self, token: Entry) -> None:
        """Close it."""
        _close_entry(token)
        _look_back(token, stacklevel=3)


class RemoteIO(_Block):
    """A scope in which the standard library's file functions accept URLs.

    Made by `remote_io`. It can be entered again and again, also while it is entered, and
    used as a decorator.
    """

    def __init__(self, options: Options) -> None:
        self._options = options

    def __enter__(self) -> RemoteIO:
        return self._enter()

    def enter_worker(self, *args: object) -> None:
        """Enter for the rest of a worker process's life.

        It pickles, so it can be a DataLoader's ``worker_init_fn`` and the ``initializer`` of a
        pool, whatever the start method. The worker gets the options that were in force where
        it was pickled.

        Args:
            args: What the caller gives its initializers; not used.
        """
        self._enter()

    @property
    def enabled(self) -> bool:
        """Whether entering it now would change anything."""
        return is_enabled(self._options.enabled)

    def _entry(self) -> Entry:
        settings = self._options.over(_stack.nested_settings())
        kind = Kind.REMOTE if self.enabled else Kind.IDLE
        return Entry(self, kind, settings, inherits=self._options.inherit_threads)

    def __reduce__(self) -> tuple[Any, ...]:
        for entry in reversed(_stack.here.own):
            if entry.block is self:
                return RemoteIO, (self._options.in_force(entry.settings),)
        return RemoteIO, (self._options,)

    def __repr__(self) -> str:
        return f"remote_io({self._options.shown()})"


class NativeIO(_Block):
    """A block in which this thread is native, also inside of a scope. Made by `native_io`."""

    def __enter__(self) -> NativeIO:
        return self._enter()

    def _entry(self) -> Entry:
        return Entry(self, Kind.NATIVE, _stack.nested_settings())

    def __repr__(self) -> str:
        return "native_io()"


@overload
def remote_io(fn: Function, /) -> Function: ...


@overload
def remote_io(
    *,
    schemes: Iterable[str] | None = None,
    storage_options: OptionTable | None = None,
    on_error: str | Mapping[str, str] | None = None,
    flush_interval_s: float | None = None,
    directory_markers: bool | None = None,
    allow_bucket_delete: bool | None = None,
    inherit_threads: bool = True,
    enabled: bool | Literal["env"] = True,
    also: str | Iterable[str] | None = None,
) -> RemoteIO: ...


def remote_io(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    schemes: Iterable[str] | None = None,
    storage_options: OptionTable | None = None,
    on_error: str | Mapping[str, str] | None = None,
    flush_interval_s: float | None = None,
    directory_markers: bool | None = None,
    allow_bucket_delete: bool | None = None,
    inherit_threads: bool = True,
    enabled: bool | Literal["env"] = True,
    also: str | Iterable[str] | None = None,
) -> Any:
    """A scope in which the standard library's file functions accept URLs.

    In this thread, and in threads that it starts meanwhile, until the block ends. Outside
    nothing is different. An option that is not given is the enclosing scope's.

    Args:
        fn: The function, when used as a bare decorator.
        schemes: The only schemes taken for URLs; by default all that fsspec knows.
        storage_options: Options of the stores, by scheme or URL prefix; the longest prefix
            is taken, and the innermost scope's table first.
        on_error: What becomes of a file being written when its block ends by an exception:
            ``"discard"`` (the default) or ``"commit"``, for all files or by pattern of the
            base name: ``{"*.log": "commit"}``.
        flush_interval_s: Let ``flush()`` publish what was written so far, at most once in so
            many seconds; at least 0.
        directory_markers: Let ``makedirs`` write a marker object that other processes see.
        allow_bucket_delete: Let ``rmtree`` empty a bucket or a store's root.
        inherit_threads: Whether threads started inside are inside.
        enabled: False for a scope that does nothing; ``"env"`` for one that is on where
            ``USE_FSSPEC=1`` is set or a vendor's package is installed.
        also: What is answered beside the ten: ``"paths"`` (the rest of ``os``, ``os.path``,
            ``shutil``, ``glob`` and ``pathlib`` that programs use), ``"torch"``, several of
            these, or ``"all"``. What an enclosing scope asked for stays.

    Returns:
        The decorated function, or a scope: a context manager and decorator.

    Raises:
        TypeError: An option of the wrong type, or a function that cannot be decorated.
        ValueError: An option out of its range.
    """
    scope = RemoteIO(
        Options.checked(
            schemes=schemes,
            storage_options=storage_options,
            on_error=on_error,
            flush_interval_s=flush_interval_s,
            directory_markers=directory_markers,
            allow_bucket_delete=allow_bucket_delete,
            inherit_threads=inherit_threads,
            enabled=enabled,
            also=also,
        )
    )
    return scope if fn is None else scope(fn)


def native_io() -> NativeIO:
    """A block in which this thread is native, also inside of a scope; ``remote_io`` can be nested in it again."""
    return NativeIO()


def bind(fn: Function) -> Function:
    """Carry this thread's scope by hand: a function that runs where this call is, whichever thread calls it.

    Like a thread started here it is inside until the block ends.

    Raises:
        TypeError: A generator function, an async generator function or a class.
    """
    carrier = _threads.Carrier(_stack.inheritable(by_hand=True))
    bound: Function = decorated(fn, carrier)
    return bound


def status() -> Status:
    """What is installed now, by how many threads, and what was done so far."""
    entries = open_entries()
    patches = [*_patches.TEN, *(patch for table in list(_tables.values()) for patch in table.PATCHES)]
    return Status(
        places={
            _shown(place): _state(table, value)
            for word, table in list(_installations.items())
            if table.installed or not word
            for place, value in _dispatch.places(table.rows)
        },
        scopes=len(entries),
        threads=len({entry.owner for entry in entries}),
        inside=_stack.current() is not None,
        counts=_counters.snapshot(),
        tables={patch.label or patch.name: patch.table for patch in reversed(patches)},
    )


def _shown(place: str) -> str:
    return place.replace(":", ".")


def _state(table: _dispatch.Installation, value: Any) -> Literal["ours", "foreign", "not installed"]:
    if _dispatch.original_of(value) is not None:
        return "ours"
    return "foreign" if table.installed and not table.is_original(value) else "not installed"


def _in_force() -> Settings:
    return _stack.current() or DEFAULT


# `staged_local` asks there, and does not know this module.
_settings.current = _in_force


def is_remote(path: Any) -> bool:
    """Whether a path is a URL whose scheme is known. Nothing is asked of its store.

    Args:
        path: Anything; only ``str``, ``bytes`` and path-like objects can be one.
    """
    from remoteio import _stores

    return _stores.parse(path, _in_force()) is not None


def url_to_fs(path: Any) -> tuple[Any, Any]:
    """The fsspec filesystem of a URL and the path in it; ``(None, path)`` for a local path.

    Raises:
        ImportError: The package of the scheme is not installed.
    """
    from remoteio import _stores

    return _stores.url_to_fs(path, _in_force())

"""The scope: ``remote_io`` and ``native_io``, and what a program can ask of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar, overload

from remoteio import _counters, _dispatch, _entries, _patches, _settings, _stack, _threads
from remoteio._decorate import decorated
from remoteio._options import Options, is_enabled
from remoteio._settings import DEFAULT, OptionTable, Settings
from remoteio._stack import Entry, Kind
from remoteio._status import Status
from remoteio.errors import ScopeError

__all__ = ["NativeIO", "RemoteIO", "bind", "is_remote", "native_io", "remote_io", "status", "url_to_fs"]

Function = TypeVar("Function", bound=Callable[..., Any])
Block = TypeVar("Block", bound="_Block")


class _Block:
    """What ``remote_io`` and ``native_io`` have in common: enter, leave, decorate."""

    def _entry(self) -> Entry:
        raise NotImplementedError

    def _enter(self: Block) -> Block:
        entry = self._entry()
        own = _stack.here.own
        try:
            own.append(entry)  # first: a fork at any later moment finds it
            _entries.open_entry(entry)
            return self
        except BaseException:  # Ctrl-C too leaves nothing behind
            _entries.close_entry(entry)
            own[:] = [other for other in own if other is not entry]
            raise

    def __exit__(self, *exc_info: object) -> None:
        entry = None
        try:
            entry = self._innermost()
            self._take_back(entry)
        except ScopeError:
            raise
        except BaseException:  # Ctrl-C in the middle: what was begun is finished, then it is passed on
            self._take_back(entry or self._innermost())
            raise
        _entries.look_back(entry, stacklevel=2)

    def _innermost(self) -> Entry:
        """The entry that this thread would leave next."""
        for entry in reversed(_stack.here.own):
            if entry.block is self:
                return entry
        raise ScopeError(f"{self!r} is left by a thread that has not entered it, or was left already")

    @staticmethod
    def _take_back(entry: Entry) -> None:
        try:
            _entries.close_entry(entry)
        finally:
            own = _stack.here.own
            own[:] = [other for other in own if other is not entry]

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
                self.__exit__(None, None, None)

        return run

    # A coroutine's block is open from its first step to its last, and on its thread's stack only during a step.

    def begin(self) -> Entry:
        """Open the block for a coroutine, without being in it yet."""
        entry = self._entry()
        _entries.open_entry(entry)
        return entry

    def step_in(self, token: Entry) -> None:
        """Be in it for one step."""
        _stack.here.own.append(token)

    def step_out(self, token: Entry) -> None:
        """Be out of it; it stays open."""
        _stack.here.own.remove(token)

    def end(self, token: Entry) -> None:
        """Close it."""
        _entries.close_entry(token)
        _entries.look_back(token, stacklevel=3)


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
    """What is installed now, by how many threads, what was done so far, and which engine moves the bytes of files."""
    from remoteio import _transfer  # not needed to enter a scope

    entries = _entries.open_entries()
    patches = [*_patches.TEN, *(patch for table in list(_entries.tables.values()) for patch in table.PATCHES)]
    return Status(
        places={
            _shown(place): _state(table, value)
            for word, table in list(_entries.installations.items())
            if table.installed or not word
            for place, value in _dispatch.places(table.rows)
        },
        scopes=len(entries),
        threads=len({entry.owner for entry in entries}),
        inside=_stack.current() is not None,
        counts=_counters.snapshot(),
        tables={patch.label or patch.name: patch.table for patch in reversed(patches)},
        engines=_transfer.engines(),
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

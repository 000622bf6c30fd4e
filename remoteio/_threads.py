"""Carrying a scope into other threads: the hooks of thread start and pool submission, and ``bind``."""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from remoteio import _stack
from remoteio._dispatch import Row

__all__ = ["HOOKS", "Carrier", "carried", "still_inside"]

# fsspec's own loop serves every thread of the process, so it is in no scope.
_NEVER_INSIDE = frozenset({"fsspecIO"})

# tqdm's, which lives on after the first bar and opens nothing.
_HARMLESS = frozenset({"tqdm_monitor"})

# The attribute of a thread that is inside; which scopes it is in only the thread itself knows.
_MARK = "_remoteio_inside"


class Carrier:
    """Steps of a coroutine in blocks that were carried along by hand."""

    def __init__(self, entries: tuple[_stack.Entry, ...]) -> None:
        self._entries = entries

    def run(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """A function that runs in these blocks, wherever it is called."""
        return carried(fn, self._entries)

    def begin(self) -> contextlib.ExitStack:
        """Nothing is opened: the blocks are their owners'."""
        return contextlib.ExitStack()

    def step_in(self, token: contextlib.ExitStack) -> None:
        """Be in them for one step."""
        token.enter_context(_stack.running_in(self._entries))

    def step_out(self, token: contextlib.ExitStack) -> None:
        """Be where the thread was."""
        token.close()

    def end(self, token: contextlib.ExitStack) -> None:
        """Nothing is closed either."""


def carried(fn: Callable[..., Any], entries: tuple[_stack.Entry, ...]) -> Callable[..., Any]:
    """A function that runs in these blocks, wherever it is called."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with _stack.running_in(entries), _marked(bool(entries)):
            return fn(*args, **kwargs)

    return run


@contextlib.contextmanager
def _marked(inside: bool) -> Iterator[None]:
    """Let it be seen from outside that this thread is inside, while it is."""
    thread = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
    if not inside or thread is None or _MARK in thread.__dict__:
        yield
        return
    thread.__dict__[_MARK] = True
    try:
        yield
    finally:
        thread.__dict__.pop(_MARK, None)


def still_inside() -> list[str]:
    """The names of the other living threads that were started inside of a scope, or run something carried there."""
    own = threading.get_ident()
    inside = [thread for thread in threading.enumerate() if _MARK in thread.__dict__ and thread.ident != own]
    return sorted(thread.name for thread in inside if thread.name not in _HARMLESS)


@functools.cache
def _load_answers() -> None:
    """Import what answers for URLs before another thread does: a fork in the middle of that would hang the child."""
    for name in ("fsspec.registry", "remoteio._stores", "remoteio._files", "remoteio._tree", "remoteio._glob"):
        importlib.import_module(name)


def _hook_start(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def start(self: Any) -> None:
        if self.ident is None and not _stack.here.hatching and self.name not in _NEVER_INSIDE:
            entries = self.__dict__[_stack.BIRTHMARK] = _stack.inheritable()
            if entries:
                self.__dict__[_MARK] = True
                _load_answers()
        return original(self)

    del start.__wrapped__
    return start


def _hook_submit(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def submit(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        # A worker may have been born inside of a scope: also a task from outside says where it runs.
        mine = _stack.here
        before, mine.hatching = mine.hatching, True
        try:
            return original(self, carried(fn, _stack.inheritable()), *args, **kwargs)
        finally:
            mine.hatching = before

    del submit.__wrapped__
    return submit


HOOKS = (
    Row(("threading:Thread.start",), (), _hook_start),
    Row(("concurrent.futures.thread:ThreadPoolExecutor.submit",), (), _hook_submit),
)

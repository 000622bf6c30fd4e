"""Scopes as decorators: each call, or each step of a coroutine, runs in a block of its own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Protocol

__all__ = ["Block", "decorated"]


class Block(Protocol):
    """What a decorator needs of a block: to run a function in it, and a coroutine step by step."""

    def run(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """A function every call of which is in the block."""

    def begin(self) -> Any:
        """Open the block, without being in it yet."""

    def step_in(self, token: Any) -> None:
        """Be in it."""

    def step_out(self, token: Any) -> None:
        """Be out of it, which stays open."""

    def end(self, token: Any) -> None:
        """Close it."""


def decorated(fn: Any, block: Block) -> Any:
    """Decorate a function, a coroutine function, a static method or a class method.

    Args:
        fn: What was decorated.
        block: What it runs in.

    Raises:
        TypeError: It is a generator function, an async generator function, a class, or cannot be called.
    """
    if isinstance(fn, (staticmethod, classmethod)):
        return type(fn)(decorated(fn.__func__, block))
    if inspect.isclass(fn):
        raise TypeError(f"{_name(fn)} is a class; decorate its methods instead")
    if not callable(fn):
        raise TypeError(f"a function is needed, not {type(fn).__name__}")
    called = fn if inspect.isroutine(fn) or isinstance(fn, functools.partial) else type(fn).__call__
    if inspect.isgeneratorfunction(called):
        raise TypeError(f"{_name(fn)} is a generator function: its body runs after the call; use a with-block in it")
    if inspect.isasyncgenfunction(called):
        raise TypeError(f"{_name(fn)} is an async generator function: its body runs after the call")
    if inspect.iscoroutinefunction(called):
        return _coroutine_function(fn, block)
    return _wraps(fn)(block.run(fn))


def _coroutine_function(fn: Any, block: Block) -> Any:
    @_wraps(fn)
    async def stepwise(*args: Any, **kwargs: Any) -> Any:
        return await _Steps(fn(*args, **kwargs), block)

    return stepwise


def _wraps(fn: Any) -> Callable[[Any], Any]:
    return functools.wraps(fn)


def _name(fn: Any) -> str:
    return str(getattr(fn, "__qualname__", None) or type(fn).__qualname__)


class _Steps:
    """Drives a coroutine: in the block while it runs, out of it while it waits."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], block: Block) -> None:
        self._coroutine = coroutine
        self._block = block

    def __await__(self) -> Generator[Any, Any, Any]:
        token = self._block.begin()
        try:
            value: Any = None
            error: BaseException | None = None
            while True:
                self._block.step_in(token)
                try:
                    waiting = self._coroutine.send(value) if error is None else self._coroutine.throw(error)
                except StopIteration as stop:
                    return stop.value
                finally:
                    self._block.step_out(token)
                value, error = None, None
                try:
                    value = yield waiting
                except BaseException as thrown:  # noqa: BLE001 - cancellation too is the coroutine's to handle
                    error = thrown
        finally:
            self._block.end(token)

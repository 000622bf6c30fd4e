"""Handles that are still open when the program ends: published, unless it ends by an exception."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import gc
import io
import itertools
import logging
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

from remoteio._publish import Ending

__all__ = ["close_open_handles", "register", "unregister"]

T = TypeVar("T")

_log = logging.getLogger("remoteio")


class Closable(Protocol):
    """A handle as the step at exit sees it."""

    def close(self) -> None:
        """Publish or discard, and close."""


# Weak, so that a dropped handle is collected at once. Plain dictionary operations are atomic: a collector that
# runs at any moment, and a fork, find it whole.
_open: dict[int, tuple[weakref.ref[Any], Ending]] = {}
_serials = itertools.count(1)


def register(handle: Closable, ending: Ending) -> int:
    """Have the outermost layer of a handle closed at the end of the program, if it is still open then."""
    serial = next(_serials)
    _open[serial] = (weakref.ref(handle), ending)
    return serial


def unregister(serial: int) -> None:
    """The handle is closed."""
    _open.pop(serial, None)


@atexit.register
def close_open_handles() -> None:
    """Close every handle of this process that is still open, one's failure apart from the others."""
    entries = [(reference(), ending) for _, (reference, ending) in sorted(_open.items())]
    handles = [(handle, ending) for handle, ending in entries if handle is not None]
    _open.clear()
    failed = _ends_by_exception()
    own = [handle for handle, ending in handles if not ending.is_foreign]
    for handle in own:
        with contextlib.suppress(Exception):  # the upload itself will tell what is wrong
            _let_names_be_looked_up(handle)
    if own and not failed:
        with contextlib.suppress(Exception):  # at the very end of a program any object can be half gone
            _finish_wrappers(own)
    for handle, ending in handles:
        ending.end_of_program(failed)
        try:
            handle.close()
        except Exception:  # noqa: BLE001 - one file's failure must not keep the others from being published
            _log.exception("a file that was open at the end of the program was not published")


class _Inline(concurrent.futures.ThreadPoolExecutor):
    """Runs what it is given at once, in the calling thread."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[T]:
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - whoever waits for the future gets it
            future.set_exception(error)
        return future


def _let_names_be_looked_up(handle: Any) -> None:
    """Let a store connect anew although every thread pool was shut down before this step.

    An event loop looks the names of hosts up in such a pool.
    """
    store = [*_layers(handle)][-1].store
    loop = getattr(store.fs, "loop", None)
    if isinstance(loop, asyncio.AbstractEventLoop) and loop.is_running():
        loop.call_soon_threadsafe(loop.set_default_executor, _Inline())


def _ends_by_exception() -> bool:
    """Whether the interpreter ends after an exception that nobody caught.

    An interactive session goes on after one, so what it remembers of the last says nothing.
    """
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return False
    last = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return last is not None


def _finish_wrappers(handles: list[Any]) -> None:
    """Close what writes into the handles and would do so later: an open gzip file still owes its last bytes.

    On a local file these objects' own finalisers do it, when the interpreter takes them
    down; then it is too late for an upload.
    """
    kinds: tuple[type, ...] = (io.IOBase,)
    if "zipfile" in sys.modules:
        kinds += (sys.modules["zipfile"].ZipFile,)
    candidates = [one for one in gc.get_objects() if issubclass(type(one), kinds)]
    inside = {id(layer) for handle in handles for layer in _layers(handle)}
    candidates = [one for one in candidates if id(one) not in inside]
    levels: list[list[Any]] = []
    reached = set(inside)
    while level := [one for one in candidates if id(one) not in reached and _refers_to(one, reached)]:
        levels.append(level)
        reached.update(map(id, level))
    for one in itertools.chain.from_iterable(reversed(levels[1:])):
        with contextlib.suppress(Exception):  # closed already, or only for reading
            one.flush()
    for one in itertools.chain.from_iterable(levels[:1]):
        with contextlib.suppress(Exception):  # what it could not write is missing on a local disk too
            one.close()


def _layers(handle: Any) -> Iterator[Any]:
    yield handle
    for name in ("buffer", "raw"):
        handle = getattr(handle, name, handle)
        yield handle


def _refers_to(one: Any, wanted: set[int]) -> bool:
    return any(id(each) in wanted for each in _referents(one))


def _referents(one: Any) -> Iterable[Any]:
    for each in gc.get_referents(one):
        if type(each) is dict:
            yield from each.values()
        else:
            yield each

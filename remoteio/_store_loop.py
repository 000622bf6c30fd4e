"""Running a store's coroutines on fsspec's loop: as our own future, cancelled when we are interrupted.

This is also the one layer that retries. fsspec's ``sync`` is not used: it lets the work
go on when the caller is interrupted, and keeps the caller's frame alive after an error.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import logging
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from remoteio import _store_errors

T = TypeVar("T")

RETRY_BOUND_S = 20.0
UNREACHABLE_TRIES = 3
TRIES = 7
CANCEL_WAIT_S = 0.8
EXIT_WAIT_S = 5.0


async def retried(make: Callable[[], Awaitable[T]]) -> T:
    """Await what ``make`` gives; again, with jittered pauses, where the failure may pass.

    A store that answers but is busy is asked up to 7 times within 20 seconds, one that
    cannot be reached at all 3 times.
    """
    began = time.monotonic()
    tries = 0
    while True:
        tries += 1
        try:
            return await make()
        except Exception as error:  # every failure is judged; what may not pass is raised as it is
            verdict = _store_errors.judge(error)
            pause = min(0.1 * 2.2**tries, 5.0) * random.uniform(0.7, 1.3)
            limit = UNREACHABLE_TRIES if _is_unreachable(verdict) else TRIES
            if not verdict.retry or tries >= limit or time.monotonic() - began + pause > RETRY_BOUND_S:
                raise
        await asyncio.sleep(pause)


def _is_unreachable(verdict: _store_errors.Verdict) -> bool:
    import errno

    return verdict.number in (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ETIMEDOUT)


def run(loop: asyncio.AbstractEventLoop, make: Callable[[], Awaitable[T]], *, retry: bool = True) -> T:
    """Run a coroutine on a loop in another thread and wait; Ctrl-C and the like cancel it.

    Args:
        loop: A loop that runs in another thread.
        make: Gives the coroutine, once per try.
        retry: Whether failures that may pass are retried here.
    """
    _refuse_own_thread(loop)
    ended = threading.Event()

    async def work() -> T:
        try:
            return await (retried(make) if retry else make())
        finally:
            ended.set()

    future = asyncio.run_coroutine_threadsafe(work(), loop)
    try:
        _wait_without_logging_lock(future)
        return future.result()
    except BaseException:
        if not future.done():
            future.cancel()
            let_clean_up(ended)
        raise


_CLEANING: list[threading.Event] = []


def let_clean_up(ended: threading.Event) -> None:
    """Give what was cancelled a moment for its clean-up (aborting a multipart upload), but never the user's patience.

    Args:
        ended: Set when it is done.
    """
    if not ended.wait(CANCEL_WAIT_S):
        _CLEANING.append(ended)


@atexit.register
def _finish_cleaning() -> None:
    """Let the clean-up of what was cancelled come to its end before the interpreter does."""
    late = time.monotonic() + EXIT_WAIT_S
    with contextlib.suppress(KeyboardInterrupt):
        for ended in _CLEANING:
            ended.wait(max(0.0, late - time.monotonic()))


# A child has not the thread that would set them.
os.register_at_fork(after_in_child=_CLEANING.clear)


def _wait_without_logging_lock(future: concurrent.futures.Future[T]) -> None:
    """Wait with ``logging``'s own lock let go, where this thread holds it.

    ``logging.basicConfig(filename=URL)`` opens the file under that lock, and the stores' libraries
    ask it, in the loop's thread, whether to log: both would wait for ever.
    """
    lock: Any = getattr(logging, "_lock", None)
    if lock is None or not getattr(lock, "_is_owned", bool)():
        return
    condition = threading.Condition(lock)

    def wake(_: object) -> None:
        with condition:
            condition.notify_all()

    future.add_done_callback(wake)
    while not future.done():
        condition.wait()


def _refuse_own_thread(loop: asyncio.AbstractEventLoop) -> None:
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return
    if running is loop:
        raise RuntimeError("a blocking file operation was called from fsspec's own IO thread, where it could never end")

"""Driving a transfer on a store's loop: workers over pieces, resuming, cancelling.

The bytes of a piece are written where they belong as they come, so that what is in memory
does not depend on the files' sizes. A range that breaks is asked for again from the byte
where it broke, always of the object that was described and of no other.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar, cast

from remoteio import _store_errors
from remoteio._progress import Meter
from remoteio._store import Info
from remoteio._store_loop import RETRY_BOUND_S, TRIES, UNREACHABLE_TRIES, _is_unreachable, let_clean_up
from remoteio._store_objects import ObjectStore
from remoteio._transfer_plan import WINDOW, Buffer, Incoming, Limits, Outgoing, window

T = TypeVar("T")

TICK_S = 0.1
LAST_MOMENT_S = 2.0  # what the store has got but not answered yet would be there, and yet not be told of
MAX_BREAKS = 100  # a range that breaks again and again ends even though some bytes come each time


class Engine(Protocol):
    """What moves the bytes of a store with a loop. Its coroutines run on that loop.

    Attributes:
        name: As in ``REMOTEIO_ENGINE``.
    """

    name: str

    async def fetch(self, key: str, start: int, stop: int, info: Info, write: Callable[[Buffer], None]) -> None:
        """Ask once for a range and hand on its bytes as they come, none that is not of it.

        Raises:
            ObjectChangedError: The object is no longer the one described.
            Exception: Whatever the store's library raises; what was handed on stays good.
        """

    async def send(self, file: Outgoing, moved: Callable[[int], None], beside: int) -> Info:
        """Publish a file whole or not at all, with retries; what the store then has is described.

        Args:
            file: The file.
            moved: Told how many bytes went over; a negative number where they must go again.
            beside: How many files in parts may be sent at the same time, this one counted.
        """


class Patience:
    """How long one piece of work may be tried again: the one layer of retries of a download."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._tries = 0
        self._breaks = 0

    def pause_after(self, error: Exception, *, progressed: bool) -> float:
        """Seconds to wait before the next try. Raises the error where there is none."""
        now = time.monotonic()
        if progressed:
            self._began, self._tries = now, 0
        self._tries += 1
        self._breaks += 1
        verdict = _store_errors.judge(error)
        limit = UNREACHABLE_TRIES if _is_unreachable(verdict) else TRIES
        pause: float = min(0.1 * 2.2**self._tries, 5.0) * random.uniform(0.7, 1.3)
        late = now - self._began + pause > RETRY_BOUND_S
        if not verdict.retry or self._tries >= limit or self._breaks > MAX_BREAKS or late:
            raise error
        return pause


async def download(files: Sequence[Incoming], engine: Engine, limits: Limits, meter: Meter) -> None:
    """Fill all files, the biggest first; at the first failure everything stops."""
    biggest_first = sorted(files, key=lambda file: -(file.size or 0))
    each = window(sum(file.size or 0 for file in files), limits.requests)
    pieces = ((file, start, stop) for file in biggest_first for start, stop in file.pieces(each))

    async def worker() -> None:
        for file, start, stop in pieces:
            await _fill(file, start, stop, engine, meter)

    count = sum(max(1, -(-(file.size or 0) // each)) for file in files)
    await _all([worker() for _ in range(min(limits.requests, count))])


async def _fill(file: Incoming, start: int, stop: int, engine: Engine, meter: Meter) -> None:
    at = start

    def write(data: Buffer) -> None:
        nonlocal at
        count = len(data)
        if at + count > stop:
            raise file.location.error(errno.EIO, f"the store sent more than the {stop - start} bytes asked for")
        complete = file.write(data, at)
        at += count
        meter.moved(count)
        if complete:
            meter.finished(file.path)

    patience = Patience()
    if start == stop:
        write(b"")  # an empty file; asking for no bytes is an error on most stores
    while at < stop:
        before = at
        try:
            await engine.fetch(file.location.key, at, stop, file.info, write)
            if at < stop:
                raise ConnectionResetError(errno.ECONNRESET, f"{at - start} of {stop - start} bytes came")
            return
        except Exception as error:  # noqa: BLE001 - every failure is judged; what may not pass becomes an OSError
            try:
                pause = patience.pause_after(error, progressed=at > before)
            except Exception:  # noqa: BLE001 - the same error, when there is no patience left
                raised = _translated(file, error)
            else:
                await asyncio.sleep(pause)
                continue
        raise raised


async def upload(files: Sequence[Outgoing], engine: Engine, limits: Limits, meter: Meter) -> None:
    """Send all files, the biggest first; at the first failure no more begin, and what is nearly there gets a moment."""
    waiting = deque(sorted(files, key=lambda file: -file.size))
    beside = max(1, min(limits.files, sum(file.size > WINDOW for file in files)))
    large = asyncio.Semaphore(beside)

    async def worker() -> None:
        try:
            while waiting:
                file = waiting.popleft()
                async with large if file.size > WINDOW else contextlib.nullcontext():
                    await _send(file, engine, meter, beside)
        except Exception:
            waiting.clear()
            raise

    await _all([worker() for _ in range(min(limits.requests, len(files)))], LAST_MOMENT_S)


async def _send(file: Outgoing, engine: Engine, meter: Meter, beside: int) -> None:
    try:
        file.sent = await engine.send(file, meter.moved, beside)
        meter.finished(file.path)
        return
    except Exception as error:  # noqa: BLE001 - each library has its own classes; all become OSErrors
        raised = file.refused(_translated(file, error))
    finally:
        file.close()
    raise raised


def _translated(file: Incoming | Outgoing, error: Exception) -> OSError:
    store = cast(ObjectStore, file.location.store)
    return store.translated(file.location.key, error)


async def _all(workers: Sequence[Coroutine[Any, Any, None]], moment_s: float = 0) -> None:
    """Run them all; when one fails, or this is cancelled, every other one has ended before this does.

    Args:
        workers: What is to be run.
        moment_s: Seconds that the others get to come to their end by themselves when one has failed.
    """
    tasks = [asyncio.ensure_future(worker) for worker in workers]
    try:
        await asyncio.gather(*tasks)
    except asyncio.CancelledError:
        # It has cancelled them: once more would break off what they clean up.
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    except Exception:
        if moment_s:
            await asyncio.wait(tasks, timeout=moment_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def drive(
    loop: asyncio.AbstractEventLoop,
    work: Callable[[], Coroutine[Any, Any, T]],
    tell: Callable[[], None],
    check: Callable[[], None],
) -> T:
    """Run a transfer on a loop in another thread, and wait; Ctrl-C and the like cancel it.

    Args:
        loop: The store's loop.
        work: Makes the coroutine.
        tell: Called here several times a second.
        check: The same; what it raises ends the transfer.
    """
    ended = threading.Event()

    async def watched() -> T:
        try:
            return await work()
        finally:
            ended.set()

    future = asyncio.run_coroutine_threadsafe(watched(), loop)
    try:
        while not future.done():
            concurrent.futures.wait([future], timeout=TICK_S)
            tell()
            check()
        return future.result()
    except BaseException:
        if not future.done():
            future.cancel()
            let_clean_up(ended)
        raise

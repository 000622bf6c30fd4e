"""Fetching ranges of one object straight into memory: several at once, each byte written once where it belongs."""

from __future__ import annotations

import asyncio
import bisect
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

from remoteio import _transfer, _transfer_loop, _transfer_threads
from remoteio._store import Info
from remoteio._stores import Location
from remoteio._transfer_plan import Buffer, Incoming, Limits, window

__all__ = ["GAP", "Span", "fill", "pieces_of", "scatter"]

STREAMS = 8  # requests in flight
GAP = 64 * 2**10  # bytes between two wanted ranges that are fetched along, rather than asking twice

# Where in the object some bytes begin, and the memory that they belong in.
Span = tuple[int, memoryview]
Write = Callable[[Buffer, int], None]


def fill(
    location: Location,
    info: Info,
    pieces: Sequence[tuple[int, int]],
    write: Write,
    *,
    cancel: threading.Event | None = None,
) -> None:
    """Fetch ranges of exactly the object that was described, the first ones first.

    Args:
        location: The object.
        info: Its description.
        pieces: First byte, and one past the last, of each range; none is empty.
        write: Gets bytes and their place in the object, in any thread; of one range in
            order, of several at once in any. Of a store without ranges it gets every byte.
        cancel: Ends it when it is set.

    Raises:
        ObjectChangedError: The object is no longer the one described.
        OSError: It could not be read, or ``cancel`` was set.
    """
    if not pieces:
        return
    sink = cast(Incoming, _Sink(location, info, pieces, write))
    watch = _transfer._Watch(None, None, cancel)
    streams = min(STREAMS, len(pieces))
    engine = _transfer.engine_for(location.store)
    if engine is None:
        _transfer_threads.download([sink], Limits(streams), watch.meter, watch.tell, watch.check)
        return
    chosen = engine

    async def work() -> None:
        waiting = iter(pieces)

        async def worker() -> None:
            for start, stop in waiting:
                await _transfer_loop._fill(sink, start, stop, chosen, watch.meter)

        await _transfer_loop._all([worker() for _ in range(streams)])

    _transfer_loop.drive(cast(asyncio.AbstractEventLoop, location.store.fs.loop), work, watch.tell, watch.check)


class _Sink:
    """What the transfer takes for a local file that is being filled.

    Attributes:
        location: The object.
        info: Its description.
        path: Its name, for those who are told of the progress.
        size: Bytes wanted; None where the store does not know how many there are.
    """

    def __init__(self, location: Location, info: Info, pieces: Sequence[tuple[int, int]], write: Write) -> None:
        self.location = location
        self.info = info
        self.path = location.url.shown
        ranged = info.size is not None and location.store.can_range
        self.size = sum(stop - start for start, stop in pieces) if ranged else info.size
        self._pieces = pieces
        self._write = write

    def pieces(self) -> Iterator[tuple[int, int]]:
        """The ranges wanted."""
        return iter(self._pieces)

    def write(self, data: Buffer, offset: int) -> bool:
        """Hand bytes on; that they are the last ones does not matter to anybody."""
        self._write(data, offset)
        return False

    def finish(self) -> None:
        """Nothing is left to do."""


def pieces_of(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The requests that fetch some ranges: neighbours together, large ones in windows, as large as for a whole file.

    Args:
        spans: First byte, and one past the last, of each range, in order; empty ones are left out.
    """
    merged: list[list[int]] = []
    for start, stop in spans:
        if start >= stop:
            continue
        if merged and start - merged[-1][1] <= GAP:
            merged[-1][1] = max(merged[-1][1], stop)
        else:
            merged.append([start, stop])
    each = window(sum(stop - start for start, stop in merged), STREAMS)
    return [(at, min(at + each, stop)) for start, stop in merged for at in range(start, stop, each)]


def scatter(spans: Sequence[Span]) -> Write:
    """A function that writes bytes of the object into the memory of the spans that they belong to.

    Args:
        spans: In order, none overlapping another.
    """
    starts = [start for start, _ in spans]

    def write(data: Any, offset: int) -> None:
        view = memoryview(data)
        end = offset + len(view)
        number = max(0, bisect.bisect_right(starts, offset) - 1)
        while number < len(spans) and starts[number] < end:
            start, memory = spans[number]
            first, last = max(start, offset), min(start + len(memory), end)
            if first < last:
                memory[first - start : last - start] = view[first - offset : last - offset]
            number += 1

    return write

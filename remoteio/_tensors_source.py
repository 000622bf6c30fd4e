"""Where the bytes of a safetensors file come from: its header, ranges asked for, and ranges read ahead."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future

from remoteio import _counters, _transfer, _transfer_memory
from remoteio._store import Info
from remoteio._stores import Location
from remoteio._transfer_memory import Span

__all__ = ["Source", "read_header"]

FIRST = 64 * 2**10  # bytes of the first request, in which most headers lie
LARGEST_HEADER = 100_000_000  # as safetensors has it
LARGE = 4 * 2**20  # from here on a range is split over several requests
FIRST_AHEAD = 2**20
MOST_AHEAD = 8 * 2**20
WINDOWS_AHEAD = 4


def read_header(location: Location, info: Info) -> tuple[bytes, int, bytes]:
    """The header, where the data begin, and all bytes that were fetched for it.

    What is no header is given as it is: safetensors tells what is wrong with it.
    """
    size = info.size or 0
    first = _read(location, info, 0, min(FIRST, size))
    if len(first) < 8:
        return first, len(first), first
    length = int.from_bytes(first[:8], "little")
    if length > min(LARGEST_HEADER, size - 8):
        return first[:8] + b"{}", 8, first
    if 8 + length > len(first):
        first += _read(location, info, len(first), 8 + length)
    return first[: 8 + length], 8 + length, first


def _read(location: Location, info: Info, start: int, stop: int) -> bytes:
    return _transfer.read_range(location, info, start, stop) if start < stop else b""


class Source:
    """The data of one version of a file, counted from the end of its header. Threads may share it."""

    def __init__(self, location: Location, info: Info, start: int, first: bytes) -> None:
        """Keep what is known.

        Args:
            location: The file.
            info: Its description.
            start: Where the data begin.
            first: The first bytes of the file, which were fetched already.
        """
        self._location = location
        self._info = info
        self._start = start
        self._first = first
        self._lock = threading.Lock()
        self._run_end = -1
        self._step = FIRST_AHEAD
        self._ahead: deque[tuple[int, int, Future[bytes]]] = deque()

    def close(self) -> None:
        """Let go of what was read ahead."""
        with self._lock:
            self._forget()

    def read_all(self, spans: Sequence[Span]) -> None:
        """Fill all spans, in the order of the file, by several requests at once."""
        moved = [(self._start + start, memory) for start, memory in spans if len(memory)]
        self._fill([span for span in moved if not self._from_first(*span)])

    def read_into(self, start: int, memory: memoryview) -> None:
        """Fill one span; what is asked for in the order of the file is read ahead."""
        if not len(memory):
            return
        start += self._start
        stop = start + len(memory)
        if self._from_first(start, memory):
            with self._lock:
                self._run_end = stop
            return
        with self._lock:
            held = self._held(start, stop)
            near = abs(start - self._run_end) <= MOST_AHEAD  # several threads are never quite in order
            if start == self._run_end or held:
                self._look_ahead(stop)
            elif not near:
                self._forget()
            self._run_end = max(self._run_end, stop) if near else stop
        at = start
        for begin, end, future in held:
            if begin <= at < end:
                try:
                    data = memoryview(future.result())
                except CancelledError:  # another thread went elsewhere
                    break
                count = min(end, stop) - at
                memory[at - start : at - start + count] = data[at - begin : at - begin + count]
                at += count
        if at < stop:
            self._fetch(at, memory[at - start :])

    def _fetch(self, start: int, memory: memoryview) -> None:
        if len(memory) < LARGE:
            data = _transfer.read_range(self._location, self._info, start, start + len(memory))
            memory[:] = data
            self._count(len(data))
            return
        self._fill([(start, memory)])

    def _fill(self, spans: list[Span]) -> None:
        if not self._location.store.can_range:
            self._stream(spans)
            return
        pieces = _transfer_memory.pieces_of((start, start + len(memory)) for start, memory in spans)
        _transfer_memory.fill(self._location, self._info, pieces, _transfer_memory.scatter(spans))
        self._count(sum(stop - start for start, stop in pieces))

    def _stream(self, spans: list[Span]) -> None:
        """From the first byte on, for a store without ranges."""
        write = _transfer_memory.scatter(spans)
        at = 0
        with self._location.store.stream(self._location.key) as reader:
            while block := reader.read(FIRST):
                write(block, at)
                at += len(block)
        self._count(at)

    def _from_first(self, start: int, memory: memoryview) -> bool:
        """Whether the bytes came with the header; then they are filled in."""
        if start + len(memory) > len(self._first):
            return False
        memory[:] = self._first[start : start + len(memory)]
        return True

    def _count(self, count: int) -> None:
        _counters.count("safetensors.safe_open", self._location.url.scheme, bytes_read=count)

    # ---- reading ahead; the lock is held

    def _held(self, start: int, stop: int) -> list[tuple[int, int, Future[bytes]]]:
        """The windows that hold the beginning of a range, and go on from there."""
        if not any(begin <= start < end for begin, end, _ in self._ahead):
            return []
        held = [window for window in self._ahead if window[0] < stop and start < window[1]]
        while self._ahead and self._ahead[0][1] <= start:
            self._ahead.popleft()
        return held

    def _look_ahead(self, stop: int) -> None:
        """Have the next windows on their way, each twice the one before."""
        size = self._info.size or 0
        at = max(self._ahead[-1][1], stop) if self._ahead else stop
        while at < size and len(self._ahead) < WINDOWS_AHEAD and self._location.store.can_range:
            end = min(at + self._step, size)
            self._ahead.append((at, end, _transfer.submit_range(self._location, self._info, at, end)))
            self._count(end - at)
            self._step = min(self._step * 2, MOST_AHEAD)
            at = end

    def _forget(self) -> None:
        while self._ahead:
            self._ahead.popleft()[2].cancel()
        self._step = FIRST_AHEAD

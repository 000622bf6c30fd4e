"""Moving bytes of the stores that are reached by blocking calls: fsspec's many others, memory and local disk.

Threads fetch ranges and write them where they belong. They are daemons, so that one that
hangs in a store's library keeps neither Ctrl-C nor the end of the interpreter waiting.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, cast

from remoteio._engine_fsspec import Slice
from remoteio._progress import Meter
from remoteio._transfer_loop import TICK_S
from remoteio._transfer_plan import MIB, Incoming, Limits, Outgoing

BLOCK = MIB


class _Stopped(BaseException):
    """The transfer was given up while a thread still had work."""


class _Crew:
    """The threads of one download, and how they end."""

    def __init__(self, pieces: Iterator[tuple[Incoming, int, int]], meter: Meter) -> None:
        self._pieces = pieces
        self._lock = threading.Lock()
        self._meter = meter
        self.stopped = threading.Event()
        self.failure: BaseException | None = None

    def work(self) -> None:
        try:
            while (piece := self._next()) is not None:
                self._fill(*piece)
        except _Stopped:
            return
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            with self._lock:
                self.failure = self.failure or error
            self.stopped.set()

    def _next(self) -> tuple[Incoming, int, int] | None:
        with self._lock:
            return None if self.stopped.is_set() else next(self._pieces, None)

    def _fill(self, file: Incoming, start: int, stop: int) -> None:
        store, key = file.location.store, file.location.key
        if file.size is None or not store.can_range:
            self._stream(file)
            return
        data = store.read(key, start, stop, info=file.info) if start < stop else b""
        if len(data) != stop - start:
            raise file.location.error(errno.EIO, f"the store sent {len(data)} of {stop - start} bytes")
        self._write(file, data, start)

    def _stream(self, file: Incoming) -> None:
        at = 0
        with file.location.store.stream(file.location.key) as reader:
            while block := reader.read(BLOCK):
                self._write(file, block, at)
                at += len(block)
        if file.size is None:
            self._write(file, b"", at)  # an empty stream makes an empty file
            file.finish()
            self._meter.finished(file.path)
        elif at == file.size == 0:
            self._write(file, b"", 0)
        elif at != file.size:
            raise file.location.error(errno.EIO, f"the store sent {at} of {file.size} bytes")

    def _write(self, file: Incoming, data: bytes, offset: int) -> None:
        if self.stopped.is_set():
            raise _Stopped
        complete = file.write(data, offset)
        self._meter.moved(len(data))
        if complete:
            self._meter.finished(file.path)


def download(
    files: Sequence[Incoming], limits: Limits, meter: Meter, tell: Callable[[], None], check: Callable[[], None]
) -> None:
    """Fill all files, the biggest first; at the first failure everything stops.

    Args:
        files: The files.
        limits: How many threads.
        meter: Notes what moved.
        tell: Called here several times a second.
        check: The same; what it raises ends the transfer.
    """
    crew = _Crew(_pieces(files), meter)
    count = min(limits.requests, sum(1 for _ in _pieces(files)))
    threads = [threading.Thread(target=crew.work, name="remoteio-transfer", daemon=True) for _ in range(count)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive() and not crew.stopped.is_set():
                thread.join(TICK_S)
                tell()
                check()
    except BaseException:
        crew.stopped.set()
        raise
    if crew.failure is not None:
        raise crew.failure


def _pieces(files: Sequence[Incoming]) -> Iterator[tuple[Incoming, int, int]]:
    for file in sorted(files, key=lambda file: -(file.size or 0)):
        if file.size is None or not file.location.store.can_range:
            yield file, 0, file.size or 0
        else:
            for start, stop in file.pieces():
                yield file, start, stop


def upload(files: Sequence[Outgoing], meter: Meter, tell: Callable[[], None], check: Callable[[], None]) -> None:
    """Send all files one after another, the biggest first.

    That happens in the caller's thread, which Ctrl-C interrupts: in any other one the
    store's library would go on, and publish.
    """
    for file in sorted(files, key=lambda file: -file.size):
        store, key = file.location.store, file.location.key
        try:
            _write(file)
        finally:
            file.close()
        file.sent = found = store.head(key)
        if found is None or found.size not in (None, file.size):
            had = "nothing" if found is None else f"{found.size}"
            raise file.location.error(errno.EIO, f"the store has {had} of {file.size} bytes")
        meter.moved(file.size)
        meter.finished(file.path)
        tell()
        check()


def _write(file: Outgoing) -> None:
    store, key = file.location.store, file.location.key
    if store.has_directories:
        store.make_directory(key.rpartition("/")[0])
    try:
        _require_expected(file)
        store.write(key, cast(BinaryIO, Slice(file, 0, file.size)), file.size, exclusive=file.expected == "")
    except FileExistsError as error:
        raised = file.refused(error)
    else:
        return
    raise raised


def _require_expected(file: Outgoing) -> None:
    """A last look at what will be replaced: these stores know no condition but that nothing is there."""
    if not file.expected:
        return
    found = file.location.store.head(file.location.key)
    if found is None or found.version != file.expected:
        raise file.location.error(errno.EEXIST, "it is no longer the one that was looked at")

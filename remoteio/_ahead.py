"""A whole object as a file for one reader, fetched in the background as fast as the store gives it.

What was fetched and not yet read is in memory, and is given back as it is read: a reader that
copies the bytes into memory of its own never needs much more than the object's size in all.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import mmap
import os
import threading
from typing import Any, cast

from remoteio import _counters, _transfer, _transfer_memory
from remoteio._raw import seek_target, writable_view
from remoteio._store import Info
from remoteio._stores import Location
from remoteio._transfer_memory import Write
from remoteio._transfer_plan import WINDOW

__all__ = ["Ahead"]

REQUEST = 2 * WINDOW  # larger ones cost the store less, but then all comes together at the end, and waits to be read
SKIPPED = 4096  # bytes between two reads, such as an archive's padding, that nobody is going to read
LARGE = 2**18
LEAVE_S = 1.0  # how long a reader that leaves early waits for the requests to end


class Ahead(io.RawIOBase):
    """A binary reader that can seek, over one version of an object of known size that can be read by ranges.

    Attributes:
        name: As the caller gave it.
    """

    def __init__(self, location: Location, info: Info, name: Any, function: str) -> None:
        """Begin to fetch.

        Args:
            location: The object.
            info: Its description.
            name: What ``name`` tells.
            function: The function whose counts the bytes belong to.
        """
        self.name = name
        self._location = location
        self._info = info
        self._function = function
        self._size = info.size or 0
        self._position = 0
        self._memory = mmap.mmap(-1, max(self._size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them
                self._memory.madvise(mmap.MADV_HUGEPAGE)  # touching the memory for the first time costs most
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        count = -(-self._size // WINDOW)
        self._come = [0] * count  # bytes of each window that have come
        self._read = [0] * count  # ... and that were read; a window read to its end is given back
        self._gone: set[int] = set()
        self._last_end = 0
        self._news = threading.Condition()
        self._error: BaseException | None = None
        self._cancel = threading.Event()
        self._thread = threading.Thread(target=self._fetch, name="remoteio-load", daemon=True)
        self._thread.start()

    # ---- in the background

    def _fetch(self) -> None:
        # An archive's directory is at its end, and is read first.
        last = max(0, len(self._come) - 1) * WINDOW
        windows = [(last, self._size), *((start, min(start + REQUEST, last)) for start in range(0, last, REQUEST))]
        try:
            with memoryview(self._memory) as memory:
                _transfer_memory.fill(self._location, self._info, windows, self._writer(memory), cancel=self._cancel)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that reads
            with self._news:
                self._error = error
                self._news.notify_all()

    def _writer(self, memory: memoryview) -> Write:
        def write(data: Any, offset: int) -> None:
            view = memoryview(data)
            memory[offset : offset + len(view)] = view
            full = False
            while view:
                number = offset // WINDOW
                count = min(len(view), (number + 1) * WINDOW - offset)
                self._come[number] += count
                full = full or self._come[number] >= self._length(number)
                view, offset = view[count:], offset + count
            if full:
                with self._news:
                    self._news.notify_all()

        return write

    def peek(self, start: int, stop: int) -> bytes:
        """Bytes within one window, which do not count as read.

        Raises:
            OSError: They could not be read.
        """
        return bytes(self._bytes(start // WINDOW, start, stop))

    # ---- a file's answers

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go elsewhere.

        Raises:
            OSError: Before the start, as on a disk.
        """
        self._position = seek_target(offset, whence, self._position, self._size)
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        """Fill the buffer, as far as the object goes."""
        view = writable_view(buffer)
        done = 0
        self._note_skipped()
        wanted = max(0, min(len(view), self._size - self._position))
        while done < wanted:
            number = self._position // WINDOW
            stop = min(self._position + wanted - done, number * WINDOW + self._length(number))
            count = stop - self._position
            self._copy(number, self._position, view[done : done + count])
            done += count
            self._position = stop
            self._note_read(number, count)
        self._last_end = self._position
        return done

    def readline(self, size: int | None = -1, /) -> bytes:
        """One line, looked for in what is in memory."""
        start, limit = self._position, self._size if size is None or size < 0 else self._position + size
        line = b""
        while self._position < min(limit, self._size) and not line.endswith(b"\n"):
            number = self._position // WINDOW
            stop = min(limit, number * WINDOW + self._length(number), self._position + 2**16)
            piece = bytes(self._bytes(number, self._position, stop))
            line += piece[: piece.index(b"\n") + 1] if b"\n" in piece else piece
            self._position = start + len(line)
        return line

    def close(self) -> None:
        """Stop fetching, and let the memory go."""
        if self.closed:
            return
        self._cancel.set()
        self._thread.join(LEAVE_S)
        _counters.count(self._function, self._location.url.scheme, bytes_read=sum(self._come))
        with contextlib.suppress(BufferError):  # a request that hangs holds it: it goes when that ends
            self._memory.close()
        super().close()

    # ---- windows

    def _length(self, number: int) -> int:
        return min(WINDOW, self._size - number * WINDOW)

    def _bytes(self, number: int, start: int, stop: int) -> Any:
        """Bytes of one window, waited for."""
        if number in self._gone:
            return _transfer.read_range(self._location, self._info, start, stop)
        if self._come[number] < self._length(number):
            with self._news:
                self._news.wait_for(lambda: self._error is not None or self._come[number] >= self._length(number))
            if self._come[number] < self._length(number):
                raise cast(BaseException, self._error)
        return memoryview(self._memory)[start:stop]

    def _copy(self, number: int, start: int, target: memoryview) -> None:
        """Copy bytes of one window; large ones while other threads go on, those that fetch above all."""
        source = self._bytes(number, start, start + len(target))
        if len(target) < LARGE or number in self._gone:
            target[:] = source
        else:
            address = ctypes.addressof(ctypes.c_char.from_buffer(target))
            ctypes.memmove(address, self._address + start, len(target))

    def _note_skipped(self) -> None:
        """Take a small gap between two reads for read."""
        at, end = self._last_end, self._position
        while at < end <= self._last_end + SKIPPED:
            number = at // WINDOW
            count = min(end, number * WINDOW + self._length(number)) - at
            if count <= 0:
                return  # behind the end of the file
            self._note_read(number, count)
            at += count

    def _note_read(self, number: int, count: int) -> None:
        self._read[number] += count
        if self._read[number] >= self._length(number) and number not in self._gone and hasattr(mmap, "MADV_DONTNEED"):
            # What is read a second time after this, which nobody does much, is fetched again.
            self._gone.add(number)
            self._memory.madvise(mmap.MADV_DONTNEED, number * WINDOW, self._length(number))

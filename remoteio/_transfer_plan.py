"""What a transfer consists of: files, the pieces they are moved in, and how many at a time.

The local side is read and written by descriptor and offset, so that pieces of one file
may move at once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from remoteio._store import Info
from remoteio._stores import Location

Buffer = Any  # what holds bytes and has the buffer protocol, which typing names from Python 3.12 on

MIB = 2**20
WINDOW = 8 * MIB  # bytes of one ranged request
SMALL = MIB  # files up to this size wait for the store more than for bytes
STREAMS = 8  # requests in flight, where bytes are what takes the time
SMALL_STREAMS = 24  # ... and where waiting is
PATIENCE_S = 0.3
LARGE_FILES = 4  # files in parts that are sent at a time


class _Local:
    """A local file of a transfer: one descriptor, which no thread uses once it is closed.

    Attributes:
        location: Its object.
        path: The local file.
    """

    def __init__(self, path: str, location: Location) -> None:
        self.path = path
        self.location = location
        self._descriptor: int | None = None
        self._closed = False
        # A number that was closed may soon be another file's: reading and writing hold this.
        self._lock = threading.Lock()

    def _opened(self, flags: int) -> int:
        if self._closed:
            raise OSError(errno.ECANCELED, "the transfer was given up")
        if self._descriptor is None:
            self._descriptor = os.open(self.path, flags | os.O_CLOEXEC, 0o600)
        return self._descriptor

    def close(self) -> None:
        """Close the descriptor for good; more than once is fine."""
        self._closed = True
        if self._lock.acquire(timeout=PATIENCE_S):  # a disk that hangs must not hold Ctrl-C
            descriptor, self._descriptor = self._descriptor, None
            self._lock.release()
            if descriptor is not None:
                os.close(descriptor)

    def _about(self, error: OSError) -> OSError:
        number = error.errno or errno.EIO
        return OSError(number, error.strerror or os.strerror(number), self.path)


class Incoming(_Local):
    """A local file that is being filled, at several places at once.

    Attributes:
        info: The object, as it was described.
        size: Bytes in all; None where the store does not know.
    """

    def __init__(self, location: Location, info: Info, path: str) -> None:
        super().__init__(path, location)
        self.info = info
        self.size = info.size
        self._left = info.size
        self._made = False

    def pieces(self) -> Iterator[tuple[int, int]]:
        """First byte, and one past the last, of the ranges it is fetched in; one empty range for an empty file."""
        size = self.size or 0
        for start in range(0, max(size, 1), WINDOW):
            yield start, min(start + WINDOW, size)

    def write(self, data: Buffer, offset: int) -> bool:
        """Put bytes at their place; the file, which must not exist, is made by the first ones.

        Returns:
            Whether these were the last ones; the file is then closed.

        Raises:
            OSError: The disk is full, or failed; the local path is the filename.
        """
        view = memoryview(data)
        with self._lock:
            try:
                descriptor = self._opened(os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
                self._made = True
                if self._left is not None:
                    self._left -= len(view)
                while view:
                    done = os.pwrite(descriptor, view, offset)
                    view, offset = view[done:], offset + done
            except OSError as error:
                raise self._about(error) from None
            if self._left != 0:
                return False
        self.finish()
        return True

    def finish(self) -> None:
        """Close the file when all has come.

        Raises:
            OSError: It is not of the object's size.
        """
        self.close()
        found = os.stat(self.path).st_size
        if self.size is not None and found != self.size:
            raise self.location.error(errno.EIO, f"{found} of {self.size} bytes came")

    def discard(self) -> None:
        """Leave nothing of it on the disk."""
        self.close()
        if self._made:
            self._made = False
            with contextlib.suppress(OSError):  # it is gone already
                os.unlink(self.path)


class Outgoing(_Local):
    """A local file that is being sent.

    Attributes:
        size: Its bytes when the transfer began.
        sent: What the store has now; None before.
    """

    def __init__(self, path: str, location: Location) -> None:
        super().__init__(path, location)
        self.size = os.stat(path).st_size
        self.sent: Info | None = None

    def read(self, offset: int, count: int) -> bytes:
        """Bytes of one part.

        Raises:
            OSError: The file became shorter: it must never be published.
        """
        pieces: list[bytes] = []
        with self._lock:
            try:
                descriptor = self._opened(os.O_RDONLY)
                while count:
                    piece = os.pread(descriptor, count, offset)
                    if not piece:
                        message = f"the file became shorter than its {self.size} bytes while it was sent"
                        raise OSError(errno.EIO, message)
                    pieces.append(piece)
                    offset, count = offset + len(piece), count - len(piece)
            except OSError as error:
                raise self._about(error) from None
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much goes on at once.

    Attributes:
        requests: Requests in flight; parts in flight where files are sent in parts.
        files: Files in parts that are sent at a time.
    """

    requests: int
    files: int = LARGE_FILES


def limits(sizes: Sequence[int], max_concurrency: int | None) -> Limits:
    """How much goes on at once for files of these sizes."""
    if max_concurrency is not None:
        if max_concurrency < 1:
            raise ValueError(f"max_concurrency is a number from 1 on, not {max_concurrency}")
        return Limits(max_concurrency, min(LARGE_FILES, max_concurrency))
    mostly_small = sum(size <= SMALL for size in sizes) > len(sizes) // 2
    return Limits(SMALL_STREAMS if mostly_small else STREAMS)

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
WINDOW = 8 * MIB  # bytes of one ranged request at least, and of one part
SMALL = MIB  # files up to this size wait for the store more than for bytes
LARGEST_WINDOW = 64 * MIB
STREAMS = 12  # requests in flight, where bytes are what takes the time
SMALL_STREAMS = 24  # ... and where waiting is
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
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._users = 0
        self._closed = False

    @contextlib.contextmanager
    def _opened(self, flags: int) -> Iterator[int]:
        """The descriptor, for as long as the block lasts: its number is not another file's before."""
        with self._lock:
            if self._closed:
                raise OSError(errno.ECANCELED, "the transfer was given up")
            if self._descriptor is None:
                self._descriptor = os.open(self.path, flags | os.O_CLOEXEC, 0o600)
            self._users += 1
            descriptor = self._descriptor
        try:
            yield descriptor
        finally:
            with self._lock:
                self._users -= 1
            if self._closed:
                self.close()

    def close(self) -> None:
        """Close the descriptor for good, or let its last user do so; more than once is fine."""
        with self._lock:
            self._closed = True
            if self._users or self._descriptor is None:
                return
            descriptor, self._descriptor = self._descriptor, None
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

    def pieces(self, window: int = WINDOW) -> Iterator[tuple[int, int]]:
        """First byte, and one past the last, of the ranges it is fetched in; one empty range for an empty file."""
        size = self.size or 0
        for start in range(0, max(size, 1), window):
            yield start, min(start + window, size)

    def write(self, data: Buffer, offset: int) -> bool:
        """Put bytes at their place; the file, which must not exist, is made by the first ones.

        Returns:
            Whether these were the last ones; the file is then closed.

        Raises:
            OSError: The disk is full, or failed; the local path is the filename.
        """
        view = memoryview(data)
        count = len(view)
        try:
            with self._opened(os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW) as descriptor:
                self._made = True
                while view:
                    done = os.pwrite(descriptor, view, offset)
                    view, offset = view[done:], offset + done
        except OSError as error:
            raise self._about(error) from None
        with self._lock:
            if self._left is None:
                return False
            self._left -= count
            complete = self._left == 0
        if complete:
            self.finish()
        return complete

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


class UnexpectedError(FileExistsError):
    """An object was not replaced, as it is not the expected one; ``path`` is the local file that was to go there."""

    path: str


class Outgoing(_Local):
    """A local file that is being sent.

    Attributes:
        size: Its bytes when the transfer began.
        expected: The version that it may replace; empty where nothing may be there, None where anything may.
        sent: What the store has now; None before.
    """

    def __init__(self, path: str, location: Location, expected: str | None = None) -> None:
        super().__init__(path, location)
        found = os.stat(path)
        self.size = found.st_size
        self._stamp = (found.st_size, found.st_mtime_ns)
        self.expected = expected
        self.sent: Info | None = None

    def refused(self, error: OSError) -> OSError:
        """What an error of sending it is: that another object is there, where the store's answer says so."""
        numbers = (errno.EEXIST, errno.ENOENT) if self.expected else (errno.EEXIST,)
        if self.expected is None or error.errno not in numbers:
            return error
        raised = UnexpectedError(errno.EEXIST, error.strerror, error.filename)
        raised.path = self.path
        raised.__cause__ = error
        return raised

    def read(self, offset: int, count: int) -> bytes:
        """Bytes of one part.

        Raises:
            OSError: The file became shorter, or one in parts was written to: it must never be published.
        """
        pieces: list[bytes] = []
        try:
            with self._opened(os.O_RDONLY) as descriptor:
                if self.size > WINDOW:  # else all of it is read at once
                    self._require_unchanged(descriptor)
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

    def _require_unchanged(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        if found.st_size >= self.size and (found.st_size, found.st_mtime_ns) != self._stamp:
            raise OSError(errno.EIO, "the file was written to while it was sent: its parts would not belong together")


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


def window(total: int, streams: int) -> int:
    """Bytes of one ranged request: large ones cost the store less, and small ones end at the same time."""
    share = -(-total // (2 * streams * MIB)) * MIB
    return min(max(WINDOW, share), LARGEST_WINDOW)

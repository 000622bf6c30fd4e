"""What every raw remote file has in common: a local file's answers to everything but moving bytes."""

from __future__ import annotations

import atexit
import errno
import io
import operator
import os
import threading
from typing import Any, NoReturn

from remoteio._publish import warn_unclosed
from remoteio._stores import Location

__all__ = ["RawFile", "readable_view", "seek_target", "writable_view"]


class RawFile(io.RawIOBase):
    """Base of the raw readers and of the spool.

    Attributes:
        name: The URL as the caller gave it.
        mode: The mode as a local raw file tells it, such as ``"rb+"``.
        closefd: Always true, as for a local file that was opened by its name.
        program_ended: Whether the interpreter is being taken down: the modules' globals may be gone.
    """

    closefd = True
    program_ended = False

    def __init__(self, location: Location, name: Any, mode: str) -> None:
        self.name = name
        self.mode = mode
        self._location = location
        self._lock = threading.RLock()
        self._pid = os.getpid()

    def __repr__(self) -> str:
        if self.closed:
            return f"<{type(self).__name__} [closed]>"
        return f"<{type(self).__name__} name={self.name!r} mode={self.mode!r} closefd=True>"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"cannot pickle {type(self).__name__!r} object")

    def isatty(self) -> bool:
        self._check_open()
        return False

    def seekable(self) -> bool:
        self._check_open()
        return True

    def read(self, size: int | None = -1, /) -> bytes | None:
        self._check_open()
        self._check_readable()
        return self.readall() if size is None or size < 0 else super().read(size)

    def readall(self) -> bytes:
        self._check_open()
        if not self.readable():
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))  # a local raw file says it so
        return self._read_all()

    def _read_all(self) -> bytes:
        """Everything from the position on."""
        return super().readall()

    def _check_readable(self) -> None:
        if not self.readable():
            raise io.UnsupportedOperation("File not open for reading")

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def _dealloc_warn(self, source: object) -> None:
        # The layers above call this where they are collected unclosed, as they do on a local file.
        if not self.program_ended:
            warn_unclosed(source)

    def _guard(self) -> threading.RLock:
        """The lock. A forked child gets its own: the parent's may be held by a thread that the child has not."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._lock = threading.RLock()
            self._after_fork()
        return self._lock

    def _after_fork(self) -> None:
        """Let go of what only the parent process can use."""


@atexit.register
def _end_of_program() -> None:
    RawFile.program_ended = True


def seek_target(offset: Any, whence: int, position: int, end: int) -> int:
    """Where a seek leads, with the errors of ``lseek``.

    Args:
        offset: As given to ``seek``.
        whence: One of the ``os.SEEK_`` numbers.
        position: Where the file stands.
        end: Its size.

    Raises:
        OSError: EINVAL for a negative place or an unknown whence; ENXIO where there are
            no data behind the offset.
        OverflowError: The offset is no 64-bit number.
    """
    offset = operator.index(offset)
    if not -(2**63) <= offset < 2**63:
        raise OverflowError("Python int too large to convert to C long")
    target = -1
    if whence == os.SEEK_SET:
        target = offset
    elif whence == os.SEEK_CUR:
        target = position + offset
    elif whence == os.SEEK_END:
        target = end + offset
    elif whence in (getattr(os, "SEEK_DATA", None), getattr(os, "SEEK_HOLE", None)):
        if not 0 <= offset < end:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        target = offset if whence == os.SEEK_DATA else end
    if not 0 <= target < 2**63:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return target


def readable_view(data: Any) -> memoryview:
    """The bytes of a buffer.

    Raises:
        TypeError: It is none.
    """
    try:
        return memoryview(data).cast("B")
    except TypeError:
        raise TypeError(f"a bytes-like object is required, not {type(data).__name__!r}") from None


def writable_view(buffer: Any) -> memoryview:
    """The bytes of a writable buffer.

    Raises:
        TypeError: It is none.
    """
    try:
        view = memoryview(buffer)
    except TypeError:
        view = None
    if view is None or view.readonly:
        raise TypeError(f"readinto() argument must be read-write bytes-like object, not {type(buffer).__name__}")
    return view.cast("B")

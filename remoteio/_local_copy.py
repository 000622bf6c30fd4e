"""The nameless local file behind an open handle, where one is needed."""

from __future__ import annotations

import io
import os
import tempfile
from typing import IO, BinaryIO, cast

from remoteio import _transfer
from remoteio._store import Info
from remoteio._stores import Location

__all__ = ["copied", "copy_rest", "fetch", "set_append", "temporary"]

COPY_CHUNK = 2**20


def temporary() -> io.FileIO:
    """A nameless temporary file."""
    return tempfile.TemporaryFile(buffering=0, prefix="remoteio-")


def fetch(location: Location, info: Info) -> io.FileIO:
    """A temporary file with the whole of the object that was described.

    Raises:
        OSError: The object could not be read whole, or the disk is full. Nothing stays.
    """
    file = temporary()
    try:
        # Buffered, because a raw file may write less than it was given.
        target = io.BufferedRandom(file)
        _transfer.fetch_into(location, info, cast(BinaryIO, target))
        target.flush()
        target.detach()
    except BaseException:
        file.close()
        raise
    return file


def copy_rest(source: IO[bytes], start: int, target: IO[bytes]) -> None:
    """Write what a body holds from a place on at another's position."""
    source.seek(start)
    while chunk := source.read(COPY_CHUNK):
        while chunk:
            chunk = chunk[target.write(chunk) or 0 :]


def copied(source: IO[bytes], start: int) -> io.FileIO:
    """A temporary file with what a body holds from a place on.

    Raises:
        OSError: The disk is full. Nothing stays.
    """
    file = temporary()
    try:
        # By chunks: a view of the whole body in the traceback of a full disk would keep the body from closing.
        copy_rest(source, start, file)
    except BaseException:
        file.close()
        raise
    return file


def is_mapped(descriptor: int) -> bool:
    """Whether this process has the file mapped so that changes reach it; False where the system does not tell.

    Source: proc(5), ``/proc/self/maps``.
    """
    inode = str(os.fstat(descriptor).st_ino)
    try:
        with os.fdopen(os.open("/proc/self/maps", os.O_RDONLY), "r") as file:
            fields = [line.split(None, 5) for line in file]
    except OSError:
        return False
    return any(len(each) > 4 and each[4] == inode and each[1][1] == "w" and each[1][3] == "s" for each in fields)


def set_append(descriptor: int) -> None:
    """Have the system itself put every write through this descriptor at the end."""
    import fcntl

    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_APPEND)

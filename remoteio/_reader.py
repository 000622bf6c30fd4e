"""Reading a remote file: a raw reader over ranges of one version of an object.

Above it stand the standard library's own ``BufferedReader`` and ``TextIOWrapper``. The
reader keeps one block. Reads that go on where the last block ended are taken for a
sequential run: then blocks grow, and several are fetched ahead in parallel. A jump
drops what was fetched ahead and starts again with a small block.
"""

from __future__ import annotations

import concurrent.futures
import errno
import io
import os
import tempfile
from collections import deque
from collections.abc import Callable
from typing import Any, BinaryIO, TypeVar

from remoteio import _counters, _local_copy, _transfer
from remoteio._lookup import RENEWALS
from remoteio._raw import RawFile, readable_view, seek_target, writable_view
from remoteio._store import Info
from remoteio._stores import Location
from remoteio.errors import NoDescriptorError, ObjectChangedError

T = TypeVar("T")

KIB = 2**10
MIB = 2**20

FIRST_BLOCK = 256 * KIB
WHOLE_BELOW = MIB  # a file up to this size is fetched in one request
LARGEST_BLOCK = 8 * MIB
BLOCKS_AHEAD = 4
BUFFER_SIZE = 128 * KIB  # of the BufferedReader above, where the caller names none
STREAM_MEMORY = 8 * MIB


class RawReader(RawFile):
    """A raw file for reading: its position, and a local file's refusals.

    Attributes:
        unbuffered: Whether it is used as it is, by code that expects as many bytes from one
            read as a local disk gives: all it asked for.
        gives_descriptor: Whether ``fileno`` fetches the whole file and gives a descriptor of
            that copy, instead of refusing.
    """

    unbuffered = False
    gives_descriptor = False

    def __init__(self, location: Location, name: Any) -> None:
        super().__init__(location, name, "rb")
        self._position = 0
        self._fetched = 0
        self._local: io.FileIO | None = None  # the whole file, once somebody was given its descriptor

    # ---- what a subclass fills in

    def _end(self) -> int:
        """Where the file ends."""
        raise NotImplementedError

    def _read_into(self, view: memoryview) -> int:
        """Fill some of a non-empty view from the position on; 0 at the end."""
        raise NotImplementedError

    def _read_rest(self) -> bytes:
        """Everything from the position on; the position is moved."""
        return io.RawIOBase.readall(self)

    def _fetch_local(self) -> io.FileIO:
        """The whole file as a local one."""
        raise NotImplementedError

    def _drop(self) -> None:
        """Let go of everything held."""

    # ---- a file's answers

    def readable(self) -> bool:
        self._check_open()
        return True

    def writable(self) -> bool:
        self._check_open()
        return False

    def fileno(self) -> int:
        self._check_open()
        if not self.gives_descriptor:
            error = NoDescriptorError(
                f"a remote file has no file descriptor: {self._location.url.shown};"
                " remoteio.staged_local(...) gives a local file that has one"
            )
            error.errno = errno.ENOTSUP
            raise error
        with self._guard():
            if self._local is None:
                file = self._fetch_local()
                file.seek(self._position)
                self._drop()
                self._local = file
            return self._local.fileno()

    def tell(self) -> int:
        self._check_open()
        return self._position if self._local is None else self._local.tell()

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._check_open()
        with self._guard():
            if self._local is not None:
                return self._local.seek(offset, whence)
            end = self._end() if whence not in (os.SEEK_SET, os.SEEK_CUR) else 0
            self._position = seek_target(offset, whence, self._position, end)
            return self._position

    def truncate(self, size: int | None = None, /) -> int:
        self._check_open()
        raise io.UnsupportedOperation("File not open for writing")

    def write(self, data: Any, /) -> int:
        self._check_open()
        readable_view(data)
        raise io.UnsupportedOperation("File not open for writing")

    def readinto(self, buffer: Any, /) -> int:
        self._check_open()
        view = writable_view(buffer)
        count = 0
        with self._guard():
            if self._local is not None:
                return self._local.readinto(view) or 0
            while count < len(view) and (got := self._read_into(view[count:])):
                self._position += got
                count += got
                if not self.unbuffered:
                    break  # the layer above asks again where it needs more
            return count

    def _read_all(self) -> bytes:
        with self._guard():
            return self._read_rest() if self._local is None else self._local.readall()

    def close(self) -> None:
        if self.closed:
            return
        if self.program_ended:
            super().close()
            return
        if getattr(self, "_finalizing", False):
            self._dealloc_warn(self)
        try:
            self._drop()
            if self._local is not None:
                self._local.close()
            if self._fetched:
                _counters.count("open", self._location.url.scheme, bytes_read=self._fetched)
        finally:
            super().close()


class RangedReader(RawReader):
    """A file of known size, read by ranges of exactly the version that was there at ``open``."""

    def __init__(self, location: Location, info: Info, name: Any) -> None:
        super().__init__(location, name)
        self._describe(info)
        self._told = False  # whether anything of this version, if only its size, is known outside
        self._block = memoryview(b"")
        self._block_start = 0
        self._ahead: deque[tuple[int, int, concurrent.futures.Future[bytes]]] = deque()
        self._run_end = -1  # where the last block ended: reading on from there is sequential

    def _end(self) -> int:
        self._told = True
        return self._size

    def _read_into(self, view: memoryview) -> int:
        return self._newest(lambda: self._read_some(view))

    def _newest(self, read: Callable[[], T]) -> T:
        """Read; a file of which nothing was told yet, and that was replaced since it was opened, is the new one."""
        for _ in range(RENEWALS):
            try:
                found = read()
                break
            except ObjectChangedError:
                info = None if self._told else self._location.store.head(self._location.key)
                if info is None or info.is_dir or info.size is None:
                    raise
                self._describe(info)
        else:
            found = read()
        self._told = True
        return found

    def _describe(self, info: Info) -> None:
        self._info = info
        self._size = info.size or 0
        self._step = self._size if self._size <= WHOLE_BELOW else FIRST_BLOCK

    def _read_some(self, view: memoryview) -> int:
        left = min(len(view), self._size - self._position)
        if left <= 0:
            return 0
        inside = self._position - self._block_start
        if not 0 <= inside < len(self._block):
            if left >= LARGEST_BLOCK and not self._ahead:
                self._fill(view[:left], self._position)
                return left
            self._obtain(self._position)
            inside = self._position - self._block_start
        count = min(left, len(self._block) - inside)
        view[:count] = self._block[inside : inside + count]
        return count

    def _read_rest(self) -> bytes:
        return self._newest(self._read_whole_rest)

    def _read_whole_rest(self) -> bytes:
        # In one allocation, fetched by parallel ranges.
        left = self._size - self._position
        if left <= 0:
            return b""
        if left <= FIRST_BLOCK or (left <= WHOLE_BELOW and not self._ahead):
            inside = self._position - self._block_start
            if inside < 0 or inside + left > len(self._block):
                self._forget()
                self._keep(self._position, self._fetch(self._position, self._size))
                inside = 0
            data = bytes(self._block[inside : inside + left])
        else:
            # A BytesIO owns its bytes alone, so it lets them be written in place and then gives them away.
            holder = io.BytesIO(bytes(left))
            with holder.getbuffer() as view:
                self._fill(view, self._position)
            data = holder.getvalue()
        self._position += left
        return data

    def _fetch_local(self) -> io.FileIO:
        file = self._newest(lambda: _local_copy.fetch(self._location, self._info))
        self._fetched += self._size
        return file

    # ---- blocks

    def _obtain(self, position: int) -> None:
        """Make the block that holds a position the current one."""
        try:
            while self._ahead and not self._ahead[0][0] <= position < self._ahead[0][1]:
                if position < self._ahead[0][0]:
                    self._forget()
                    break
                self._ahead.popleft()[2].cancel()
            if self._ahead:
                start, _, future = self._ahead.popleft()
                self._keep(start, self._count(future.result()))
                self._look_ahead()
            elif position == self._run_end:
                # The second block in a row: a sequential run begins.
                self._step = min(self._step * 2, LARGEST_BLOCK)
                self._look_ahead()
                start, _, future = self._ahead.popleft()
                self._keep(start, self._count(future.result()))
                self._look_ahead()
            else:
                self._step = self._size if self._size <= WHOLE_BELOW else FIRST_BLOCK
                self._keep(position, self._fetch(position, min(position + self._step, self._size)))
        except BaseException:
            # Nothing half-known stays, so that the read can be tried again.
            self._forget()
            raise

    def _look_ahead(self) -> None:
        """Have the next blocks on their way, each twice the one before up to the largest."""
        start = self._ahead[-1][1] if self._ahead else self._run_end
        while len(self._ahead) < BLOCKS_AHEAD and start < self._size:
            stop = min(start + self._step, self._size)
            self._ahead.append((start, stop, self._submit(start, stop)))
            self._step = min(self._step * 2, LARGEST_BLOCK)
            start = stop

    def _fill(self, view: memoryview, start: int) -> None:
        """Fill a large view, first from the current block, then by ranges of which a few are in flight."""
        done = 0
        inside = start - self._block_start
        if 0 <= inside < len(self._block):
            done = min(len(view), len(self._block) - inside)
            view[:done] = self._block[inside : inside + done]
        self._forget()
        self._block = memoryview(b"")
        end = start + len(view)
        flying: deque[tuple[int, concurrent.futures.Future[bytes]]] = deque()
        begin = start + done
        try:
            while flying or begin < end:
                while begin < end and len(flying) < BLOCKS_AHEAD:
                    stop = min(begin + LARGEST_BLOCK, end)
                    flying.append((begin, self._submit(begin, stop)))
                    begin = stop
                at, future = flying.popleft()
                data = self._count(future.result())
                view[at - start : at - start + len(data)] = data
        except BaseException:
            for _, future in flying:
                future.cancel()
            raise
        self._run_end = end

    def _submit(self, start: int, stop: int) -> concurrent.futures.Future[bytes]:
        return _transfer.submit_range(self._location, self._info, start, stop)

    def _fetch(self, start: int, stop: int) -> bytes:
        return self._count(_transfer.read_range(self._location, self._info, start, stop))

    def _count(self, data: bytes) -> bytes:
        self._fetched += len(data)
        return data

    def _keep(self, start: int, data: bytes) -> None:
        self._block_start, self._block = start, memoryview(data)
        self._run_end = start + len(data)

    def _forget(self) -> None:
        while self._ahead:
            self._ahead.popleft()[2].cancel()

    def _after_fork(self) -> None:
        self._ahead.clear()

    def _drop(self) -> None:
        if self._pid == os.getpid():
            self._forget()
        self._block = memoryview(b"")


class StreamedReader(RawReader):
    """A file that cannot be read by ranges, or whose size only its end tells: kept locally as far as it was read."""

    def __init__(self, location: Location, name: Any) -> None:
        super().__init__(location, name)
        self._stream: BinaryIO | None = location.store.stream(location.key)
        self._kept = tempfile.SpooledTemporaryFile(max_size=STREAM_MEMORY, prefix="remoteio-")  # noqa: SIM115
        self._have = 0

    def _end(self) -> int:
        while self._stream is not None:
            self._pull()
        return self._have

    def _read_into(self, view: memoryview) -> int:
        while self._have <= self._position and self._stream is not None:
            self._pull()
        count = min(len(view), self._have - self._position)
        if count <= 0:
            return 0
        self._kept.seek(self._position)
        data = self._kept.read(count)
        view[: len(data)] = data
        return len(data)

    def _fetch_local(self) -> io.FileIO:
        self._end()
        return _local_copy.copied(self._kept, 0)

    def _pull(self) -> None:
        assert self._stream is not None
        data = self._stream.read(FIRST_BLOCK)
        if not data:
            self._stream.close()
            self._stream = None
            return
        self._kept.seek(self._have)
        self._kept.write(data)
        self._have += len(data)
        self._fetched += len(data)

    def _drop(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._kept.close()


class LocalReader(io.FileIO):
    """A ``file://`` URL open for reading: the local file itself, under the name that was given."""

    def __init__(self, path: str, name: Any) -> None:
        super().__init__(path, "r")
        self.name = name

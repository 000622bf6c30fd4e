"""Writing a remote file: a spool, which is a local buffer with everything that a local file can do.

The buffer is in memory up to some MiB, then a temporary file. It is published by one
upload when the handle is closed. What was in an object before is not fetched until
somebody looks at it, so that a log can be appended to without being read.
"""

from __future__ import annotations

import contextlib
import errno
import io
import operator
import os
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from remoteio import _at_exit, _counters, _local_copy, _publish, _transfer
from remoteio._publish import Ending, in_io_thread
from remoteio._raw import RawFile, readable_view, seek_target, writable_view
from remoteio._settings import Settings
from remoteio._store import Info, Store
from remoteio._stores import Location
from remoteio.errors import ObjectChangedError

MIB = 2**20

MEMORY_LIMIT = 8 * MIB
SERVER_APPEND_FROM = 8 * MIB  # below this, fetching and sending again is as quick as a copy on the server
APPEND_TRIES = 12
PAUSE_S = 0.1

# The bodies of the open spools. A body that nothing but a handle in a reference cycle refers to would be closed
# by the collector before the handle could publish it.
_BODIES: dict[int, io.BytesIO | io.FileIO] = {}


class Spool(RawFile):
    """The raw layer of a handle that can write.

    Args:
        location: The object.
        name: The URL as the caller gave it.
        mode: The letters of the mode without ``b`` and ``t``, such as ``"r+"``.
        info: The object that is there, for the modes that keep it; None where there is none.
        settings: The scope's options.
        ending: Decides at the end whether to publish.
    """

    def __init__(
        self, location: Location, name: Any, mode: str, info: Info | None, settings: Settings, ending: Ending
    ) -> None:
        super().__init__(location, name, _raw_mode(mode))
        self.ending = ending
        self.covered = False  # whether a layer above answers for closing this one
        self.serial: int | None = None
        self._readable = "+" in mode
        self._append = "a" in mode
        self._exclusive = "x" in mode
        self._interval = settings.flush_interval_s
        self._published_at: float | None = None
        self._dirty = info is None  # a new file is published also where nothing was written
        self._failed: BaseException | None = None
        self._shared = False  # whether somebody was given the descriptor, and may write past us
        self._body: io.BytesIO | io.FileIO = io.BytesIO()
        _BODIES[id(self)] = self._body
        self._old: Info | None = info
        self._old_total = 0  # the old object's size
        self._old_size = 0  # bytes of the old object that stand at the front, untouched
        self._base = 0  # of these, how many are not in the body because nobody asked for them yet
        self._position = 0
        if info is not None:
            self._start_from(info)

    def _start_from(self, info: Info) -> None:
        if info.size is None or not self._location.store.can_range:
            self._take(self._fetch_all(info))
            self._old_size = self._body.seek(0, os.SEEK_END)
        else:
            self._old_size = self._base = info.size
        self._old_total = self._old_size
        if self._append:
            self._position = self._old_size

    @property
    def store(self) -> Store:
        """Where it is published."""
        return self._location.store

    # ---- a file's answers

    def readable(self) -> bool:
        self._check_open()
        return self._readable

    def writable(self) -> bool:
        self._check_open()
        return True

    def fileno(self) -> int:
        self._check_open()
        with self._guard():
            self._fetch_old()
            file = self._as_file()
            if not self._shared:
                self._shared = True
                self._old_size = 0  # from here on nobody knows what was changed
                self._dirty = True
                if self._append:
                    _local_copy.set_append(file.fileno())
                file.seek(self._position)
            return file.fileno()

    def tell(self) -> int:
        self._check_open()
        return self._where()

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._check_open()
        with self._guard():
            target = seek_target(offset, whence, self._where(), self._size())
            self._go(target)
            return target

    def readinto(self, buffer: Any, /) -> int:
        self._check_open()
        self._check_readable()
        view = writable_view(buffer)
        with self._guard():
            position = self._where()
            if position < self._base and len(view):
                self._fetch_old()
            self._body.seek(max(position - self._base, 0))
            count = self._body.readinto(view) or 0
            self._go(position + count)
            return count

    def _read_all(self) -> bytes:
        data = bytearray(max(self._size() - self._where(), 0))
        count = 0
        with memoryview(data) as view:
            while count < len(data) and (got := self.readinto(view[count:])):
                count += got
        return bytes(data[:count])

    def write(self, data: Any, /) -> int:
        self._check_open()
        view = readable_view(data)
        if self._refuse_foreign():
            return len(view)
        with self._guard():
            position = self._size() if self._append else self._where()
            if not len(view):
                return 0
            if position < self._base:
                self._fetch_old()
            try:
                count = self._write_at(position, view)
            except OSError as error:
                self._failed = error
                raise self._about_the_disk(error) from None
            except BaseException as error:
                self._failed = error
                raise
            self._dirty = True
            self._old_size = min(self._old_size, position)
            self._go(position + count)
            return count

    def truncate(self, size: int | None = None, /) -> int:
        self._check_open()
        if self._refuse_foreign():
            return 0
        with self._guard():
            size = self._where() if size is None else operator.index(size)
            if size < 0:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            if size < self._base:
                self._cut_old(size)
            position = self._where()
            if size - self._base > MEMORY_LIMIT:
                self._as_file()
            have = self._size()
            if isinstance(self._body, io.BytesIO) and size > have:
                self._body.write(bytes(size - have))  # which truncate would not
            else:
                self._body.truncate(size - self._base)
            self._go(position)
            self._dirty = True
            self._old_size = min(self._old_size, size)
            return size

    def flush(self) -> None:
        super().flush()
        self.publish_so_far()

    # ---- position and size

    def _where(self) -> int:
        return self._body.tell() if self._shared else self._position

    def _go(self, position: int) -> None:
        if self._shared:
            self._body.seek(position)
        else:
            self._position = position

    def _size(self) -> int:
        """The size of the file; where the descriptor is shared its position stays."""
        if isinstance(self._body, io.BytesIO):
            return self._base + self._body.seek(0, os.SEEK_END)
        return self._base + os.fstat(self._body.fileno()).st_size

    # ---- the body

    def _take(self, body: io.BytesIO | io.FileIO) -> None:
        """Go on with another body, of the same content."""
        self._body.close()
        self._body = _BODIES[id(self)] = body

    def _write_at(self, position: int, view: memoryview) -> int:
        start = position - self._base
        if start + len(view) > MEMORY_LIMIT:
            self._as_file()
        self._body.seek(start)
        return self._body.write(view) or 0

    def _as_file(self) -> io.FileIO:
        """Have the body in a temporary file."""
        if isinstance(self._body, io.FileIO):
            return self._body
        file = _local_copy.copied(self._body, 0)
        self._take(file)
        return file

    def _fetch_old(self) -> None:
        """Put the object's old bytes in front of what was written."""
        if not self._base or self._old is None:
            return
        whole = self._fetch_all(self._old, more=self._size() - self._base)
        try:
            whole.seek(0, os.SEEK_END)
            _local_copy.copy_rest(self._body, 0, whole)
        except BaseException:
            whole.close()
            raise
        self._take(whole)
        self._base = 0

    def _fetch_all(self, info: Info, more: int = 0) -> io.BytesIO | io.FileIO:
        if info.size is not None and self._location.store.can_range and info.size + more <= MEMORY_LIMIT:
            data = _transfer.read_range(self._location, info, 0, info.size) if info.size else b""
            self._count(read=len(data))
            return io.BytesIO(data)
        file = _local_copy.fetch(self._location, info)
        self._count(read=os.fstat(file.fileno()).st_size)
        return file

    def _cut_old(self, size: int) -> None:
        """Make the file end inside the old bytes; to empty it they need not be fetched."""
        if size:
            self._fetch_old()
        else:
            self._take(io.BytesIO())
            self._base = self._old_size = 0

    def _about_the_disk(self, error: OSError) -> OSError:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return error
        detail = f"the temporary copy in {tempfile.gettempdir()} of {self._location.url.shown} cannot grow"
        return OSError(error.errno, f"{os.strerror(error.errno)}: {detail}; TMPDIR names another place")

    def _refuse_foreign(self) -> bool:
        """Whether a write is to be ignored: the last words of an inherited handle, said in a forked child.

        Raises:
            OSError: A write in another process than the one that opened the handle.
        """
        if not self.ending.is_foreign:
            return False
        if self.ending.decided:
            return True
        detail = f"the handle belongs to process {self.ending.owner}; open the file again in this one"
        raise self._location.error(errno.EBADF, detail)

    # ---- the end

    def publish_so_far(self) -> None:
        """Publish what there is, if the scope wants that and the last time is long enough ago."""
        if self._interval is None or self.closed or self.ending.decided or self.ending.is_foreign:
            return
        now = time.monotonic()
        if self._published_at is not None and now - self._published_at < self._interval:
            return
        with self._guard():
            if self._dirty and self._failed is None:
                self._publish()
                self._published_at = time.monotonic()
                self._settle()

    def close(self) -> None:
        if self.closed:
            return
        if getattr(self, "_finalizing", False):
            self._dealloc_warn(self)
        self.ending.close()
        publishing = self._dirty and self.ending.publish()
        try:
            if publishing and in_io_thread():
                # The collector runs us where the upload itself has to run: somebody else waits for it.
                _publish.start_thread(lambda: self._finish(True))
            else:
                self._finish(publishing)
        finally:
            if self.serial is not None:
                _at_exit.unregister(self.serial)
            super().close()

    def _finish(self, publishing: bool) -> None:
        try:
            if publishing:
                self._refuse_broken()
                self._publish()
        finally:
            _BODIES.pop(id(self), None)
            mapped = self._shared and _local_copy.is_mapped(self._body.fileno())
            self._body.close()
        if mapped and self.ending.publish():
            self.ending.warn_of_map()

    def _refuse_broken(self) -> None:
        """Never publish a file of which a write failed, even if whoever wrote went on."""
        if self._failed is None:
            return
        number = self._failed.errno if isinstance(self._failed, OSError) else None
        detail = "a write to its temporary copy failed before, so nothing was published"
        raise self._location.error(number or errno.EIO, detail) from self._failed

    def _publish(self) -> None:
        """Make the store hold what the spool holds."""
        position = self._where()
        try:
            if self._append and not self._shared and self._old_size == self._old_total:
                with _turn_of(self._location):
                    self._publish_appended()
            elif self._old is None:
                self._send(exclusive=self._exclusive)
            else:
                self._refuse_changed(self._old)
                self._publish_over(self._old)
        finally:
            self._go(position)

    def _publish_appended(self) -> None:
        """Publish the old bytes and what was added, behind whatever others appended meanwhile."""
        if self._old is None and not self._location.store.compares:
            self._rebase(self._location.store.head(self._location.key))
        for tries in range(APPEND_TRIES):
            time.sleep(random.uniform(0, PAUSE_S) * tries)
            try:
                self._append_once()
                return
            except (ObjectChangedError, FileNotFoundError, FileExistsError) as error:
                now = self._location.store.head(self._location.key)
                if now is None and self._old is None:
                    raise
                last = error
                self._rebase(now)
        raise last

    def _publish_over(self, old: Info) -> None:
        """Publish in the place of what was looked at, and of nothing else."""
        try:
            if self._base:  # only added to: the old bytes need not come here
                self._append_once()
            else:
                self._send(expected=old.version)
        except FileExistsError:
            if self._location.store.head(self._location.key) is None:
                raise self._location.error(errno.ENOENT) from None
            self._refuse_changed(old)
            raise

    def _append_once(self) -> None:
        if self._old is None:
            self._send(expected="")
            return
        if not self._base:
            self._refuse_changed(self._old)
        elif self._base >= SERVER_APPEND_FROM and self._append_on_server(self._old):
            return
        self._fetch_old()
        self._send(expected=self._old.version)

    def _append_on_server(self, old: Info) -> bool:
        with self._source() as (source, size):
            try:
                done = _transfer.append(self._location, old, source, size)
            except (ObjectChangedError, FileExistsError):
                if not self._is_there():
                    raise
                done = True
        if done:
            self._count(written=size)
        return done

    def _is_there(self) -> bool:
        """Whether what was refused is there already: sent by a request whose answer was lost."""
        now = self._location.store.head(self._location.key)
        with self._source() as (source, size):
            if now is None or now.size != self._base + size:
                return False
            for start in range(0, size, MEMORY_LIMIT):
                piece = source.read(min(MEMORY_LIMIT, size - start))
                at = self._base + start
                if _transfer.read_range(self._location, now, at, at + len(piece)) != piece:
                    return False
        return True

    def _rebase(self, now: Info | None) -> None:
        """Let what was added stand behind another version of the object."""
        if self._base < self._old_size:
            self._take(_local_copy.copied(self._body, self._old_size - self._base))
        self._old = now
        self._old_size = self._old_total = self._base = (now.size or 0) if now is not None else 0

    def _refuse_changed(self, old: Info) -> None:
        """Never undo what somebody else wrote since the file was opened to be changed."""
        now = self._location.store.head(self._location.key)
        if now is not None and not _same(now, old):
            detail = "it was replaced while it was open for update, so nothing was published"
            raise self._location.error(errno.ESTALE, detail)

    def _send(self, *, exclusive: bool = False, expected: str | None = None) -> None:
        with self._source() as (source, size):
            try:
                _transfer.publish(self._location, source, size, exclusive=exclusive, expected=expected)
            except FileExistsError:
                if expected is None or not self._is_there():
                    raise
            self._count(written=size)

    @contextlib.contextmanager
    def _source(self) -> Iterator[tuple[BinaryIO, int]]:
        """The body as a seekable reader, and its size."""
        size = self._size() - self._base
        self._body.seek(0)
        if isinstance(self._body, io.BytesIO):
            yield self._body, size
            return
        reader = io.BufferedReader(self._body)
        try:
            yield cast(BinaryIO, reader), size
        finally:
            reader.detach()

    def _settle(self) -> None:
        """After a publication in the middle: what was published is now the old object."""
        self._dirty = self._shared
        self._exclusive = False
        if self._old is None and not self._append:
            return
        now = self._location.store.head(self._location.key)
        if now is None or now.size is None:
            return
        self._old, self._old_total = now, now.size
        if self._shared:
            return
        if self._base or now.size != self._size():
            self._take(io.BytesIO())
            self._base = now.size
        self._old_size = now.size

    def _count(self, read: int = 0, written: int = 0) -> None:
        _counters.count("open", self._location.url.scheme, bytes_read=read, bytes_written=written)

    def _dealloc_warn(self, source: object) -> None:
        self.ending.drop()
        if not self.ending.is_foreign:
            super()._dealloc_warn(source)

    def __del__(self) -> None:
        # Of a handle in a reference cycle the raw layer can be collected first; what the layers above still hold
        # would then be lost. The outermost layer closes all of them.
        if not self.covered:
            super().__del__()


# Appends of this process's threads to one object follow one another, also where the store compares nothing.
_TURNS = [threading.RLock() for _ in range(64)]


def _turn_of(location: Location) -> threading.RLock:
    return _TURNS[hash((location.store.protocol, location.key)) % len(_TURNS)]


def _after_fork() -> None:
    _TURNS[:] = [threading.RLock() for _ in _TURNS]


os.register_at_fork(after_in_child=_after_fork)


def _raw_mode(mode: str) -> str:
    """How a local raw file tells the mode that it was opened with."""
    letter = "r" if "+" in mode and "w" in mode else mode.strip("+bt")
    return f"{letter}b+" if "+" in mode else f"{letter}b"


def _same(one: Info, other: Info) -> bool:
    if one.version is not None and other.version is not None:
        return one.version == other.version
    return (one.size, one.mtime) == (other.size, other.mtime)

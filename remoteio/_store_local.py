"""``file://``: the local disk as a store, whose writes are whole or not at all.

Only functions that no scope replaces are called here (``os.stat``, ``os.scandir``, ...),
and ``io.FileIO``, so that a local path which looks like a URL stays a local path.
"""

from __future__ import annotations

import errno
import io
import itertools
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from remoteio import _store_errors
from remoteio._store import Info, Store

CHUNK = 2**20


class LocalStore(Store):
    """Files of this machine. Keys are absolute paths, the leading slash included."""

    protocol = "file"
    has_buckets = False
    has_directories = True

    @property
    def fs(self) -> Any:
        """fsspec's own local filesystem."""
        from fsspec.implementations.local import LocalFileSystem

        return LocalFileSystem()

    def same_store(self, other: Store) -> bool:
        return isinstance(other, LocalStore)

    def error(self, number: int, key: str, detail: str = "") -> OSError:
        """The built-in OSError of a number for one key."""
        return _store_errors.os_error(number, self.url_of(key), detail)

    def head(self, key: str) -> Info | None:
        try:
            found = os.stat(key or "/")
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            return None
        except OSError as error:
            raise self._about(error, key) from None
        return Info(key, found.st_size, stat.S_ISDIR(found.st_mode), _version(found), found.st_mtime)

    def is_prefix(self, key: str) -> bool:
        found = self.head(key)
        return found is not None and found.is_dir

    def scan(self, key: str, stem: str = "") -> Iterator[Info]:
        try:
            entries = os.scandir(key or "/")
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise self._about(error, key) from None
        with entries:
            for entry in entries:
                if entry.name.startswith(stem):
                    size = 0 if entry.is_dir() else entry.stat(follow_symlinks=False).st_size
                    yield Info(f"{key}/{entry.name}", size, entry.is_dir())

    def walk(self, key: str, stem: str = "", limit: int | None = None) -> Iterator[Info]:
        return itertools.islice(self._walk(key, stem), limit)

    def _walk(self, key: str, stem: str = "") -> Iterator[Info]:
        for info in self.scan(key, stem):
            if info.is_dir and not os.path.islink(info.key):
                yield Info(f"{info.key}/", 0, True)
                yield from self._walk(info.key)
            else:
                yield info

    def read(self, key: str, start: int = 0, stop: int | None = None, *, info: Info | None = None) -> bytes:
        try:
            with io.FileIO(key) as file:
                found = os.fstat(file.fileno())
                if info is not None and info.version and _version(found) != info.version:
                    raise self.error(errno.ESTALE, key, "the file was replaced while it was being read")
                file.seek(start)
                return _read_all(file, None if stop is None else max(0, stop - start))
        except OSError as error:
            raise self._about(error, key) from None

    def stream(self, key: str) -> BinaryIO:
        try:
            return io.BufferedReader(io.FileIO(key))
        except OSError as error:
            raise self._about(error, key) from None

    def write(
        self, key: str, source: BinaryIO, size: int, *, exclusive: bool = False, expected: str | None = None
    ) -> None:
        try:
            self._write(os.path.realpath(key), source, size, exclusive)
        except OSError as error:
            raise self._about(error, key) from None

    def _write(self, path: str, source: BinaryIO, size: int, exclusive: bool) -> None:
        old = _stat(path)
        if old is not None and not stat.S_ISREG(old.st_mode):
            # A device or a pipe is written to, not replaced.
            with io.FileIO(path, "w") as target:
                _copy_bytes(source, target, size)
            return
        handle, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=os.path.dirname(path))
        try:
            with io.FileIO(handle, "w") as target:
                _copy_bytes(source, target, size)
                os.fchmod(handle, stat.S_IMODE(old.st_mode) if old is not None else 0o666 & ~_umask())
                os.fsync(handle)
            if exclusive:
                os.link(temporary, path)  # fails where the name exists, atomically
            else:
                os.replace(temporary, path)
                temporary = ""
        finally:
            if temporary:
                os.unlink(temporary)

    def append(self, key: str, info: Info, source: BinaryIO, size: int) -> bool:
        return False

    def copy(self, source: str, target: str, info: Info) -> None:
        with self.stream(source) as reader:
            self.write(target, reader, os.stat(source).st_size)

    def delete(self, key: str) -> None:
        try:
            os.unlink(key)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._about(error, key) from None

    def delete_many(self, keys: Iterable[str]) -> Iterator[tuple[str, OSError]]:
        for key in keys:
            try:
                if key.endswith("/"):
                    os.rmdir(key)
                else:
                    os.unlink(key)
            except OSError as error:
                yield key, self._about(error, key)

    def make_directory(self, key: str, *, marker: bool = False) -> None:
        try:
            os.makedirs(key, exist_ok=True)
        except OSError as error:
            raise self._about(error, key) from None

    def note_directory(self, key: str) -> None:
        """Directories stay by themselves here."""

    def forget_directories(self, key: str) -> None:
        try:
            shutil.rmtree(key)
        except OSError as error:
            raise self._about(error, key) from None

    def _about(self, error: OSError, key: str) -> OSError:
        """The same error about the URL."""
        if error.filename == self.url_of(key):
            return error
        number = error.errno or errno.EIO
        return self.error(number, key, "" if error.strerror == os.strerror(number) else str(error.strerror))


def _version(found: os.stat_result) -> str:
    return f"{found.st_dev:x}-{found.st_ino:x}-{found.st_size:x}-{found.st_mtime_ns:x}"


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _umask() -> int:
    # Reading the mask means setting it; the status file tells it without that race.
    with io.FileIO("/proc/self/status") as status:
        for line in status.readall().splitlines():
            if line.startswith(b"Umask:"):
                return int(line.split()[1], 8)
    return 0o022


def _read_all(file: io.FileIO, size: int | None) -> bytes:
    if size is None:
        return file.readall()
    pieces: list[bytes] = []
    while size > 0 and (piece := file.read(size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _copy_bytes(source: BinaryIO, target: io.FileIO, size: int) -> None:
    source.seek(0)
    left = size
    while left:
        block = source.read(min(CHUNK, left))
        if not block:
            raise OSError(errno.EIO, f"{left} of {size} bytes are missing")
        view = memoryview(block)
        while view:
            view = view[target.write(view) :]
        left -= len(block)

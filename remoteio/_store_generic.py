"""Every other fsspec filesystem (http, sftp, smb, hdfs, zip, abfs, ...), by its public methods alone."""

from __future__ import annotations

import errno
import inspect
import itertools
import os
import shutil
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

from remoteio._store import Info
from remoteio._store_objects import ObjectStore

# These keep objects under flat keys: a directory is a prefix, and makedirs might create a bucket.
OBJECT_PROTOCOLS = frozenset("abfs az adl oss obs tos oci b2 cos swift ks3 bos hf http https".split())
# These write in place, so that a reader could see half a file: a temporary name and a move there.
IN_PLACE_PROTOCOLS = frozenset("sftp ssh ftp smb hdfs arrow_hdfs webhdfs dfs mega".split())

WHOLE_UP_TO = 8 * 2**20  # bytes that are sent from memory


_exclusively = threading.RLock()


def _after_fork() -> None:
    global _exclusively
    _exclusively = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


class GenericStore(ObjectStore):
    """A store about which only fsspec's common interface is known."""

    has_buckets = False

    def __init__(
        self, protocol: str, open_fs: Callable[[], Any], secrets: Iterable[str] = (), *, shown: str | None = None
    ) -> None:
        """Keep how to open the filesystem.

        Args:
            protocol: The scheme, aliases resolved.
            open_fs: Opens the filesystem, in this process.
            secrets: What must not stand in a message.
            shown: For chains: the whole URL, which stands in every message.
        """
        super().__init__(protocol, open_fs, secrets)
        self.shown = shown
        self.has_directories = shown is None and protocol not in OBJECT_PROTOCOLS
        self.can_range = not (shown or "").startswith(("gzip", "compression"))

    @property
    def endpoint(self) -> str:
        fs = self.fs
        return f"{type(fs).__name__}-{getattr(fs, '_fs_token', id(fs))}"

    def url_of(self, key: str) -> str:
        if self.shown is not None:
            return self.shown
        return key if "://" in key else str(self.fs.unstrip_protocol(key))

    def _do(self, key: str, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call one method of the filesystem, on its loop where it has one."""
        fs = self.fs
        work = getattr(fs, f"_{name}", None)
        if _is_async(fs) and inspect.iscoroutinefunction(work):
            return self.run(key, lambda: work(*args, **kwargs))
        try:
            return getattr(fs, name)(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - each library has its own classes; all become OSErrors
            raised = self._about(key, error)
        raise raised

    def _about(self, key: str, error: Exception) -> OSError:
        """What a method of the filesystem raised, about the URL: the library may have named a path of its own."""
        raised = self.translated(key, error)
        if raised is not error or "://" in str(raised.filename):
            return raised
        about = self.error(raised.errno or errno.EIO, key)
        about.__cause__ = error
        return about

    # ---- questions

    def head(self, key: str) -> Info | None:
        try:
            found = self._do(key, "info", key)
        except (FileNotFoundError, NotADirectoryError):
            return None
        info = _info(found, key)
        return None if info.is_dir and not self.has_directories else info

    def _head(self, key: str) -> Info:
        return _info(self._do(key, "info", key), key)

    def _anything_below(self, key: str) -> bool:
        try:
            return _info(self._do(key, "info", key), key).is_dir
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _entries(self, key: str) -> Iterator[Info]:
        try:
            listed = self._do(key, "ls", key, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return
        for item in listed:
            info = _info(item, str(item["name"]))
            if info.key.rstrip("/") != key.rstrip("/"):
                yield info

    def scan(self, key: str, stem: str = "") -> Iterator[Info]:
        start = f"{key.rstrip('/')}/"
        seen: set[str] = set()
        for info in self._entries(key):
            plain = Info(info.key.rstrip("/"), info.size, info.is_dir, info.version, info.mtime)
            if plain.key.rpartition("/")[2].startswith(stem):
                seen.add(plain.key)
                yield plain
        for made in self._made_below(key):
            child = start + made[len(start) :].partition("/")[0]
            if child not in seen and made[len(start) :].startswith(stem):
                seen.add(child)
                yield Info(child, 0, True)

    def walk(self, key: str, stem: str = "", limit: int | None = None) -> Iterator[Info]:
        return itertools.islice(self._walk(key, stem), limit)

    def _walk(self, key: str, stem: str = "") -> Iterator[Info]:
        for info in self.scan(key, stem):
            if info.is_dir:
                yield Info(f"{info.key}/", 0, True)
                yield from self._walk(info.key)
            else:
                yield info

    def _list(self, start: str, delimiter: str, limit: int | None = None) -> Iterator[Info]:
        return self.scan(start.rstrip("/"))

    def _buckets(self) -> Iterator[Info]:
        return self.scan("")

    # ---- bytes

    def read(self, key: str, start: int = 0, stop: int | None = None, *, info: Info | None = None) -> bytes:
        if info is not None and info.size is not None:
            stop = info.size if stop is None else min(stop, info.size)
            if start >= stop:
                return b""
        data = bytes(self._do(key, "cat_file", key, start=start or None, end=stop))
        if info is not None:
            self._refuse_replaced(key, info)
        return self.check_length(key, data, None if info is None or stop is None else stop - start)

    def _refuse_replaced(self, key: str, info: Info) -> None:
        # No common interface lets a read name the version that it wants, so it is looked at afterwards.
        if info.version is None:
            return
        now = self._head(key)
        if (now.version, now.size) != (info.version, info.size):
            raise self.error(errno.ESTALE, key, "the file was replaced while it was being read")

    def stream(self, key: str) -> BinaryIO:
        reader: BinaryIO = self._do(key, "open", key, "rb")
        return reader

    def write(
        self, key: str, source: BinaryIO, size: int, *, exclusive: bool = False, expected: str | None = None
    ) -> None:
        if exclusive:
            # These stores know no condition: that nothing is there holds among this process's threads alone.
            with _exclusively:
                if self.head(key) is not None:
                    raise self.error(errno.EEXIST, key)
                self._write(key, source, size)
        else:
            self._write(key, source, size)

    def _write(self, key: str, source: BinaryIO, size: int) -> None:
        if self.has_directories:  # parents are not needed for writing, so they are made where the server wants them
            self._do(key, "makedirs", key.rpartition("/")[0], exist_ok=True)
        if self.protocol not in IN_PLACE_PROTOCOLS:
            self._put(key, key, source, size)
            return
        folder, _, name = key.rpartition("/")
        temporary = f"{folder}/.{name[:200]}.{uuid.uuid4().hex[:12]}.tmp"
        try:
            self._put(key, temporary, source, size)
            self._do(key, "mv", temporary, key)
        except BaseException:
            if self.head(temporary) is not None:
                self._do(key, "rm_file", temporary)
            raise

    def _put(self, key: str, target: str, source: BinaryIO, size: int) -> None:
        source.seek(0)
        if size <= WHOLE_UP_TO:
            self._do(key, "pipe_file", target, self.check_length(key, source.read(size), size))
            return
        with tempfile.NamedTemporaryFile(prefix="remoteio-") as local:  # fsspec sends by blocks what has a name
            shutil.copyfileobj(source, local, WHOLE_UP_TO)
            local.flush()
            if local.tell() != size:
                raise self.error(errno.EIO, key, f"{local.tell()} of {size} bytes could be read")
            self._do(key, "put_file", local.name, target)

    def copy(self, source: str, target: str, info: Info) -> None:
        self._do(target, "cp_file", source, target)

    def move(self, source: str, target: str) -> bool:
        if self.protocol not in IN_PLACE_PROTOCOLS:
            return False
        self._do(source, "mv", source, target)
        return True

    # ---- directories and removal

    def make_directory(self, key: str, *, marker: bool = False) -> None:
        if self.has_directories:
            self._do(key, "makedirs", key, exist_ok=True)
            if self._anything_below(key):
                return
        ObjectStore.note_directory(self, key)

    def note_directory(self, key: str) -> None:
        if not self.has_directories:
            super().note_directory(key)

    def forget_directories(self, key: str) -> None:
        super().forget_directories(key)
        if self.has_directories and self._anything_below(key):
            self._do(key, "rm", key, recursive=True)

    def delete(self, key: str) -> None:
        try:
            self._do(key, "rm_file", key)
        except FileNotFoundError:
            return

    def delete_many(self, keys: Iterable[str]) -> Iterator[tuple[str, OSError]]:
        for key in keys:
            if key.endswith("/"):
                continue
            try:
                self.delete(key)
            except OSError as error:
                yield key, error

    def _put_marker(self, key: str) -> None:
        """No marker is known for these stores."""


def _is_async(fs: Any) -> bool:
    """Whether its coroutines can be awaited: a wrapper such as fsspec's ``dirfs`` has them in any case."""
    inner = getattr(fs, "fs", None)
    return bool(getattr(fs, "async_impl", False)) and (not hasattr(inner, "async_impl") or _is_async(inner))


def _info(found: Any, key: str) -> Info:
    size = found.get("size")
    version = next(
        (str(found[name]) for name in ("ETag", "etag", "generation", "checksum", "mtime") if found.get(name)), None
    )
    mtime = found.get("mtime")
    return Info(
        key,
        None if size is None else int(size),
        found.get("type") == "directory",
        version,
        float(mtime) if isinstance(mtime, (int, float)) else None,
    )

"""fsspec's ``memory://``: one dictionary of files in this process."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from remoteio._store import Info
from remoteio._store_objects import ObjectStore


class MemoryStore(ObjectStore):
    """Files in a dictionary. There are no buckets; a made directory stands in the filesystem's own list."""

    has_buckets = False

    @property
    def endpoint(self) -> str:
        return "" if self.fs.global_store else str(id(self.fs))

    @staticmethod
    def _path(key: str) -> str:
        return f"/{key}" if key else ""

    # ---- directories

    @property
    def _made(self) -> dict[str, None]:
        return dict.fromkeys(path[1:] for path in list(self.fs.pseudo_dirs) if path)

    def make_directory(self, key: str, *, marker: bool = False) -> None:
        self.note_directory(key)

    def note_directory(self, key: str) -> None:
        parts = key.split("/")
        for end in range(1, len(parts) + 1):
            path = self._path("/".join(parts[:end]))
            if path not in self.fs.pseudo_dirs:
                self.fs.pseudo_dirs.append(path)

    def forget_directories(self, key: str) -> None:
        for made in [*self._made_below(key), key]:
            if made and self._path(made) in self.fs.pseudo_dirs:
                self.fs.pseudo_dirs.remove(self._path(made))

    # ---- questions

    def _info(self, path: str, file: Any) -> Info:
        stamp = file.modified.timestamp()
        return Info(path[1:], file.getbuffer().nbytes, False, f"{id(file):x}-{stamp!r}", stamp)

    def _file(self, key: str) -> Any:
        try:
            return self.fs.store[self._path(key)]
        except KeyError:
            raise self.error(errno.ENOENT, key) from None

    def head(self, key: str) -> Info | None:
        file = self.fs.store.get(self._path(key)) if key else None
        return None if file is None else self._info(self._path(key), file)

    def _head(self, key: str) -> Info:
        return self._info(self._path(key), self._file(key))

    def _list(self, start: str, delimiter: str, limit: int | None = None) -> Iterator[Info]:
        begin = f"/{start}" if start.strip("/") else "/"
        seen: set[str] = set()
        for path, file in sorted(self.fs.store.copy().items()):
            if not path.startswith(begin):
                continue
            name, below, _ = path[len(begin) :].partition("/")
            if delimiter and below:
                if name not in seen:
                    seen.add(name)
                    yield Info(f"{begin[1:]}{name}/", 0, True)
            else:
                yield self._info(path, file)

    def scan(self, key: str, stem: str = "") -> Iterator[Info]:
        # The root of memory:// is a directory like any other, not a list of buckets.
        start = f"{key}/" if key else ""
        seen: set[str] = set()
        for info in self._list(start + stem, "/"):
            if info.is_dir:
                info = Info(info.key.rstrip("/"), 0, True)
                seen.add(info.key)
            yield info
        for made in self._made_below(key):
            child = start + made[len(start) :].partition("/")[0]
            if child not in seen and made[len(start) :].startswith(stem):
                seen.add(child)
                yield Info(child, 0, True)

    def walk(self, key: str, stem: str = "", limit: int | None = None) -> Iterator[Info]:
        start = (f"{key}/" if key else "") + stem
        yield from itertools.islice(self._list(start, ""), limit)
        for made in self._made_below(key):
            if made.startswith(start):
                yield Info(f"{made}/", 0, True)

    def _anything_below(self, key: str) -> bool:
        start = f"{self._path(key)}/"
        return any(path.startswith(start) for path in self.fs.store.copy())

    def _buckets(self) -> Iterator[Info]:
        return iter(())

    def _put_marker(self, key: str) -> None:
        """Directories are in the filesystem's own list already: everybody in this process sees them."""

    # ---- bytes

    def read(self, key: str, start: int = 0, stop: int | None = None, *, info: Info | None = None) -> bytes:
        file = self._file(key)
        if info is not None and info.version and self._info(self._path(key), file).version != info.version:
            raise self.error(errno.ESTALE, key, "the object was replaced while it was being read")
        with file.getbuffer() as view:
            return bytes(view[start:stop])

    def write(
        self, key: str, source: BinaryIO, size: int, *, exclusive: bool = False, expected: str | None = None
    ) -> None:
        from fsspec.implementations.memory import MemoryFile

        source.seek(0)
        data = self.check_length(key, source.read(size), size)
        file = MemoryFile(self.fs, self._path(key), data)
        if exclusive:
            if self.fs.store.setdefault(self._path(key), file) is not file:
                raise self.error(errno.EEXIST, key)
            return
        # One assignment: whoever reads sees the old file or the new one, whole.
        self.fs.store[self._path(key)] = file

    def copy(self, source: str, target: str, info: Info) -> None:
        import io

        data = self.read(source, info=info)
        self.write(target, io.BytesIO(data), len(data))

    def delete(self, key: str) -> None:
        self.fs.store.pop(self._path(key), None)

    def delete_many(self, keys: Iterable[str]) -> Iterator[tuple[str, OSError]]:
        for key in keys:
            if not key.endswith("/"):
                self.delete(key)
        return iter(())

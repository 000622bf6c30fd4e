"""Reader and writer for ``torch.distributed.checkpoint`` on URLs.

    from remoteio import checkpoint
    import torch.distributed.checkpoint as dcp

    dcp.save(state, storage_writer=checkpoint.Writer("s3://bucket/run7/step-100"))
    dcp.load(state, storage_reader=checkpoint.Reader("s3://bucket/run7/step-100"))

Beside what ``checkpoint_id=url`` does: each file appears whole or not at all, the metadata in one
step after all others, and what is read is fetched by parallel ranges.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
from collections.abc import Iterator
from typing import Any

from remoteio.errors import MissingPackageError

try:
    from torch.distributed.checkpoint.filesystem import FileSystemBase, FileSystemReader, FileSystemWriter
except ModuleNotFoundError as error:
    raise MissingPackageError("torch is not installed: pip install 'remoteio[torch]'", name=error.name) from error

from remoteio import _adapt, _ahead, _copy, _files, _lookup, _settings, _stores, _transfer_memory, _tree
from remoteio._settings import Settings
from remoteio._store import Info
from remoteio._stores import Location
from remoteio._urls import Url

__all__ = ["Reader", "Writer"]

MOSTLY = 0.5  # the part of a file of which at least so much is wanted is fetched as a whole


class _Store(FileSystemBase):  # type: ignore[misc]  # torch is not typed
    """What DCP asks of a file system, on URLs."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.wanted: dict[str, int] = {}

    def _url(self, path: Any) -> Url:
        url = _stores.parse(path, self._settings)
        if url is None:
            raise ValueError(f"not a URL: {path!r}")
        return url

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        """A file, published when the block ends well."""
        url = self._url(path)
        with self._read(url) if mode == "rb" else _files.open(url, mode, settings=self._settings) as stream:
            yield stream

    def _read(self, url: Url) -> Any:
        location = _lookup.locate(url, self._settings)
        info = _lookup.file(location)
        size = info.size or 0
        wanted = self.wanted.get(url.text, 0)
        if not wanted or not location.store.can_range or info.size is None:
            return _files.open(url, "rb", settings=self._settings)
        if wanted > size * MOSTLY:
            return _ahead.Ahead(location, info, url.given, "torch.distributed.checkpoint.load")
        return contextlib.nullcontext(_Parts(location, info))

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        """A name in a directory."""
        return f"{os.fspath(path).rstrip('/')}/{suffix}"

    def init_path(self, path: str | os.PathLike[str]) -> str:
        """The URL as text."""
        return self._url(path).text

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Copy, then delete."""
        _copy.copy(self._url(path), self._url(new_path), settings=self._settings)
        self.rm_file(path)

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Make a directory."""
        _tree.makedirs(self._url(path), exist_ok=True, settings=self._settings)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it is a URL."""
        return _adapt.target(checkpoint_id)[1] is not None

    def exists(self, path: str | os.PathLike[str]) -> bool:
        """Whether it is there."""
        return bool(_tree.exists(self._url(path), settings=self._settings))

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        """Delete a file."""
        _tree.remove(self._url(path), settings=self._settings)

    def ls(self, path: str | os.PathLike[str]) -> list[str]:
        """The paths in a directory."""
        return [self.concat_path(path, str(name)) for name in _tree.listdir(self._url(path), settings=self._settings)]


class _Parts:
    """A file of which little is wanted: each item is fetched by itself."""

    def __init__(self, location: Location, info: Info) -> None:
        self._location = location
        self._info = info

    def part(self, start: int, size: int) -> io.BytesIO:
        """Some bytes of it, as a file."""
        memory = bytearray(size)
        spans = [(start, memoryview(memory))]
        pieces = _transfer_memory.pieces_of([(start, start + size)])
        _transfer_memory.fill(self._location, self._info, pieces, _transfer_memory.scatter(spans))
        return io.BytesIO(memory)


class _InOneStep:
    """A file system for writing the metadata: instead of writing, deleting and renaming it publishes under the name."""

    def __init__(self, store: _Store) -> None:
        self._store = store

    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Any:
        return self._store.create_stream(os.fspath(path).removesuffix(".tmp"), mode)

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        return self._store.concat_path(path, suffix)

    def exists(self, path: str | os.PathLike[str]) -> bool:
        return False  # what is there is replaced, never deleted first

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """It has its name already."""


class Writer(FileSystemWriter):  # type: ignore[misc]
    """A ``StorageWriter`` for a directory at a URL."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        single_file_per_rank: bool = True,
        sync_files: bool = False,
        thread_count: int = 1,
        per_thread_copy_ahead: int = 10_000_000,
        cache_staged_state_dict: bool = False,
        overwrite: bool = True,
    ) -> None:
        """Choose where and how to write.

        Args:
            path: The directory: a URL, or a local path.
            single_file_per_rank: As for ``FileSystemWriter``.
            sync_files: As there. A store needs no sync, so it is off.
            thread_count: As there.
            per_thread_copy_ahead: As there, in bytes.
            cache_staged_state_dict: As there.
            overwrite: As there.
        """
        super().__init__(
            path,
            single_file_per_rank=single_file_per_rank,
            sync_files=sync_files,
            thread_count=thread_count,
            per_thread_copy_ahead=per_thread_copy_ahead,
            cache_staged_state_dict=cache_staged_state_dict,
            overwrite=overwrite,
        )
        _place(self, path)

    fs: Any

    def finish(self, metadata: Any, results: Any) -> None:
        """Publish the metadata, in one step, when everything else is there."""
        store: Any = self.fs
        if not isinstance(store, _Store):
            super().finish(metadata, results)
            return
        self.fs = _InOneStep(store)
        try:
            super().finish(metadata, results)
        finally:
            self.fs = store

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it can be written to."""
        return _Store.validate_checkpoint_id(checkpoint_id) or bool(super().validate_checkpoint_id(checkpoint_id))


class Reader(FileSystemReader):  # type: ignore[misc]
    """A ``StorageReader`` for a directory at a URL."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Choose what to read.

        Args:
            path: The directory: a URL, or a local path.
        """
        super().__init__(path)
        _place(self, path)

    def read_data(self, plan: Any, planner: Any) -> Any:
        """Read what the plan names, each file in its own order."""
        if isinstance(self.fs, _Store):
            stored = {item.storage_index: self.storage_data[item.storage_index] for item in plan.items}
            self.fs.wanted = {}
            for info in stored.values():
                path = self.fs.init_path(self.fs.concat_path(self.path, info.relative_path))
                self.fs.wanted[path] = self.fs.wanted.get(path, 0) + info.length

            def place(item: Any) -> tuple[str, int]:
                info = stored[item.storage_index]
                return info.relative_path, info.offset

            plan = dataclasses.replace(plan, items=sorted(plan.items, key=place))
        return super().read_data(plan, planner)

    def _slice_file(self, file: Any, sinfo: Any) -> Any:
        if isinstance(file, _Parts):
            return file.part(sinfo.offset, sinfo.length)
        return super()._slice_file(file, sinfo)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it can be read."""
        return _Store.validate_checkpoint_id(checkpoint_id) or bool(super().validate_checkpoint_id(checkpoint_id))


def _place(one: Any, path: str | os.PathLike[str]) -> None:
    """Have a reader or writer work on URLs, if its path is one."""
    local, url = _adapt.target(path)
    if url is None:
        one.path = one.fs.init_path(local)
        return
    one.fs = _Store(_settings.current())
    one.path = one.fs.init_path(path)

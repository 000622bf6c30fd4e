"""What every store can do, in words of files: the interface, and the generic store over fsspec.

A key is everything after ``scheme://`` with ``.`` and ``..`` resolved and no trailing
slash; for stores with buckets the bucket is its first segment. The empty key is the root.
Keys are literal: nothing here expands a pattern. No answer is cached.

Every method raises OSErrors with ``errno`` set and the redacted URL in ``filename``.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, BinaryIO


@dataclass(frozen=True, slots=True)
class Info:
    """One file, or one directory, as the store described it.

    Attributes:
        key: The full key. A marker object's key keeps its trailing slash.
        size: Bytes; None where the store does not know before the end.
        is_dir: Whether it is a directory.
        version: What changes when the content does (etag, generation, checksum), as the
            store gave it; None where it gives nothing of the kind.
        mtime: Seconds since the epoch; None where unknown.
    """

    key: str
    size: int | None
    is_dir: bool = False
    version: str | None = None
    mtime: float | None = None


class Store(abc.ABC):
    """A place where files are kept.

    Attributes:
        protocol: The scheme under which the store was opened, aliases resolved.
        fs: The fsspec filesystem behind it.
        has_buckets: Whether the first segment of a key is a bucket.
        has_directories: Whether directories exist by themselves there, so that parents are
            needed and ``make_directory`` really makes one. Elsewhere a directory is a prefix.
        can_range: Whether ``read`` of a range fetches that range alone.
        compares: Whether a write can be told which version it may replace.
        last_use: Of the stores that are kept, the one with the lowest number was used longest ago.
    """

    protocol: str
    fs: Any
    has_buckets: bool
    has_directories: bool
    can_range: bool = True
    compares: bool = False
    last_use: int = 0

    @abc.abstractmethod
    def same_store(self, other: Store) -> bool:
        """Whether both reach the same objects under the same keys (so one can copy to the other)."""

    @abc.abstractmethod
    def head(self, key: str) -> Info | None:
        """The file of exactly this key, or a real directory; None only when the store said that there is none.

        Raises:
            OSError: Denied, unreachable, no credentials. Where missing and denied cannot be
                told apart, PermissionError says so.
        """

    @abc.abstractmethod
    def is_prefix(self, key: str) -> bool:
        """Whether anything lies below the key: a file, a marker, a directory made by ``make_directory``.

        The root and an existing bucket are prefixes, also when empty.
        """

    @abc.abstractmethod
    def scan(self, key: str, stem: str = "") -> Iterator[Info]:
        """The direct children of a directory, files and directories, in pages of the store's own size.

        Those alone whose name begins with ``stem``, for which the store is asked where it can tell.

        A name that is a file and a prefix at once comes twice. Marker objects are not entries.
        Nothing is yielded for a key below which there is nothing.
        """

    @abc.abstractmethod
    def walk(self, key: str, stem: str = "", limit: int | None = None) -> Iterator[Info]:
        """Everything below a key, flat and in the store's order, markers and made directories too.

        Directories other than these need not come. One request per page, not per directory.

        Args:
            key: A directory's key.
            stem: What the first segment below it must begin with.
            limit: How many stored keys are enough, at most one page; made directories come besides.
        """

    @abc.abstractmethod
    def read(self, key: str, start: int = 0, stop: int | None = None, *, info: Info | None = None) -> bytes:
        """The bytes from start to stop (exclusive), all of them.

        Args:
            key: A file's key.
            start: First byte wanted.
            stop: One past the last byte; None means to the end.
            info: As ``head`` gave it: the read then fails with ObjectChangedError where the
                object is no longer that one.

        Raises:
            FileNotFoundError: There is no such key.
            ObjectChangedError: The object was replaced.
            OSError: The answer was short, or the store could not be reached.
        """

    def submit_read(self, key: str, start: int, stop: int, info: Info) -> Future[bytes]:
        """Begin a ``read``, to be waited for later; here, where nothing goes on by itself, it is done at once."""
        future: Future[bytes] = Future()
        try:
            future.set_result(self.read(key, start, stop, info=info))
        except OSError as error:
            future.set_exception(error)
        return future

    @abc.abstractmethod
    def stream(self, key: str) -> BinaryIO:
        """A reader from the first byte on, for what cannot be ranged or has no known size."""

    @abc.abstractmethod
    def write(
        self, key: str, source: BinaryIO, size: int, *, exclusive: bool = False, expected: str | None = None
    ) -> None:
        """Publish ``size`` bytes of a seekable source from its start, whole or not at all.

        Args:
            key: The file's key.
            source: A seekable binary reader; it is read, never closed.
            size: How many bytes it holds.
            exclusive: Fail where the key exists, atomically where the store can.
            expected: The version that may be replaced, empty where nothing may be there; where the store compares.

        Raises:
            FileExistsError: ``exclusive``, and the key exists; or it is not the expected one.
            FileNotFoundError: The bucket is missing (or the parent, where directories are real).
            OSError: Nothing was published.
        """

    @abc.abstractmethod
    def append(self, key: str, info: Info, source: BinaryIO, size: int) -> bool:
        """Publish the object's old bytes followed by the source's, copying the old ones on the server.

        Returns:
            False, with nothing done, where the store does not offer it for this object.
        """

    @abc.abstractmethod
    def copy(self, source: str, target: str, info: Info) -> None:
        """Copy one file on the server, whole or not at all.

        Raises:
            ObjectChangedError: The source is no longer the one described, where the store can tell.
        """

    def move(self, source: str, target: str) -> bool:
        """Give a file or a whole directory another name in one step, where the store has such a step.

        Returns:
            False, with nothing done, where it has not: there everything is copied.
        """
        return False

    @abc.abstractmethod
    def delete(self, key: str) -> None:
        """Delete exactly one file. A key that is already gone is not an error here."""

    @abc.abstractmethod
    def delete_many(self, keys: Iterable[str]) -> Iterator[tuple[str, OSError]]:
        """Delete files and markers (keys ending in a slash), in batches; yield those that could not be."""

    @abc.abstractmethod
    def make_directory(self, key: str, *, marker: bool = False) -> None:
        """Make a directory and its parents known; with ``marker`` so that other processes see it."""

    @abc.abstractmethod
    def note_directory(self, key: str) -> None:
        """A directory that was there already was asked for by name: it stays, as a made one does."""

    @abc.abstractmethod
    def forget_directories(self, key: str) -> None:
        """Let the directories made at and below a key be gone (really removing them, where they are real)."""

    def with_folders(self, key: str, below: Iterable[str]) -> Iterator[str]:
        """The keys below a directory that is to be deleted, and what else has to be so that no name of it stays."""
        yield from below

    def url_of(self, key: str) -> str:
        """The URL of a key, for messages."""
        return f"{self.protocol}://{key}"

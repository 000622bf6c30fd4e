"""What object stores have in common: prefixes for directories, markers, made directories."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import errno
import itertools
import os
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, BinaryIO, TypeVar

from remoteio import _store_errors, _store_loop
from remoteio._store import Info, Store

T = TypeVar("T")

# Directories made by this process on stores where nothing is written for them, by store identity. Each is a
# dictionary used as a set whose single operations are atomic, so that a fork at any moment finds it whole.
_MADE: dict[tuple[str, str], dict[str, None]] = {}


# The filesystems opened here that are still in use. A fork's child keeps its parent's for good: one that is collected
# there would try to close its session on a loop whose thread did not survive the fork.
_OPENED: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_INHERITED: list[Any] = []
_serials = itertools.count()


def _keep_those_of_parent() -> None:
    """In a forked child, let the loops of the parent's filesystems say what is true here: that they do not run.

    The finalizers that s3fs and gcsfs run at exit would wait for them otherwise.
    """
    _INHERITED.extend(_OPENED.values())
    _OPENED.clear()
    for fs in _INHERITED:
        loop: Any = getattr(fs, "_loop", None)
        if hasattr(loop, "_thread_id"):
            loop._thread_id = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_those_of_parent)


def split(key: str) -> tuple[str, str]:
    """Bucket, and the key inside it."""
    bucket, _, inner = key.partition("/")
    return bucket, inner


class ObjectStore(Store):
    """Base of the stores that keep objects under flat keys in buckets."""

    has_buckets = True
    has_directories = False

    def __init__(self, protocol: str, open_fs: Callable[[], Any], secrets: Iterable[str] = ()) -> None:
        """Keep how to open the filesystem; it is opened at first use and once more in a forked child."""
        self.protocol = protocol
        self.secrets = tuple(secrets)
        self._open_fs = open_fs
        self._opened: tuple[int, Any] | None = None
        self.clients: dict[str, Any] = {}  # an engine's own, by bucket, made after the filesystem's

    @property
    def fs(self) -> Any:
        """The fsspec filesystem of this process."""
        opened = self._opened
        pid = os.getpid()
        if opened is None or opened[0] != pid:
            opened = self._opened = (pid, self._open_fs())
            _OPENED[next(_serials)] = opened[1]
        return opened[1]

    @property
    @abc.abstractmethod
    def endpoint(self) -> str:
        """Which server this is, so that two scopes that reach the same one are known to."""

    def same_store(self, other: Store) -> bool:
        return isinstance(other, ObjectStore) and (self.protocol, self.endpoint) == (other.protocol, other.endpoint)

    def error(self, number: int, key: str, detail: str = "") -> OSError:
        """The built-in OSError of a number for one key."""
        return _store_errors.os_error(number, self.url_of(key), detail, self.secrets)

    def run(self, key: str, make: Callable[[], Awaitable[T]], *, retry: bool = True) -> T:
        """Run one coroutine of the filesystem; its failure comes as a built-in OSError about the key."""
        try:
            return _store_loop.run(self.fs.loop, make, retry=retry)
        except Exception as error:  # noqa: BLE001 - each library has its own classes; all become OSErrors
            raised = self.translated(key, error)
        raise raised

    def translated(self, key: str, error: Exception) -> OSError:
        """The built-in OSError for a failure about one key; its cause is kept unless it would show a secret."""
        raised = _store_errors.translate(error, self.url_of(key), self.secrets)
        if raised is not error:
            raised.__cause__ = None if _holds(error, self.secrets) else error
        return raised

    # ---- directories made here

    @property
    def _made(self) -> dict[str, None]:
        return _MADE.setdefault((self.protocol, self.endpoint), {})

    def _made_below(self, key: str) -> list[str]:
        start = f"{key}/" if key else ""
        return [made for made in list(self._made) if made.startswith(start)]

    def make_directory(self, key: str, *, marker: bool = False) -> None:
        self._require_bucket(key)
        self.note_directory(key)
        if marker:
            self._put_marker(key)

    def note_directory(self, key: str) -> None:
        parts = key.split("/")
        for end in range(2, len(parts) + 1):
            self._made["/".join(parts[:end])] = None

    def _require_bucket(self, key: str) -> None:
        """Refuse a key whose bucket does not exist. A bucket that may not be listed is taken to exist."""

    def forget_directories(self, key: str) -> None:
        for made in [*self._made_below(key), key]:
            self._made.pop(made, None)

    # ---- questions

    def is_prefix(self, key: str) -> bool:
        if key in self._made or not key or self._made_below(key):
            return True
        return self._anything_below(key)

    def scan(self, key: str, stem: str = "") -> Iterator[Info]:
        if not key:
            yield from self._buckets()
            return
        start = f"{key}/"
        seen: set[str] = set()
        for info in self._list(start + stem, "/"):
            if info.key == start:
                continue
            if info.is_dir:
                info = Info(info.key.rstrip("/"), 0, True)
                if info.key == key or info.key in seen:  # an empty name, of a key with "//"
                    continue
                seen.add(info.key)
            yield info
        for made in self._made_below(key):
            child = start + made[len(start) :].partition("/")[0]
            if child not in seen and made[len(start) :].startswith(stem):
                seen.add(child)
                yield Info(child, 0, True)

    def walk(self, key: str, stem: str = "", limit: int | None = None) -> Iterator[Info]:
        if not key:
            for bucket in self._buckets():
                yield from self.walk(bucket.key)
            return
        start = f"{key}/{stem}"
        seen: set[str] = set()
        for info in self._list(start, "", limit):
            if info.is_dir:
                seen.add(info.key)
            yield info
        for made in self._made_below(key):
            if made.startswith(start) and f"{made}/" not in seen:
                yield Info(f"{made}/", 0, True)

    def head(self, key: str) -> Info | None:
        if not split(key)[1]:
            return None
        try:
            return self._head(key)
        except FileNotFoundError:
            return None
        except PermissionError as denied:
            self._require_missing(key, denied)
            return None

    def _require_missing(self, key: str, denied: PermissionError) -> None:
        """Raise unless a denied HEAD only hid a missing key: without the right to list, the store says 403 for both."""
        try:
            found = any(info.key == key for info in self._list(key, "/", limit=1))
        except PermissionError:
            detail = "missing and denied cannot be told apart without permission to list"
            raise self.error(errno.EACCES, key, f"{detail}; {denied.strerror}") from None
        except FileNotFoundError:
            return
        if found:
            raise denied

    @abc.abstractmethod
    def _head(self, key: str) -> Info:
        """The object's description. Raises FileNotFoundError, PermissionError and others."""

    @abc.abstractmethod
    def _list(self, start: str, delimiter: str, limit: int | None = None) -> Iterator[Info]:
        """What begins with ``bucket/prefix``: files, and (ending in a slash, is_dir) prefixes and markers."""

    @abc.abstractmethod
    def _buckets(self) -> Iterator[Info]:
        """All buckets, as directories."""

    @abc.abstractmethod
    def _put_marker(self, key: str) -> None:
        """Write the zero-byte object ``key/``."""

    def _anything_below(self, key: str) -> bool:
        try:
            found = next(iter(self._list(f"{key}/", "", limit=1)), None)
        except FileNotFoundError:
            return False
        return found is not None or not split(key)[1]

    # ---- pieces that stores share

    @contextlib.contextmanager
    def as_replaced(self, source: str) -> Iterator[None]:
        """Say of a copy whose precondition failed that its source was replaced; no file exists already."""
        try:
            yield
        except FileExistsError as error:
            raised = self.error(errno.ESTALE, source, "it was replaced while it was being copied")
            raise raised from error

    def append(self, key: str, info: Info, source: BinaryIO, size: int) -> bool:
        return False

    def check_length(self, key: str, data: bytes, wanted: int | None) -> bytes:
        """Refuse a body that is shorter or longer than it should be."""
        if wanted is not None and len(data) != wanted:
            raise self.error(errno.EIO, key, f"the store sent {len(data)} of {wanted} bytes")
        return data

    def stream(self, key: str) -> BinaryIO:
        raise self.error(errno.ENOTSUP, key, "objects of this store are read by ranges")


class RangedStore(ObjectStore):
    """Base of the stores that are read by one coroutine per range."""

    @abc.abstractmethod
    async def read_async(self, key: str, start: int, stop: int | None, info: Info | None) -> bytes:
        """One GET of a range, which fails where the object is no longer the one described."""

    def _require_bucket(self, key: str) -> None:
        bucket = split(key)[0]
        try:
            next(iter(self._list(f"{bucket}/", "", limit=1)), None)
        except PermissionError:  # may write without the right to list: the write itself will tell
            return

    def read(self, key: str, start: int = 0, stop: int | None = None, *, info: Info | None = None) -> bytes:
        wanted = _length(start, stop, info)
        if wanted == 0:
            return b""
        return self.check_length(key, self.run(key, lambda: self.read_async(key, start, stop, info)), wanted)

    def submit_read(self, key: str, start: int, stop: int, info: Info) -> Future[bytes]:
        wanted = _length(start, stop, info)

        async def work() -> bytes:
            try:
                if wanted == 0:
                    return b""
                data = await _store_loop.retried(lambda: self.read_async(key, start, stop, info))
                return self.check_length(key, data, wanted)
            except Exception as error:  # noqa: BLE001 - each library has its own classes; all become OSErrors
                raised = self.translated(key, error)
            raise raised

        return asyncio.run_coroutine_threadsafe(work(), self.fs.loop)


def _length(start: int, stop: int | None, info: Info | None) -> int | None:
    """How many bytes a range holds, where that is known before asking."""
    if info is None or info.size is None:
        return None
    end = info.size if stop is None else min(stop, info.size)
    return max(0, end - start)


def _holds(error: BaseException, secrets: tuple[str, ...]) -> bool:
    said = [str(link) for link in _store_errors.chain(error)]
    return any(_store_errors.scrub(text, secrets) != text for text in said)

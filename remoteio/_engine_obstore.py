"""The engine over obstore, where that package is installed and the store can be described to it.

Each bucket is described from the store's live client (`_obstore_s3`, `_obstore_gcs`, `_obstore_azure`). What
cannot be described, or a key that obstore would change, goes to the other engine.

Source: obstore's ``get`` and ``put``; object_store's ``path`` module.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import errno
import logging
import re
import time
from collections.abc import Callable
from typing import Any

from remoteio import _obstore
from remoteio._obstore import Bucket, Dialect, Unmapped
from remoteio._obstore_answers import ELSEWHERE, Answer, Misread, Unreachable
from remoteio._store import Info, Store
from remoteio._store_objects import ObjectStore, split
from remoteio._transfer_loop import Engine
from remoteio._transfer_plan import MIB, SMALL, Buffer, Outgoing

PIECE = MIB // 16  # larger blocks leave the processor's cache before they are written

_logger = logging.getLogger("remoteio")

REASONS: dict[str, str] = {}


class ObstoreEngine:
    """A store through obstore; what its dialect cannot say, through the engine of its live client."""

    name = "obstore"

    def __init__(self, store: ObjectStore, dialect: Dialect, plain: Engine) -> None:
        """Keep the store, how obstore is told of it, and the engine that stands in."""
        self._store = store
        self._dialect = dialect
        self._plain = plain
        self._described: dict[str, asyncio.Future[Bucket | None]] = {}
        self._left: set[tuple[str, str]] = set()

    async def _bucket(self, key: str, way: str) -> Bucket | None:
        """The bucket of a key; None where the other engine is to take it.

        Args:
            key: Bucket and key.
            way: ``fetch`` or ``send``.
        """
        bucket, inner = split(key)
        if not (_is_kept(inner) and self._dialect.is_kept(key)) or (bucket, way) in self._left:
            return None
        waiting = self._described.get(bucket)
        if waiting is None:
            waiting = self._described[bucket] = asyncio.ensure_future(self._describe(bucket))
        return await asyncio.shield(waiting)

    async def _describe(self, bucket: str) -> Bucket | None:
        url = self._store.url_of(bucket)
        try:
            told = await self._dialect.describe(bucket)
            made: Bucket | None = self._store.clients.get(bucket)
            if made is None or made.told != told:
                made = self._store.clients[bucket] = Bucket(self._dialect, told)
        except Unmapped as reason:
            REASONS[url] = str(reason)
        except Exception as error:  # noqa: BLE001 - the store's own client is the one to say what is wrong
            REASONS[url] = type(error).__name__
        else:
            REASONS.pop(url, None)
            return made
        _logger.debug("the obstore engine is not used for %s: %s", url, REASONS[url])
        return None

    def _leave(self, key: str, way: str, reason: str) -> None:
        """Let the other engine do what is still to come one way of a bucket."""
        bucket = split(key)[0]
        self._left.add((bucket, way))
        REASONS[self._store.url_of(bucket)] = reason if way == "fetch" else f"{reason} to an upload"

    async def fetch(self, key: str, start: int, stop: int, info: Info, write: Callable[[Buffer], None]) -> None:
        """Ask once for a range; see `_transfer_loop.Engine`."""
        bucket = await self._bucket(key, "fetch")
        if bucket is None:
            await self._plain.fetch(key, start, stop, info, write)
            return
        begun = False

        def begin(data: Buffer) -> None:
            nonlocal begun
            begun = True
            write(data)

        try:
            body = await self._get(key, bucket, start, stop, info, begin)
        except Exception as error:  # noqa: BLE001 - told apart there
            said = self._said(key, bucket, error)
        else:
            if body is not None:
                write(body)
            return
        reason, doubtful = _why_elsewhere(said), self._dialect.is_doubtful(said)
        # What broke in the middle is resumed at its byte; the other engine would begin anew.
        if begun or not (reason or doubtful):
            raise said from None
        if reason:
            self._leave(key, "fetch", reason)
        await self._plain.fetch(key, start, stop, info, write)
        if doubtful:
            self._leave(key, "fetch", "obstore was refused what the store's own client was given")

    async def _get(
        self, key: str, bucket: Bucket, start: int, stop: int, info: Info, write: Callable[[Buffer], None]
    ) -> Any:
        """The bytes of a small range; of a large one None, when it has been written."""
        import obstore

        wanted = self._dialect.pin(info)
        if not (start == 0 and stop == info.size):
            wanted["range"] = (start, stop)
        if stop - start > SMALL:
            # In a thread of its own, which costs half of what the loop would for each block.
            await _obstore.in_thread(lambda: self._copy(key, bucket, wanted, start, info, write))
            return None
        answer = await obstore.get_async(bucket.down, split(key)[1], options=wanted)
        self._check(key, answer, start, info)
        return await answer.bytes_async()

    def _copy(
        self, key: str, bucket: Bucket, wanted: Any, start: int, info: Info, write: Callable[[Buffer], None]
    ) -> None:
        import obstore

        answer = obstore.get(bucket.down, split(key)[1], options=wanted)
        self._check(key, answer, start, info)
        for block in answer.stream(PIECE):
            write(block)

    def _check(self, key: str, answer: Any, start: int, info: Info) -> None:
        if info.version and self._dialect.version(answer.meta) not in (None, info.version):
            raise self._store.error(errno.ESTALE, key, "the object was replaced while it was being read")
        if answer.range[0] != start:
            raise self._store.error(errno.EIO, key, "the store sent another range than the one asked for")

    def _said(self, key: str, bucket: Bucket, error: Exception) -> Exception:
        if isinstance(error, OSError) and error.filename is not None:
            return error
        if type(error).__name__ == "PreconditionError":
            return self._store.error(errno.ESTALE, key, "the object was replaced while it was being read")
        return bucket.said(error)

    async def send(self, file: Outgoing, moved: Callable[[int], None], beside: int) -> Info:
        """Publish a file; see `_transfer_loop.Engine`."""
        key = file.location.key
        bucket = await self._bucket(key, "send")
        told = 0

        def count(more: int) -> None:
            nonlocal told
            told += more
            moved(more)

        try:
            sent = await self._dialect.send(bucket, file, count, beside) if bucket is not None else None
        except Exception as said:
            reason = _why_elsewhere(said)
            # To compare takes the right to read, which one who only writes may lack: the other engine does without.
            denied = bool(file.expected) and isinstance(said, Answer) and said.status == 403
            if not reason and not denied:
                raise
            if reason:
                self._leave(key, "send", reason)
            sent = None
        if sent is not None:
            return sent
        if told:
            moved(-told)
        return await self._plain.send(file, moved, beside)


def reasons() -> dict[str, str]:
    """Why buckets that were used go to the other engine, by URL."""
    return dict(REASONS)


def engine_of(store: Store, plain: Engine | None) -> Engine | None:
    """The engine for a store that may have one; what was given for all others."""
    if plain is None:
        plain = _azure_engine(store)
    dialect = None if plain is None else _dialect_of(store, plain)
    if plain is None or dialect is None:
        return plain
    assert isinstance(store, ObjectStore)
    _let_threads_end()
    return ObstoreEngine(store, dialect, plain)


def _azure_engine(store: Any) -> Engine | None:
    from remoteio._obstore_azure import AzureEngine, is_azure

    return AzureEngine(store) if is_azure(store) else None


def _dialect_of(store: Any, plain: Any) -> Dialect | None:
    # Imported only for a store that there is, since its module need not be there for any other.
    if store.protocol == "s3":
        from remoteio._obstore_s3 import S3Dialect

        return S3Dialect(store, plain)
    if store.protocol == "gs":
        from remoteio._obstore_gcs import GCSDialect

        return GCSDialect(store, plain)
    if store.protocol in ("abfs", "az"):
        from remoteio._obstore_azure import AzureDialect

        return AzureDialect(store, plain)
    return None


def _why_elsewhere(said: Exception) -> str:
    """Why the store wants to be asked in another way, as its own client finds out by itself; empty if it does not."""
    if isinstance(said, Unmapped):
        return str(said)
    if isinstance(said, Answer) and said.status in ELSEWHERE:
        return f"the store answered {said.status}"
    if isinstance(said, Misread):
        return "obstore does not take the store's answers to ranges"
    if isinstance(said, Unreachable):
        return "obstore could not connect, or does not trust the store's certificate"
    return ""


def _is_kept(key: str) -> bool:
    """Whether obstore means the same object by a key: it cuts slashes off, and refuses dots and control characters."""
    return not any(part in ("", ".", "..") for part in key.split("/")) and not _CONTROL.search(key)


_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


# ---- the end of the interpreter

_last_use: list[float] = []


def _let_threads_end() -> None:
    """At exit, wait a moment where obstore was used.

    Its threads let go of our objects just after we have their result. One that asks for the
    interpreter when that is already ending aborts the whole process.
    """
    if not _last_use:
        atexit.register(_settle)
    _last_use[:] = [time.monotonic()]


def _settle() -> None:
    with contextlib.suppress(KeyboardInterrupt):
        time.sleep(0.05)

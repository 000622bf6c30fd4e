"""The engine over obstore, where that package is installed and the store can be described to it.

Each bucket is described from the store's live client (`_obstore_s3`, `_obstore_gcs`). What
cannot be described, or a key that obstore would change, goes to the other engine.

Source: obstore's ``get``, ``put`` and ``ClientConfig``; object_store's ``path`` module.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import errno
import hashlib
import logging
import re
import threading
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

from remoteio import _obstore_s3, _store_s3
from remoteio._obstore_answers import ELSEWHERE, Answer, Unreachable, as_answer
from remoteio._obstore_s3 import Description, Unmapped
from remoteio._store import Info, Store
from remoteio._store_loop import RETRY_BOUND_S, TRIES, retried
from remoteio._store_objects import split
from remoteio._store_s3 import S3Store
from remoteio._transfer_loop import Engine
from remoteio._transfer_plan import MIB, WINDOW, Buffer, Outgoing

PIECE = MIB
PARTS_AT_ONCE = 8  # parts of 8 MiB in memory, of all files together
LARGEST_PART = WINDOW
SEND_BOUND = "10min"  # of one request that sends a part; its answer may come long after its first byte went

_logger = logging.getLogger("remoteio")


class Bucket:
    """One bucket, through obstore: a client for reading, whose retries are the transfer's, and one for writing."""

    def __init__(self, store: S3Store, told: Description) -> None:
        """Make the clients."""
        from obstore.store import S3Store

        self.told = told
        self.failure: Exception | None = None
        ask = None if told.anonymous else _obstore_s3.provider(store.fs, told.bucket, self._failed)
        down = {**told.client_options, "timeout": "24h"}
        up = {name: value for name, value in told.client_options.items() if name != "read_timeout"}
        backoff = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=5), "base": 2.2}
        retry = {"max_retries": TRIES - 1, "retry_timeout": timedelta(seconds=RETRY_BOUND_S), "backoff": backoff}
        make: Any = S3Store
        self.down = make(
            told.bucket,
            config=told.config,
            client_options=down,
            retry_config={"max_retries": 0},
            credential_provider=ask,
        )
        self.up = make(
            told.bucket,
            config=told.config,
            client_options={**up, "timeout": SEND_BOUND},
            retry_config=retry,
            credential_provider=ask,
        )

    def _failed(self, error: Exception) -> None:
        self.failure = error

    def said(self, error: Exception) -> Exception:
        """What an exception of obstore means, as an exception that says so by its class or its code."""
        failure, self.failure = self.failure, None
        return failure or as_answer(error)


_BUCKETS: WeakKeyDictionary[Store, dict[str, Bucket]] = WeakKeyDictionary()
REASONS: dict[str, str] = {}


class ObstoreEngine:
    """S3 through obstore."""

    name = "obstore"

    def __init__(self, store: S3Store, plain: Engine) -> None:
        """Keep the store and the engine that stands in."""
        self._store = store
        self._plain = plain
        self._described: dict[str, asyncio.Future[Bucket | None]] = {}

    async def _bucket(self, key: str) -> Bucket | None:
        """The bucket of a key; None where the other engine is to take it."""
        bucket, inner = split(key)
        if not _is_kept(inner):
            return None
        waiting = self._described.get(bucket)
        if waiting is None:
            waiting = self._described[bucket] = asyncio.ensure_future(self._describe(bucket))
        return await asyncio.shield(waiting)

    async def _describe(self, bucket: str) -> Bucket | None:
        url = self._store.url_of(bucket)
        try:
            told = await _obstore_s3.describe(self._store.fs, bucket)
            buckets = _BUCKETS.setdefault(self._store, {})
            made = buckets.get(bucket)
            if made is None or made.told != told:
                made = buckets[bucket] = Bucket(self._store, told)
        except Unmapped as reason:
            REASONS[url] = str(reason)
        except Exception as error:  # noqa: BLE001 - the store's own client is the one to say what is wrong
            REASONS[url] = type(error).__name__
        else:
            REASONS.pop(url, None)
            return made
        _logger.debug("the obstore engine is not used for %s: %s", url, REASONS[url])
        return None

    async def fetch(self, key: str, start: int, stop: int, info: Info, write: Callable[[Buffer], None]) -> None:
        """Ask once for a range; see `_transfer_loop.Engine`."""
        import obstore

        bucket = await self._bucket(key)
        if bucket is None:
            await self._plain.fetch(key, start, stop, info, write)
            return
        wanted: dict[str, Any] = {}
        if not (start == 0 and stop == info.size):
            wanted["range"] = (start, stop)
        if info.version:
            wanted["if_match"] = info.version
        begun = False

        def begin(data: Buffer) -> None:
            nonlocal begun
            begun = True
            write(data)

        try:
            if stop - start <= PIECE:
                answer = await obstore.get_async(bucket.down, split(key)[1], options=wanted)
                self._check(key, answer, start, info)
                body = await answer.bytes_async()
            else:
                await _in_thread(lambda: self._copy(key, bucket, wanted, start, info, begin))
                return
        except Exception as error:  # noqa: BLE001 - told apart there
            said = self._said(key, bucket, error)
            # What broke in the middle is resumed at its byte; the other engine would begin anew.
            if begun or not self._is_misled(key, said):
                raise said from None
        else:
            write(body)
            return
        await self._plain.fetch(key, start, stop, info, write)

    def _copy(
        self, key: str, bucket: Bucket, wanted: Any, start: int, info: Info, write: Callable[[Buffer], None]
    ) -> None:
        """Copy a range in a thread of its own, which costs half of what the loop would for each block."""
        import obstore

        answer = obstore.get(bucket.down, split(key)[1], options=wanted)
        self._check(key, answer, start, info)
        for block in answer.stream(PIECE):
            write(block)

    def _check(self, key: str, answer: Any, start: int, info: Info) -> None:
        if info.version and answer.meta.get("e_tag") not in (None, info.version):
            raise self._store.error(errno.ESTALE, key, "the object was replaced while it was being read")
        if answer.range[0] != start:
            raise self._store.error(errno.EIO, key, "the store sent another range than the one asked for")

    def _is_misled(self, key: str, said: Exception) -> bool:
        """Whether the store wants to be asked in another way, as its own client finds out by itself.

        The bucket then goes to the other engine.
        """
        if isinstance(said, Answer) and said.status in ELSEWHERE:
            reason = f"the store answered {said.status}"
        elif isinstance(said, Unreachable):
            reason = "obstore could not connect, or does not trust the store's certificate"
        else:
            return False
        bucket = split(key)[0]
        REASONS[self._store.url_of(bucket)] = reason
        nowhere: asyncio.Future[Bucket | None] = asyncio.get_running_loop().create_future()
        nowhere.set_result(None)
        self._described[bucket] = nowhere
        return True

    def _said(self, key: str, bucket: Bucket, error: Exception) -> Exception:
        if isinstance(error, OSError) and error.filename is not None:
            return error
        if type(error).__name__ == "PreconditionError":
            return self._store.error(errno.ESTALE, key, "the object was replaced while it was being read")
        return bucket.said(error)

    async def send(self, file: Outgoing, moved: Callable[[int], None], beside: int) -> Info:
        """Publish a file; see `_transfer_loop.Engine`."""
        bucket = await self._bucket(file.location.key)
        if bucket is None or _store_s3.part_size(file.size) > LARGEST_PART:
            return await self._plain.send(file, moved, beside)
        before = await self._uploads(file.location.key) if file.size > WINDOW else set()
        if before is None:
            return await self._plain.send(file, moved, beside)
        told = 0

        def count(more: int) -> None:
            nonlocal told
            told += more
            moved(more)

        try:
            if file.size <= WINDOW:
                return await self._put(bucket, file, count)
            return await self._put_parts(bucket, file, count, beside, before)
        except (Answer, Unreachable) as said:
            # To compare takes the right to read, which one who only writes may lack: the other engine does without.
            denied = bool(file.expected) and isinstance(said, Answer) and said.status == 403
            if not denied and not self._is_misled(file.location.key, said):
                raise
        moved(-told)
        return await self._plain.send(file, moved, beside)

    async def _put(self, bucket: Bucket, file: Outgoing, moved: Callable[[int], None]) -> Info:
        import obstore

        key = file.location.key
        body = file.read(0, file.size)
        try:
            answer = await obstore.put_async(
                bucket.up,
                split(key)[1],
                body,
                use_multipart=False,
                attributes=_attributes(key),
                mode=_mode(file.expected),
            )
        except Exception as error:  # noqa: BLE001 - told apart there
            raise bucket.said(error) from None
        moved(file.size)
        etag = answer["e_tag"] or ""
        if etag.strip('"') == hashlib.md5(body, usedforsecurity=False).hexdigest():
            return Info(key, file.size, False, etag)
        return await self._look(bucket, file)

    async def _put_parts(
        self, bucket: Bucket, file: Outgoing, moved: Callable[[int], None], beside: int, before: set[str]
    ) -> Info:
        import obstore

        key = file.location.key
        broken: list[OSError] = []

        async def parts() -> AsyncIterator[bytes]:
            for offset in range(0, file.size, LARGEST_PART):
                try:
                    body = file.read(offset, min(LARGEST_PART, file.size - offset))
                except OSError as error:
                    broken.append(error)
                    raise
                yield body
                moved(len(body))
            try:
                await self._require_expected(bucket, file)
            except OSError as error:
                broken.append(error)
                raise

        try:
            await obstore.put_async(
                bucket.up,
                split(key)[1],
                parts(),
                use_multipart=True,
                chunk_size=LARGEST_PART,
                max_concurrency=max(2, PARTS_AT_ONCE // beside),
                attributes=_attributes(key),
            )
        except BaseException as error:
            await asyncio.shield(self._abort(key, before))
            if isinstance(error, Exception):
                raise (broken[0] if broken else bucket.said(error)) from None
            raise
        return await self._look(bucket, file)

    async def _require_expected(self, bucket: Bucket, file: Outgoing) -> None:
        """A last look at what will be replaced, while the last parts go: obstore sends no condition with parts."""
        import obstore

        if file.expected is None:
            return
        key = file.location.key
        try:
            found = str((await obstore.head_async(bucket.up, split(key)[1]))["e_tag"])
        except FileNotFoundError:
            found = ""
        except Exception:  # noqa: BLE001 - who cannot look has looked before: it was the same then
            return
        if found != file.expected:
            raise self._store.error(errno.EEXIST, key, "it is no longer what was looked at")

    async def _look(self, bucket: Bucket, file: Outgoing) -> Info:
        """What the store says that it has now; an error where that is not the size of the file."""
        import obstore

        key = file.location.key
        try:
            found = await obstore.head_async(bucket.up, split(key)[1])
        except Exception as error:  # noqa: BLE001 - told apart there
            raise bucket.said(error) from None
        if found["size"] != file.size:
            raise self._store.error(errno.EIO, key, f"the store has {found['size']} of {file.size} bytes")
        return Info(key, file.size, False, found["e_tag"], found["last_modified"].timestamp())

    # obstore leaves the parts of a failed upload behind, and does not tell its id.

    async def _uploads(self, key: str) -> set[str] | None:
        """The ids of the unfinished uploads to a key; None where they cannot be listed."""
        bucket, inner = split(key)
        call = self._store._call
        try:
            page = await retried(lambda: call("list_multipart_uploads", Bucket=bucket, Prefix=inner))
        except Exception:  # noqa: BLE001 - not allowed, or not offered: then the other engine sends the file
            return None
        if page.get("IsTruncated"):
            return None
        return {str(found["UploadId"]) for found in page.get("Uploads") or () if found["Key"] == inner}

    async def _abort(self, key: str, before: set[str]) -> None:
        """Abort the upload that failed; where it cannot be told from somebody else's, both are left."""
        now = await self._uploads(key)
        begun = (now or set()) - before
        if len(begun) == 1:
            bucket, inner = split(key)
            upload = {"Bucket": bucket, "Key": inner, "UploadId": begun.pop()}
            await self._store._abort(upload)
        elif begun or now is None:
            _logger.warning("an unfinished multipart upload to %s was left behind", self._store.url_of(key))


def reasons() -> dict[str, str]:
    """Why buckets that were used go to the other engine, by URL."""
    return dict(REASONS)


def engine_of(store: Store, plain: Engine) -> Engine:
    """The engine for a store that may have one; the other one for all others."""
    if not isinstance(store, S3Store):
        return plain
    _let_threads_end()
    return ObstoreEngine(store, plain)


async def _in_thread(work: Callable[[], None]) -> None:
    """Run something that blocks, in a daemon thread: one that hangs holds neither Ctrl-C nor the interpreter's end."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def tell(error: BaseException | None) -> None:
        if ended.done():  # nobody waits any more
            return
        if error is None:
            ended.set_result(None)
        else:
            ended.set_exception(error)

    def run() -> None:
        failure: BaseException | None = None
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: the interpreter ends
            loop.call_soon_threadsafe(tell, failure)

    threading.Thread(target=run, name="remoteio-transfer", daemon=True).start()
    await ended


def _attributes(key: str) -> Any:
    kind = _store_s3._content_type(key).get("ContentType")
    return {"Content-Type": kind} if kind else None


def _mode(expected: str | None) -> Any:
    if expected is None:
        return "overwrite"
    return {"e_tag": expected} if expected else "create"


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

"""What the buckets of every store have in common with obstore: how one is described, and what its errors mean.

A `Dialect` knows one kind of store (`_obstore_s3`, `_obstore_gcs`, `_obstore_azure`): it reads everything from the
store's live client. Whatever has no counterpart in obstore is a reason to stay with that client.

Source: obstore's ``ClientConfig``; object_store's ``ClientConfigKey``.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import threading
import urllib.request
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, cast

from remoteio._obstore_answers import as_answer
from remoteio._store import Info
from remoteio._store_loop import RETRY_BOUND_S, TRIES
from remoteio._store_objects import split
from remoteio._transfer_plan import WINDOW, Outgoing

# obstore reads these from the environment, after the store's own prefix; the client that it stands in for does not.
_FOREIGN_VARIABLES = (
    "PROXY_URL PROXY_EXCLUDES PROXY_CA_CERTIFICATE ALLOW_INVALID_CERTIFICATES DEFAULT_CONTENT_TYPE USER_AGENT"
).split()


ASK_BOUND_S = 60  # for the live client to tell its credentials
PARTS_AT_ONCE = 5  # parts in memory, of all files together; more are no faster
SEND_BOUND = "10min"  # of one request that sends a part; its answer may come long after its first byte went


class Unmapped(Exception):
    """The store has something that obstore cannot be told; the message says what."""


@dataclass(frozen=True)
class Description:
    """One bucket of a store, as obstore is told.

    Attributes:
        bucket: Its name.
        config: Settings of the protocol.
        down: Settings of the HTTP client that reads.
        up: Settings of the HTTP client that writes.
        anonymous: Whether requests are not signed.
    """

    bucket: str
    config: dict[str, Any]
    down: dict[str, Any]
    up: dict[str, Any]
    anonymous: bool


class Dialect(Protocol):
    """One kind of store: how obstore is told of it, how an object is pinned, how a file is sent."""

    def is_kept(self, key: str) -> bool:
        """Whether the live client means by a key the object of that name, as obstore does."""

    async def describe(self, bucket: str) -> Description:
        """Describe one bucket; on the store's loop.

        Raises:
            Unmapped: Something has no counterpart.
        """

    def client(self, told: Description, failed: Callable[[Exception], None]) -> tuple[Any, dict[str, Any]]:
        """obstore's class, and the arguments that both of a bucket's clients get.

        Args:
            told: The bucket.
            failed: Told the live client's own error, of which obstore keeps only the words.
        """

    def pin(self, info: Info) -> dict[str, Any]:
        """The options of a request that must not find another object than the one described."""

    def version(self, meta: Any) -> str | None:
        """What an answer of obstore says of the object's version, as ``Info`` has it."""

    def replaces(self, version: str) -> dict[str, str]:
        """The mode of a write that must not replace another version."""

    def is_doubtful(self, said: Exception) -> bool:
        """Whether only the live client can tell what an error on a pinned object means."""

    async def send(self, bucket: Bucket, file: Outgoing, moved: Callable[[int], None], beside: int) -> Info | None:
        """Publish a file, see `_transfer_loop.Engine`; None, with nothing done, where the other engine is to do it."""


class EtagDialect:
    """What the stores have in common that tell versions apart by etags, and answer what does not match with a 412."""

    def version(self, meta: Any) -> str | None:
        """See `Dialect`."""
        return cast("str | None", meta.get("e_tag"))

    def replaces(self, version: str) -> dict[str, str]:
        """See `Dialect`."""
        return {"e_tag": version}

    def is_doubtful(self, said: Exception) -> bool:
        """See `Dialect`: a precondition says it all."""
        return False


class Bucket:
    """One bucket, through obstore: a client for reading, whose retries are the transfer's, and one for writing."""

    def __init__(self, dialect: Dialect, told: Description) -> None:
        """Make the clients."""
        self.told = told
        self.dialect = dialect
        # No method of this object: the collector of cycles does not see what obstore's clients hold.
        self._failures: deque[Exception] = deque(maxlen=1)
        make, common = dialect.client(told, self._failures.append)
        backoff = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=5), "base": 2.2}
        retry = {"max_retries": TRIES - 1, "retry_timeout": timedelta(seconds=RETRY_BOUND_S), "backoff": backoff}
        self.down = make(told.bucket, client_options=told.down, retry_config={"max_retries": 0}, **common)
        self.up = make(told.bucket, client_options=told.up, retry_config=retry, **common)

    def said(self, error: Exception) -> Exception:
        """What an exception of obstore means, as an exception that says so by its class or its code."""
        with contextlib.suppress(IndexError):
            return self._failures.pop()
        return as_answer(error)


# ---- describing


def refuse_variables(prefix: str, names: Iterable[str]) -> None:
    """Refuse what obstore would take from the environment.

    Raises:
        Unmapped: One of the variables is set.
    """
    found = [prefix + name for name in (*_FOREIGN_VARIABLES, *names) if os.environ.get(prefix + name)]
    if found:
        raise Unmapped(f"{found[0]} in the environment")


def refuse_proxies() -> None:
    """Refuse proxies in the environment, whose exceptions obstore may read differently.

    Raises:
        Unmapped: There is one.
    """
    if set(urllib.request.getproxies()) - {"no"}:
        raise Unmapped("proxies in the environment")


def milliseconds(value: Any) -> str:
    """A number of seconds in obstore's words.

    Raises:
        Unmapped: It is no number.
    """
    if not isinstance(value, (int, float)):
        raise Unmapped("its timeouts")
    return f"{max(1, round(value * 1000))}ms"


def trust(verify: Any) -> dict[str, Any]:
    """Which certificates are trusted. A bundle of the user's comes on top of the system's own.

    Raises:
        Unmapped: They are not in one file.
    """
    if verify is False:
        return {"allow_invalid_certificates": True}
    if isinstance(verify, (str, os.PathLike)):
        if os.path.isdir(verify):
            raise Unmapped("a directory of certificates")
        with os.fdopen(os.open(verify, os.O_RDONLY | os.O_CLOEXEC), "rb") as bundle:
            return {"root_certificate": bundle.read()}
    if verify not in (True, None):
        raise Unmapped("its own TLS context")
    return {}


def two_ways(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of the client that reads and of the one that writes, of stores that bound neither as a whole."""
    up = {name: value for name, value in options.items() if name != "read_timeout"}
    return {**options, "timeout": "24h"}, {**up, "timeout": SEND_BOUND}


# ---- moving


async def put(
    bucket: Bucket, file: Outgoing, moved: Callable[[int], None], attributes: dict[str, str]
) -> tuple[Any, bytes, bool]:
    """Send a file in one request.

    Args:
        bucket: Where to.
        file: The file.
        moved: Told how many bytes went over.
        attributes: The type of the content, and metadata.

    Returns:
        obstore's answer, the bytes that were sent, and whether the answer's etag is their checksum.
    """
    import obstore

    key = split(file.location.key)[1]
    body = file.read(0, file.size)
    told: Any = attributes or None
    try:
        answer = await obstore.put_async(
            bucket.up, key, body, use_multipart=False, attributes=told, mode=_mode(bucket, file.expected)
        )
    except Exception as error:  # noqa: BLE001 - told apart there
        raise bucket.said(error) from None
    moved(file.size)
    etag = (answer["e_tag"] or "").strip('"')
    return answer, body, etag == hashlib.md5(body, usedforsecurity=False).hexdigest()


async def put_parts(
    bucket: Bucket, file: Outgoing, moved: Callable[[int], None], attributes: dict[str, str], beside: int
) -> None:
    """Send a file in parts of 8 MiB; one that fails is not published, and the store drops its parts some day.

    Args:
        bucket: Where to.
        file: The file.
        moved: Told how many bytes went over.
        attributes: The type of the content, and metadata.
        beside: How many files in parts may be sent at the same time, this one counted.
    """
    import obstore

    broken: list[OSError] = []
    told: Any = attributes or None

    async def parts() -> AsyncIterator[bytes]:
        for offset in range(0, file.size, WINDOW):
            try:
                body = file.read(offset, min(WINDOW, file.size - offset))
            except OSError as error:
                broken.append(error)
                raise
            yield body
            moved(len(body))
        try:
            await _require_expected(bucket, file)
        except OSError as error:
            broken.append(error)
            raise

    try:
        await obstore.put_async(
            bucket.up,
            split(file.location.key)[1],
            parts(),
            use_multipart=True,
            chunk_size=WINDOW,
            max_concurrency=max(2, PARTS_AT_ONCE // beside),
            attributes=told,
        )
    except Exception as error:  # noqa: BLE001 - told apart there
        raise (broken[0] if broken else bucket.said(error)) from None


def _mode(bucket: Bucket, expected: str | None) -> Any:
    if expected is None:
        return "overwrite"
    return bucket.dialect.replaces(expected) if expected else "create"


async def _require_expected(bucket: Bucket, file: Outgoing) -> None:
    """A last look at what will be replaced, while the last parts go: obstore sends no condition with parts."""
    import obstore

    if file.expected is None:
        return
    try:
        found = bucket.dialect.version(await obstore.head_async(bucket.up, split(file.location.key)[1]))
    except FileNotFoundError:
        found = ""
    except Exception:  # noqa: BLE001 - who cannot look has looked before: it was the same then
        return
    if found != file.expected:
        raise file.location.error(errno.EEXIST, "it is no longer what was looked at")


async def in_thread(work: Callable[[], None]) -> None:
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

"""An HTTP proxy in front of a real server, which counts requests and fails on demand."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.reach import s3_environment, s3_options


@dataclass(frozen=True)
class Request:
    """One request as the proxy saw it.

    Attributes:
        method: ``GET``, ``PUT`` ...
        target: Path and query as they were sent.
        headers: Names in lower case.
        at: When it came, in seconds of ``time.monotonic()``.
    """

    method: str
    target: str
    headers: dict[str, str]
    at: float = field(default_factory=time.monotonic)

    @property
    def path(self) -> str:
        """The path, decoded."""
        return unquote(urlsplit(self.target).path)

    @property
    def query(self) -> dict[str, str]:
        """The query's first values."""
        return {
            name: values[0] for name, values in parse_qs(urlsplit(self.target).query, keep_blank_values=True).items()
        }

    @property
    def operation(self) -> str:
        """What S3 calls it: ``GetObject``, ``ListObjectsV2`` ... (of other protocols: the method)."""
        query, (_, _, key) = self.query, self.path.lstrip("/").partition("/")
        if not key:
            if self.method == "GET":
                return "ListObjectsV2" if "list-type" in query or "prefix" in query else "GetBucket"
            if self.method == "POST" and "delete" in query:
                return "DeleteObjects"
            return {"PUT": "CreateBucket", "DELETE": "DeleteBucket", "HEAD": "HeadBucket"}.get(self.method, self.method)
        if self.method == "POST":
            return "CreateMultipartUpload" if "uploads" in query else "CompleteMultipartUpload"
        if self.method == "DELETE":
            return "AbortMultipartUpload" if "uploadId" in query else "DeleteObject"
        if self.method == "PUT":
            copies = "x-amz-copy-source" in self.headers
            if "partNumber" in query:
                return "UploadPartCopy" if copies else "UploadPart"
            return "CopyObject" if copies else "PutObject"
        return {"GET": "GetObject", "HEAD": "HeadObject"}.get(self.method, self.method)


@dataclass
class Rule:
    """What becomes of the requests that match."""

    action: str
    value: Any = None
    method: str | None = None
    operation: str | None = None
    target: str | None = None
    times: int | None = None
    until: float | None = None
    skip: int = 0
    reads_body: bool = False
    used: int = 0

    def takes(self, request: Request) -> bool:
        """Whether it is for this request; counts the use."""
        if self.until is not None and time.monotonic() > self.until:
            return False
        if self.times is not None and self.used >= self.times:
            return False
        if self.method not in (None, request.method) or self.operation not in (None, request.operation):
            return False
        if self.target is not None and not re.search(self.target, unquote(request.target)):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.used += 1
        return True


class Proxy:
    """An HTTP proxy in front of a real server that counts, and fails on demand.

    It sends every byte on as it came, the Host header too (unless told), so that signatures stay valid. All the
    rules take the same filters: ``method``, ``operation`` (see `Request.operation`), ``target`` (a
    regular expression searched in path and query, decoded), ``times`` (how often at most),
    ``skip`` (how many matching requests pass first), ``seconds`` (how long from now). An answer of the proxy's own to
    a request that asks first whether to send its body comes before that; with ``reads_body`` after it.
    """

    def __init__(self, upstream: str, *, keeps_host: bool = True) -> None:
        """Stand in front of a server.

        Args:
            upstream: Its URL.
            keeps_host: Whether the server is told the Host that the client said, or its own.
        """
        parts = urlsplit(upstream)
        self._keeps_host = keeps_host
        self._upstream = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._lock = threading.Lock()
        self._requests: list[Request] = []
        self._rules: list[Rule] = []
        self._bytes_per_s: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    # Use

    @property
    def requests(self) -> list[Request]:
        """What came since the start or the last `reset`."""
        with self._lock:
            return list(self._requests)

    @property
    def operations(self) -> list[str]:
        """The S3 names of the requests, in order."""
        return [request.operation for request in self.requests]

    @property
    def tally(self) -> Counter[str]:
        """How many requests of each S3 name came."""
        return Counter(self.operations)

    def reset(self) -> None:
        """Count from zero again."""
        with self._lock:
            self._requests.clear()

    @contextlib.contextmanager
    def counting(self) -> Iterator[list[Request]]:
        """Collect the requests of a block: the list is filled at its end."""
        with self._lock:
            start = len(self._requests)
        found: list[Request] = []
        yield found
        with self._lock:
            found += self._requests[start:]

    def rule(self, action: str, value: Any = None, *, seconds: float | None = None, **filters: Any) -> Rule:
        """Add a rule; the newest that takes a request decides."""
        until = None if seconds is None else time.monotonic() + seconds
        rule = Rule(action, value, until=until, **filters)
        with self._lock:
            self._rules.insert(0, rule)
        return rule

    def deny(self, **filters: Any) -> Rule:
        """Answer 403 AccessDenied."""
        return self.rule("answer", (403, "AccessDenied", "Access Denied."), **filters)

    def unavailable(self, **filters: Any) -> Rule:
        """Answer 503 SlowDown."""
        return self.rule("answer", (503, "SlowDown", "Please reduce your request rate."), **filters)

    def answer(self, status: int, code: str, message: str, **filters: Any) -> Rule:
        """Answer with this error, in S3's form."""
        return self.rule("answer", (status, code, message), **filters)

    def cut_response(self, after: int, **filters: Any) -> Rule:
        """Reset the connection after this many bytes of the response's body."""
        return self.rule("cut_response", after, **filters)

    def cut_request(self, after: int, **filters: Any) -> Rule:
        """Reset the connection after this many bytes of the request's body."""
        return self.rule("cut_request", after, **filters)

    def spoil_request(self, **filters: Any) -> Rule:
        """Change the first byte of the request's body."""
        return self.rule("spoil_request", **filters)

    def spoil_response(self, **filters: Any) -> Rule:
        """Change the first byte of the response's body."""
        return self.rule("spoil_response", **filters)

    def lose_response(self, **filters: Any) -> Rule:
        """Reset the connection when the server has done what it was asked for and answers."""
        return self.rule("lose_response", **filters)

    def delay(self, delay_s: float, **filters: Any) -> Rule:
        """Wait this many seconds before a request is sent on."""
        return self.rule("delay", delay_s, **filters)

    def hang(self, **filters: Any) -> Rule:
        """Never answer."""
        return self.rule("delay", 3600.0, **filters)

    def before(self, function: Callable[[], object], **filters: Any) -> Rule:
        """Call a function, in a thread of its own, before a request is sent on."""
        return self.rule("call", function, **filters)

    def cap(self, bytes_per_s: float | None) -> None:
        """Let each connection carry at most this many bytes a second, each way; None lifts it."""
        self._bytes_per_s = bytes_per_s

    def clear(self) -> None:
        """Let everything through again."""
        with self._lock:
            self._rules.clear()
        self._bytes_per_s = None

    def environment(self) -> dict[str, str]:
        """The variables by which a program reaches S3 through this proxy."""
        return s3_environment(self.url)

    @property
    def storage_options(self) -> dict[str, dict[str, Any]]:
        """The same for ``remote_io(storage_options=...)``."""
        return {"s3": s3_options(self.url)}

    @property
    def gcs_options(self) -> dict[str, dict[str, Any]]:
        """The same where it stands in front of a GCS server."""
        return {"gs": {"token": "anon", "endpoint_url": self.url}}

    # Life

    def start(self) -> None:
        """Listen on a free port."""
        loop = asyncio.new_event_loop()
        listener = socket.create_server(("127.0.0.1", 0))
        # Little is on its way at any moment: what a client has sent and then takes back must not arrive all the same.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**18)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = loop.run_until_complete(asyncio.start_server(self._connection, sock=listener, limit=2**20))
        self._loop = loop

        def run() -> None:
            loop.run_forever()
            server.close()
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0.01))
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

        self._thread = threading.Thread(target=run, name="proxy", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close every connection."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            self._loop = None

    def __enter__(self) -> Proxy:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # One connection

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(self._upstream)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while await self._exchange(reader, writer, link):
                pass
        link.close()
        writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: _Link) -> bool:
        head = await _read_head(reader)
        if not head:
            return False
        request = _parse_request(head)
        with self._lock:
            self._requests.append(request)
            rule = next((rule for rule in self._rules if rule.takes(request)), None)
        if rule is not None and rule.action == "answer":
            return await self._answer(rule.value, request, reader, writer, rule.reads_body)
        if rule is not None and rule.action == "delay":
            await asyncio.sleep(rule.value)
        if rule is not None and rule.action == "call":
            await asyncio.get_running_loop().run_in_executor(None, rule.value)
        await link.connect()
        link.writer.write(self._for_upstream(head))
        limit = rule.value if rule is not None and rule.action == "cut_request" else None
        spoilt = rule is not None and rule.action == "spoil_request"
        sending = asyncio.ensure_future(self._pump(reader, link.writer, _framing(request.headers), limit, spoilt))
        self._tasks.add(sending)
        sending.add_done_callback(self._tasks.discard)
        try:
            return await self._relay_response(request, rule, sending, writer, link)
        except _Cut:
            _reset(writer)
            return False
        finally:
            sending.cancel()

    async def _relay_response(
        self,
        request: Request,
        rule: Rule | None,
        sending: asyncio.Future[None],
        writer: asyncio.StreamWriter,
        link: _Link,
    ) -> bool:
        while True:
            answer = asyncio.ensure_future(_read_head(link.reader))
            both: set[asyncio.Future[Any]] = {answer, sending}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and not answer.done():
                sending.result()  # raises where the connection was to be cut
            head = await answer
            if not head:
                return False
            status = int(head.split(b" ", 2)[1])
            if status >= 200 and rule is not None and rule.action == "lose_response":
                raise _Cut
            writer.write(await self._for_client(head, request))
            if status >= 200:
                break
        headers = _headers(head)
        framing = _framing(headers, response=True)
        if request.method == "HEAD" or status in (204, 304):
            framing = _framing({})
        limit = rule.value if rule is not None and rule.action == "cut_response" else None
        spoilt = rule is not None and rule.action == "spoil_response"
        await self._pump(link.reader, writer, framing, limit, spoilt)
        await writer.drain()
        if not sending.done():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(sending), 1)
        closes = "close" in headers.get("connection", "").lower() or framing == ("close", 0)
        return sending.done() and not closes

    def _for_upstream(self, head: bytes) -> bytes:
        """The head of a request as the server gets it."""
        if self._keeps_host:
            return head
        own = f"\r\nHost: {self._upstream[0]}:{self._upstream[1]}\r\n".encode()
        return re.sub(rb"\r\nhost:[^\r]*\r\n", own, head, count=1, flags=re.IGNORECASE)

    async def _for_client(self, head: bytes, request: Request) -> bytes:
        """The head of an answer as the client gets it: the address of GCS's resumable uploads leads to this proxy."""
        theirs = f"http://{self._upstream[0]}:{self._upstream[1]}".encode()
        return head.replace(b"Location: " + theirs, b"Location: " + self.url.encode()) if theirs in head else head

    async def _answer(
        self,
        value: tuple[int, str, str],
        request: Request,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        reads_body: bool,
    ) -> bool:
        status, code, message = value
        waits = "100-continue" in request.headers.get("expect", "")
        if waits and reads_body:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            waits = False
        if not waits:
            await self._pump(reader, None, _framing(request.headers), None)
        body = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'
        head = [f"HTTP/1.1 {status} {code}", "Content-Type: application/xml", f"Content-Length: {len(body)}"]
        if waits:
            head.append("Connection: close")
        writer.write("\r\n".join([*head, "", "" if request.method == "HEAD" else body]).encode())
        await writer.drain()
        return not waits

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter | None,
        framing: tuple[str, int],
        cut_after: int | None,
        spoilt: bool = False,
    ) -> None:
        passed, started = 0, time.monotonic()

        async def send(data: bytes) -> None:
            nonlocal passed
            if cut_after is not None and passed + len(data) > cut_after:
                if writer is not None:
                    writer.write(data[: cut_after - passed])
                    with contextlib.suppress(ConnectionError):
                        await writer.drain()
                    await asyncio.sleep(0.05)
                raise _Cut
            if writer is not None:
                writer.write(bytes([data[0] ^ 1]) + data[1:] if spoilt and not passed else data)
                await writer.drain()
            passed += len(data)
            if self._bytes_per_s:
                await asyncio.sleep(max(0.0, started + passed / self._bytes_per_s - time.monotonic()))

        piece = 2**18 if not self._bytes_per_s else max(1024, min(2**16, int(self._bytes_per_s / 50)))
        await _PUMPS[framing[0]](reader, send, framing[1], piece)


class _Cut(Exception):
    pass


class _Link:
    """The connection to the server behind, opened when it is needed."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._open = False

    async def connect(self) -> None:
        if self._open and not self.reader.at_eof() and not self.writer.is_closing():
            return
        self.close()
        self.reader, self.writer = await asyncio.open_connection(*self._address, limit=2**20)
        self._open = True

    def close(self) -> None:
        if self._open:
            self.writer.close()
        self._open = False


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


def _headers(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if line)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _parse_request(head: bytes) -> Request:
    method, target, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
    return Request(method, target, _headers(head))


def _framing(headers: dict[str, str], *, response: bool = False) -> tuple[str, int]:
    """How the end of a body is told: by chunks, by a length, or by the end of the connection."""
    if "chunked" in headers.get("transfer-encoding", ""):
        return "chunks", 0
    if "content-length" in headers:
        return "length", int(headers["content-length"])
    return ("close", 0) if response else ("length", 0)


_Send = Callable[[bytes], Awaitable[None]]


async def _pump_length(reader: asyncio.StreamReader, send: _Send, length: int, piece: int) -> None:
    while length:
        data = await reader.read(min(length, piece))
        if not data:
            raise ConnectionResetError
        length -= len(data)
        await send(data)


async def _pump_chunks(reader: asyncio.StreamReader, send: _Send, _: int, piece: int) -> None:
    while True:
        line = await reader.readuntil(b"\r\n")
        await send(line)
        size = int(line.split(b";")[0], 16)
        if not size:
            break
        await _pump_length(reader, send, size + 2, piece)
    while line != b"\r\n":  # the trailers
        line = await reader.readuntil(b"\r\n")
        await send(line)


async def _pump_close(reader: asyncio.StreamReader, send: _Send, _: int, piece: int) -> None:
    while data := await reader.read(piece):
        await send(data)


_PUMPS = {"length": _pump_length, "chunks": _pump_chunks, "close": _pump_close}


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with a TCP reset, as a broken network does."""
    raw = writer.get_extra_info("socket")
    if raw is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()

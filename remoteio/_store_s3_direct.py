"""GetObject, PutObject and UploadPart without what the client does around them: signed here, sent by its own session.

For a small object the client's validation, rules and parsing take longer than everything else, and it reads each body
twice more, to hash and to copy it. Bodies are proved by their CRC-32 instead, as the client would send it. Whatever
this cannot say, or the store refuses, the client's own call does.

Source: Amazon S3 API reference: GetObject, PutObject, UploadPart, "Checking object integrity", "Signature calculations"
(UNSIGNED-PAYLOAD); botocore's ``S3SigV4Auth`` and ``AWSRequest``; aiobotocore's ``AIOHTTPSession.send``.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import html
import logging
import re
import zlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any
from urllib.parse import quote, urlencode

_BUSY = frozenset({408, 429, 500, 502, 503, 504})  # to be asked again, and not by another call

# These say nothing of the way of asking.
_BY_CHANCE = frozenset("RequestTimeout BadDigest RequestTimeTooSkewed ExpiredToken InvalidToken".split())

STUCK_S = 60  # without a block of a body that goes out; the wait for the answer is the session's to bound
BLOCK = 2**18  # of a body, in the hands of the connection at a time

_logger = logging.getLogger("remoteio")


class NotDirect(Exception):
    """The client's own call is to be made.

    Attributes:
        refused: Whether the store did not want the request.
        said: The code of its answer.
    """

    def __init__(self, reason: str, *, refused: bool = False, said: str = "") -> None:
        super().__init__(reason)
        self.refused = refused
        self.said = said


class Direct:
    """The direct requests of one s3fs filesystem. Its coroutines run on that filesystem's loop.

    Attributes:
        fs: The filesystem.
    """

    def __init__(self, fs: Any) -> None:
        """Keep the filesystem."""
        self.fs = fs
        self._config: Any = None
        self._left: set[str] = set()
        self._bases: dict[str, tuple[Any, str]] = {}
        self._compared: dict[str, asyncio.Future[bool]] = {}

    def leave(self, bucket: str, reason: NotDirect) -> None:
        """Take note that the client's own call did what a direct request did not."""
        if reason.refused and reason.said not in _BY_CHANCE:
            self._left.add(bucket)

    async def get(self, bucket: str, key: str, span: str, version: str | None) -> dict[str, Any]:
        """Ask for an object.

        Args:
            bucket: Its bucket.
            key: Its key.
            span: What the ``Range`` header says; empty for all of it.
            version: The etag that it must have.

        Returns:
            What the client would: ``Body``, ``ETag``, ``ContentRange``, ``ContentLength``.

        Raises:
            NotDirect: See there.
        """
        client = await self._client(bucket)
        headers = {"Range": span} if span else {}
        if version:
            headers["If-Match"] = version
        checked = not span and getattr(client.meta.config, "response_checksum_validation", None) == "when_supported"
        if checked:
            headers["x-amz-checksum-mode"] = "ENABLED"
        answer = await self._send(client, "GET", bucket, key, {}, headers, None)
        said = answer.headers
        wanted = said.get("x-amz-checksum-crc32") if checked else None
        return {
            "Body": CheckedBody(answer.raw, wanted),
            "ETag": said.get("ETag"),
            "ContentRange": said.get("Content-Range"),
            "ContentLength": said.get("Content-Length"),
        }

    async def put(self, bucket: str, key: str, body: bytes, kind: str | None, condition: dict[str, str]) -> str:
        """Send an object; its etag.

        Args:
            bucket: Its bucket.
            key: Its key.
            body: Its bytes.
            kind: Its type; None for the store's own guess.
            condition: ``IfMatch`` or ``IfNoneMatch``, as the client takes them.

        Raises:
            NotDirect: See there.
        """
        names = {"IfMatch": "If-Match", "IfNoneMatch": "If-None-Match"}
        headers = {names[name]: value for name, value in condition.items()}
        if kind:
            headers["Content-Type"] = kind
        return await self._put(bucket, key, {}, headers, body)

    async def part(self, upload: dict[str, Any], number: int, body: bytes) -> str:
        """Send a part of a multipart upload; its etag.

        Args:
            upload: ``Bucket``, ``Key`` and ``UploadId``.
            number: Of the part, from 1 on.
            body: Its bytes.

        Raises:
            NotDirect: See there.
        """
        bucket, key = upload["Bucket"], upload["Key"]
        query = {"partNumber": str(number), "uploadId": str(upload["UploadId"])}
        asking = self._compared.get(bucket)
        if asking is None:
            asking = self._compared[bucket] = asyncio.ensure_future(self._compares(bucket, key, query, body))
        compared = await asyncio.shield(asking)
        etag = await self._put(bucket, key, query, {}, body)
        if not compared and etag.strip('"') != hashlib.md5(body, usedforsecurity=False).hexdigest():
            raise NotDirect("nothing proves that the part arrived as it was sent")
        return etag

    async def _compares(self, bucket: str, key: str, query: dict[str, str], body: bytes) -> bool:
        """Whether bodies arrive as they were sent: by TLS, or by a store that compares them with their CRC-32.

        Such a store refuses a part with a wrong one. The part is sent once more, so that nothing is kept of what was
        said of it; it is the same part, as some stores take no other under its number.
        """
        try:
            if (await self._base(await self._client(bucket), bucket)).startswith("https://"):
                return True
            await self._put(bucket, key, query, {}, body, crc=zlib.crc32(body) ^ 1)
        except NotDirect as answered:
            return answered.refused
        except Exception:  # noqa: BLE001 - nobody knows; the part itself will say what is wrong
            self._compared.pop(bucket, None)
        return False

    async def _put(
        self,
        bucket: str,
        key: str,
        query: dict[str, str],
        headers: dict[str, str],
        body: bytes,
        crc: int | None = None,
    ) -> str:
        client = await self._client(bucket)
        if not sends_checksums(client) or (client.meta.config.s3 or {}).get("payload_signing_enabled"):
            raise NotDirect("bodies are proved in another way")
        checksum = zlib.crc32(body) if crc is None else crc
        headers["x-amz-checksum-crc32"] = base64.b64encode(checksum.to_bytes(4, "big")).decode()
        answer = await self._send(client, "PUT", bucket, key, query, headers, body)
        await answer.content
        if not answer.headers.get("ETag"):
            raise NotDirect("an answer without an etag")
        return str(answer.headers["ETag"])

    async def _client(self, bucket: str) -> Any:
        """The client of a bucket, if it signs with version 4 or not at all, and adds nothing of the user's own."""
        from botocore import UNSIGNED

        fs = self.fs
        special = ":" in bucket or bucket.endswith("--x-s3") or fs.req_kw or fs.s3_additional_kwargs
        if special or bucket in self._left:
            raise NotDirect("arguments of the user's, or a special bucket")
        await fs.set_session()
        client = await fs.get_s3(bucket)
        version = client.meta.config.signature_version
        if version is not UNSIGNED and version not in ("s3v4", "v4"):
            raise NotDirect("another way of signing")
        return client

    async def _send(
        self,
        client: Any,
        method: str,
        bucket: str,
        key: str,
        query: dict[str, str],
        headers: dict[str, str],
        body: bytes | None,
    ) -> Any:
        from botocore.exceptions import ClientError, HTTPClientError

        try:
            request = await self._request(client, method, bucket, key, query, headers)
            blocks = None
            if body is not None:
                request.body = blocks = _Blocks(body)
                request.headers["Content-Length"] = str(len(body))
            answer = await _unless_stuck(client._endpoint.http_session.send(request), blocks)
        except (NotDirect, HTTPClientError, asyncio.TimeoutError):
            raise  # the last ones as the client's own call would
        except Exception as error:  # noqa: BLE001 - the client's own call, which comes next, says what is wrong
            raise NotDirect(type(error).__name__) from None
        if not type(answer.raw).__module__.startswith("aiohttp"):
            raise NotDirect("another kind of session", refused=True)
        if answer.status_code in (200, 206):
            return answer
        said = await answer.content
        _logger.debug("a direct request was answered with %s: %r", answer.status_code, said[:200])
        if answer.status_code in _BUSY:
            told = {"Code": str(answer.status_code), "Message": _element(b"Message", said)}
            raise ClientError({"Error": told, "ResponseMetadata": {"HTTPStatusCode": answer.status_code}}, method)
        raise NotDirect(f"the store answered {answer.status_code}", refused=True, said=_element(b"Code", said))

    async def _request(
        self, client: Any, method: str, bucket: str, key: str, query: dict[str, str], headers: dict[str, str]
    ) -> Any:
        from botocore import UNSIGNED
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.config import Config

        if self._config is None:
            self._config = Config(s3={"payload_signing_enabled": False})
        address = f"{await self._base(client, bucket)}/{quote(key, safe='/~')}"
        address = f"{address}?{urlencode(query)}" if query else address
        request = AWSRequest(method, address, headers, stream_output=method == "GET")
        request.headers["User-Agent"] = client.meta.config.user_agent
        request.context["client_config"] = self._config
        if client.meta.config.signature_version is not UNSIGNED:
            signer = client._request_signer
            credentials = await signer._credentials.get_frozen_credentials()
            S3SigV4Auth(credentials, signer.signing_name, signer.region_name).add_auth(request)
        return request.prepare()

    async def _base(self, client: Any, bucket: str) -> str:
        """What comes before the keys of a bucket, from an address that the client made for the key ``key``."""
        known = self._bases.get(bucket)
        if known is None or known[0] is not client:
            signed = await client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "key"})
            address = str(signed).partition("?")[0]
            if not address.endswith("/key"):
                raise NotDirect("another way of addressing objects")
            known = self._bases[bucket] = (client, address.removesuffix("/key"))
        return known[1]


def sends_checksums(client: Any) -> bool:
    """Whether the client sends a checksum with what it uploads."""
    return getattr(client.meta.config, "request_checksum_calculation", None) == "when_supported"


def _element(name: bytes, said: bytes) -> str:
    found = re.search(b"<%s>(.*?)</%s>" % (name, name), said, re.DOTALL)
    return html.unescape(found.group(1).decode(errors="replace")) if found else ""


async def _unless_stuck(sending: Coroutine[Any, Any, Any], blocks: _Blocks | None) -> Any:
    """Await a request, but not for ever where its body does not get on: no timeout of aiohttp's counts meanwhile.

    Raises:
        TimeoutError: The server takes nothing more.
    """
    if blocks is None:
        return await sending
    task = asyncio.ensure_future(sending)
    try:
        before = -1
        while not task.done():
            if blocks.left and blocks.left == before:
                raise asyncio.TimeoutError(f"the server took nothing of a body for {STUCK_S} s")
            before = blocks.left
            await asyncio.wait({task}, timeout=STUCK_S)
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class CheckedBody:
    """The body of an answer, compared with its checksum where all of it is read."""

    def __init__(self, raw: Any, checksum: str | None) -> None:
        """Read an answer of aiohttp's.

        Args:
            raw: The answer.
            checksum: Its CRC-32 in base 64; one of parts, which has a dash, says nothing of the whole.
        """
        self._raw = raw
        self._checksum = None if checksum is None or "-" in checksum else checksum
        self._crc = 0

    async def read(self, size: int = -1) -> bytes:
        """At most so many bytes, none at the end.

        Raises:
            FlexibleChecksumError: botocore's: these are not the bytes that the store means.
        """
        data: bytes = await self._raw.content.read(size)
        if self._checksum is not None:
            self._crc = zlib.crc32(data, self._crc)
            if (size < 0 or not data) and base64.b64decode(self._checksum) != self._crc.to_bytes(4, "big"):
                from botocore.exceptions import FlexibleChecksumError

                raise FlexibleChecksumError(error_msg="the body does not match its CRC-32")
        return data

    def close(self) -> None:
        """Let go of the connection: it can be used again where all was read."""
        self._raw.close()


class _Blocks:
    """Bytes in blocks, as often as somebody asks: a connection that was closed meanwhile is tried once more."""

    def __init__(self, body: bytes) -> None:
        self._body = memoryview(body)
        self.left = 0  # bytes that a connection has not asked for; none where there is no connection yet

    async def __aiter__(self) -> AsyncIterator[memoryview]:
        for start in range(0, len(self._body), BLOCK):
            self.left = len(self._body) - start
            yield self._body[start : start + BLOCK]
        self.left = 0

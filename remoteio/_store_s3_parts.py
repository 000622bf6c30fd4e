"""Sending one part of a multipart upload to S3, proved by its CRC-32 instead of the SHA-256 of a signed body.

The client's own ``upload_part`` reads a body twice more, to hash and to copy it; here it goes out by the same client's
credentials and HTTP session as it is. Whatever this cannot say, or the store refuses, that call does.

Source: Amazon S3 API reference: UploadPart, "Checking object integrity", "Signature calculations" (UNSIGNED-PAYLOAD);
botocore's ``S3SigV4Auth`` and ``AWSRequest``; aiobotocore's ``AIOHTTPSession.send``.
"""

from __future__ import annotations

import base64
import logging
import zlib
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

BLOCK = 2**18  # of a body, in the hands of the connection at a time

_logger = logging.getLogger("remoteio")


async def send_part(fs: Any, upload: dict[str, Any], number: int, body: bytes) -> str | None:
    """Send a part; on the filesystem's loop.

    Args:
        fs: The live s3fs filesystem.
        upload: ``Bucket``, ``Key`` and ``UploadId``.
        number: Of the part, from 1 on.
        body: Its bytes.

    Returns:
        Its etag; None where the client's own call is to send it.
    """
    client = await fs.get_s3(upload["Bucket"])
    if not _is_plain(fs, client, upload["Bucket"]):
        return None
    try:
        request = await _request(client, upload, number, body)
        answer = await client._endpoint.http_session.send(request)
        said = await answer.content
    except Exception as error:  # noqa: BLE001 - the client's own call, which comes next, says what is wrong
        _logger.debug("a part is sent again by the client: %s", type(error).__name__)
        return None
    if answer.status_code != 200 or not answer.headers.get("ETag"):
        _logger.debug("a part is sent again by the client: %s %r", answer.status_code, said[:200])
        return None
    return str(answer.headers["ETag"])


def _is_plain(fs: Any, client: Any, bucket: str) -> bool:
    """Whether the client would send a part with a signature of version 4, a CRC-32 and nothing of the user's own."""
    config = client.meta.config
    return (
        not fs.req_kw
        and not fs.s3_additional_kwargs
        and ":" not in bucket
        and not bucket.endswith("--x-s3")
        and config.signature_version in ("s3v4", "v4")
        and sends_checksums(client)
        and not (config.s3 or {}).get("payload_signing_enabled")
    )


def sends_checksums(client: Any) -> bool:
    """Whether the client sends a checksum with what it uploads."""
    return getattr(client.meta.config, "request_checksum_calculation", None) == "when_supported"


async def _request(client: Any, upload: dict[str, Any], number: int, body: bytes) -> Any:
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.config import Config

    # How the client addresses the object; the signature in it is not used, since an address is shown in messages.
    signed = await client.generate_presigned_url("upload_part", Params={**upload, "PartNumber": number})
    query = urlencode({"partNumber": number, "uploadId": upload["UploadId"]})
    request = AWSRequest("PUT", f"{signed.partition('?')[0]}?{query}")
    request.headers["x-amz-checksum-crc32"] = base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
    request.headers["User-Agent"] = client.meta.config.user_agent
    request.context["client_config"] = Config(s3={"payload_signing_enabled": False})
    signer = client._request_signer
    credentials = await signer._credentials.get_frozen_credentials()
    S3SigV4Auth(credentials, signer.signing_name, signer.region_name).add_auth(request)
    prepared = request.prepare()
    prepared.body = _Blocks(body)
    prepared.headers["Content-Length"] = str(len(body))
    return prepared


class _Blocks:
    """Bytes in blocks, as often as somebody asks: a connection that was closed meanwhile is tried once more."""

    def __init__(self, body: bytes) -> None:
        self._body = memoryview(body)

    async def __aiter__(self) -> AsyncIterator[memoryview]:
        for start in range(0, len(self._body), BLOCK):
            yield self._body[start : start + BLOCK]

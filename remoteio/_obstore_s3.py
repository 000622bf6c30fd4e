"""Describing a live S3 store to obstore: everything read from the store's own client, nothing guessed.

How buckets are addressed is taken from an address that the client makes itself.

Source: object_store's ``AmazonS3ConfigKey``; botocore's ``Config``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import urlsplit

from remoteio import _obstore, _store_s3, _store_s3_direct
from remoteio._engine_fsspec import S3Engine
from remoteio._obstore import Bucket, Description, EtagDialect, Unmapped
from remoteio._store import Info
from remoteio._store_s3 import S3Store
from remoteio._transfer_plan import WINDOW, Outgoing

CREDENTIALS_LAST_S = 5  # then the client is asked again; it renews its own well before they expire

_FOREIGN_VARIABLES = (
    "SERVER_SIDE_ENCRYPTION SSE_KMS_KEY_ID SSE_CUSTOMER_KEY_BASE64 SSE_BUCKET_KEY_ENABLED CHECKSUM_ALGORITHM "
    "COPY_IF_NOT_EXISTS CONDITIONAL_PUT"
).split()

_logger = logging.getLogger("remoteio")


async def describe(fs: Any, bucket: str) -> Description:
    """Describe one bucket of an s3fs filesystem; on its loop.

    Raises:
        Unmapped: Something has no counterpart.
    """
    _refuse_options(fs)
    if ":" in bucket or bucket.endswith("--x-s3"):
        raise Unmapped("access points and directory buckets")
    client = await _client(fs, bucket)
    if client.meta.config.client_cert:
        raise Unmapped("a client certificate")
    anonymous = _is_anonymous(client)
    signed = await client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "key"}, ExpiresIn=60)
    config = {
        **_FIXED,
        **_addressing(signed, bucket),
        "region": client.meta.region_name,
        "skip_signature": anonymous,
    }
    if _store_s3_direct.sends_checksums(client):
        config["checksum_algorithm"] = "sha256"  # not every store compares the one that signs the request
    if not config["region"]:
        raise Unmapped("no region")
    options = _client_options(client, signed)
    return Description(bucket, config, *_obstore.two_ways(options), anonymous)


async def _client(fs: Any, bucket: str) -> Any:
    await fs.set_session()
    return await fs.get_s3(bucket)


# Said in any case, so that the environment has no say.
_FIXED: dict[str, Any] = {
    "s3_express": False,
    "request_payer": False,
    "unsigned_payload": False,
    "disable_tagging": False,
}


def _refuse_options(fs: Any) -> None:
    _obstore.refuse_variables("AWS_", _FOREIGN_VARIABLES)
    if fs.req_kw:
        raise Unmapped("requester pays")
    if fs.s3_additional_kwargs:
        raise Unmapped("s3_additional_kwargs")


def _addressing(signed: str, bucket: str) -> dict[str, Any]:
    """Endpoint and style, from an address that the client made for the key ``key``."""
    parts = urlsplit(signed)
    if not parts.path.endswith("/key"):
        raise Unmapped("the way it addresses objects")
    base = parts.path.removesuffix("/key")
    virtual = parts.netloc.startswith(f"{bucket}.")
    if not virtual:
        if not base.endswith(f"/{bucket}"):
            raise Unmapped("the way it addresses buckets")
        base = base.removesuffix(f"/{bucket}")
    elif base:
        raise Unmapped("a path before the keys")
    endpoint = f"{parts.scheme}://{parts.netloc}{base}"
    return {"endpoint": endpoint, "aws_endpoint_url_s3": endpoint, "virtual_hosted_style_request": virtual}


def _is_anonymous(client: Any) -> bool:
    """Whether requests are not signed at all; they are by the one algorithm that obstore knows, or else refused."""
    from botocore import UNSIGNED

    version = client.meta.config.signature_version
    if version is UNSIGNED:
        return True
    if version not in ("s3v4", "v4"):
        raise Unmapped("its way of signing")
    return False


def _client_options(client: Any, url: str) -> dict[str, Any]:
    config = client.meta.config
    session = client._endpoint.http_session
    if session._proxy_config.proxy_url_for(url):
        raise Unmapped("a proxy")
    _obstore.refuse_proxies()
    options: dict[str, Any] = {
        "allow_http": url.startswith("http://"),
        "connect_timeout": _obstore.milliseconds(config.connect_timeout),
        "read_timeout": _obstore.milliseconds(config.read_timeout),
    }
    if url.startswith("https://"):
        options.update(_obstore.trust(session._verify))
    return options


def provider(fs: Any, bucket: str, failed: Callable[[Exception], None]) -> Callable[[], dict[str, Any]]:
    """Asks the live client for its credentials, again and again.

    Args:
        fs: The s3fs filesystem.
        bucket: The bucket, for stores with a client per region.
        failed: Told the client's own error, of which obstore keeps only the words.
    """

    async def ask() -> Any:
        client = await _client(fs, bucket)
        return await client._request_signer._credentials.get_frozen_credentials()

    def credentials() -> dict[str, Any]:
        # Called in obstore's own threads, some of which know of no loop: so no coroutine, but a wait for one.
        try:
            found = asyncio.run_coroutine_threadsafe(ask(), fs.loop).result(_obstore.ASK_BOUND_S)
        except Exception as error:
            failed(error)
            raise
        return {
            "access_key_id": found.access_key,
            "secret_access_key": found.secret_key,
            "token": found.token,
            "expires_at": datetime.now(timezone.utc) + timedelta(seconds=CREDENTIALS_LAST_S),
        }

    return credentials


class S3Dialect(EtagDialect):
    """S3, where obstore's uploads are proved by their etags, or by what the live client says of them."""

    def __init__(self, store: S3Store, plain: S3Engine) -> None:
        """Keep the store and the engine over its live client."""
        self._store = store
        self._plain = plain

    def is_kept(self, key: str) -> bool:
        """See `_obstore.Dialect`."""
        return True

    async def describe(self, bucket: str) -> Description:
        """See `_obstore.Dialect`."""
        return await describe(self._store.fs, bucket)

    def client(self, told: Description, failed: Callable[[Exception], None]) -> tuple[Any, dict[str, Any]]:
        """See `_obstore.Dialect`."""
        from obstore.store import S3Store

        ask = None if told.anonymous else provider(self._store.fs, told.bucket, failed)
        return S3Store, {"config": told.config, "credential_provider": ask}

    def version(self, meta: Any) -> str | None:
        """See `_obstore.Dialect`."""
        return _store_s3.quoted(meta["e_tag"])

    def pin(self, info: Info) -> dict[str, Any]:
        """See `_obstore.Dialect`."""
        return {"if_match": info.version} if info.version else {}

    async def send(self, bucket: Bucket, file: Outgoing, moved: Callable[[int], None], beside: int) -> Info | None:
        """See `_obstore.Dialect`."""
        if file.size > WINDOW:  # obstore sends no condition with parts, leaves those of a failure behind, and is slower
            return None
        key = file.location.key
        answer, _, proved = await _obstore.put(bucket, file, moved, _attributes(key))
        return Info(key, file.size, False, self.version(answer)) if proved else await self._plain.described(file)


def _attributes(key: str) -> dict[str, str]:
    kind = _store_s3._content_type(key).get("ContentType")
    return {"Content-Type": kind} if kind else {}

"""Describing a live S3 store to obstore: everything read from the store's own client, nothing guessed.

How buckets are addressed is taken from an address that the client makes itself. Whatever
has no counterpart in obstore is a reason to stay with the client.

Source: object_store's ``AmazonS3ConfigKey`` and ``ClientConfigKey``; botocore's ``Config``.
"""

from __future__ import annotations

import asyncio
import os
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import urlsplit

ASK_BOUND_S = 60
CREDENTIALS_LAST_S = 5  # then the client is asked again; it renews its own well before they expire

# obstore reads these from the environment, where the client that it stands in for does not.
_FOREIGN_VARIABLES = (
    "AWS_SERVER_SIDE_ENCRYPTION AWS_SSE_KMS_KEY_ID AWS_SSE_CUSTOMER_KEY_BASE64 AWS_SSE_BUCKET_KEY_ENABLED "
    "AWS_CHECKSUM_ALGORITHM AWS_PROXY_URL AWS_PROXY_EXCLUDES AWS_PROXY_CA_CERTIFICATE AWS_COPY_IF_NOT_EXISTS "
    "AWS_CONDITIONAL_PUT AWS_ALLOW_INVALID_CERTIFICATES AWS_DEFAULT_CONTENT_TYPE AWS_USER_AGENT"
).split()


class Unmapped(Exception):
    """The store has something that obstore cannot be told; the message says what."""


@dataclass(frozen=True)
class Description:
    """One bucket of a store, as obstore is told.

    Attributes:
        bucket: Its name.
        config: Settings of the protocol.
        client_options: Settings of the HTTP client.
        anonymous: Whether requests are not signed.
    """

    bucket: str
    config: dict[str, Any]
    client_options: dict[str, Any]
    anonymous: bool


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
    if not config["region"]:
        raise Unmapped("no region")
    return Description(bucket, config, _client_options(client, signed), anonymous)


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
    found = [name for name in _FOREIGN_VARIABLES if os.environ.get(name)]
    if found:
        raise Unmapped(f"{found[0]} in the environment")
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
    if set(urllib.request.getproxies()) - {"no"}:
        raise Unmapped("proxies in the environment")  # obstore may read the exceptions from them differently
    options: dict[str, Any] = {
        "allow_http": url.startswith("http://"),
        "connect_timeout": _seconds(config.connect_timeout),
        "read_timeout": _seconds(config.read_timeout),
    }
    if url.startswith("https://"):
        options.update(_trust(session._verify))
    return options


def _seconds(value: Any) -> str:
    if not isinstance(value, (int, float)):
        raise Unmapped("its timeouts")
    return f"{max(1, round(value * 1000))}ms"


def _trust(verify: Any) -> dict[str, Any]:
    """Which certificates are trusted. A bundle of the user's comes on top of the system's own."""
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
            found = asyncio.run_coroutine_threadsafe(ask(), fs.loop).result(ASK_BOUND_S)
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

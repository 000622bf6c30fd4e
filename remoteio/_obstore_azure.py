"""Describing a live adlfs filesystem to obstore, and the engine over its client that stands in.

Everything is read from the filesystem's own ``BlobServiceClient``. Without obstore these stores
are reached by blocking calls, as every other filesystem of fsspec is.

Source: object_store's ``AzureConfigKey``; azure-storage-blob's ``BlobServiceClient``; Azure Blob Storage REST API:
Get Blob, Put Blob, Put Block List (blocks of an upload that failed vanish by themselves).
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timezone
from typing import Any, BinaryIO, cast

from remoteio import _obstore, _store_generic
from remoteio._engine_fsspec import Slice
from remoteio._obstore import Bucket, Description, EtagDialect, Unmapped
from remoteio._store import Info
from remoteio._store_generic import GenericStore
from remoteio._store_loop import retried
from remoteio._store_objects import split
from remoteio._transfer_plan import WINDOW, Buffer, Outgoing

PROTOCOLS = ("abfs", "az")
SCOPE = "https://storage.azure.com/.default"
MOST_BLOCKS = 50_000

_METADATA = {"is_directory": "false"}  # as adlfs marks what it writes


def is_azure(store: Any) -> bool:
    """Whether a store is one of adlfs."""
    if not isinstance(store, GenericStore) or store.shown is not None or store.protocol not in PROTOCOLS:
        return False
    return any(cls.__module__.startswith("adlfs.") for cls in type(store.fs).__mro__)


async def describe(fs: Any, bucket: str) -> Description:
    """Describe one container of an adlfs filesystem; on its loop.

    Raises:
        Unmapped: Something has no counterpart.
    """
    _obstore.refuse_variables("AZURE_", ["ENCRYPTION_KEY"])
    _obstore.refuse_proxies()
    client = fs.service_client
    if fs.location_mode != "primary":
        raise Unmapped("location_mode")
    if client._config.proxy_policy.proxies:
        raise Unmapped("a proxy")
    endpoint = f"{client.scheme}://{client.primary_hostname}"
    credential = await _credential(client)
    if "token" in credential and client.scheme != "https":
        raise Unmapped("a token without TLS")
    config = {
        "account_name": client.account_name,
        "endpoint": endpoint,
        "use_emulator": False,
        "use_fabric_endpoint": False,
        "skip_signature": not credential,
    }
    options = _client_options(fs, endpoint)
    return Description(bucket, config, *_obstore.two_ways(options), not credential)


async def _credential(client: Any) -> dict[str, str]:
    """What signs the requests of a client, as obstore is told; nothing for an anonymous one."""
    credential = client.credential
    if credential is None:
        query = client._query_str.lstrip("?")
        if query and "sig=" not in query:
            raise Unmapped("the query of its address")
        return {"sas_token": query} if query else {}
    if hasattr(credential, "account_key"):
        return {"access_key": credential.account_key}
    if hasattr(credential, "signature"):
        return {"sas_token": credential.signature.lstrip("?")}
    if hasattr(credential, "get_token"):
        return {"token": (await credential.get_token(SCOPE)).token}
    raise Unmapped("its credentials")


def _client_options(fs: Any, endpoint: str) -> dict[str, Any]:
    transport = fs.service_client._pipeline._transport
    if type(transport).__name__ != "AioHttpTransport":
        raise Unmapped("its transport")
    given, settings = fs._timeout_kwargs, transport.connection_config
    if "timeout" in given:
        raise Unmapped("timeout")
    if settings.cert:
        raise Unmapped("a client certificate")
    options = {
        "allow_http": endpoint.startswith("http://"),
        "connect_timeout": _obstore.milliseconds(given.get("connection_timeout", settings.timeout)),
        "read_timeout": _obstore.milliseconds(given.get("read_timeout", settings.read_timeout)),
    }
    if endpoint.startswith("https://"):
        own = os.environ.get("SSL_CERT_FILE") if settings.verify is True else None
        options.update(_obstore.trust(own or settings.verify))
    return options


def provider(fs: Any, failed: Callable[[Exception], None]) -> Callable[[], dict[str, Any]]:
    """Asks the live client for its credentials at each request.

    Args:
        fs: The adlfs filesystem, whose credential objects keep their tokens and renew them.
        failed: Told the client's own error, of which obstore keeps only the words.
    """

    def credentials() -> dict[str, Any]:
        # Called in obstore's own threads, which know of no loop: so no coroutine, but a wait for one.
        asked = asyncio.run_coroutine_threadsafe(_credential(fs.service_client), fs.loop)
        try:
            return {**asked.result(_obstore.ASK_BOUND_S), "expires_at": datetime.now(timezone.utc)}
        except Exception as error:
            failed(error)
            raise

    return credentials


class AzureDialect(EtagDialect):
    """Azure Blob Storage, where what went up is proved by its size, as the live client tells it."""

    def __init__(self, store: GenericStore, plain: AzureEngine) -> None:
        """Keep the store and the engine over its live client."""
        self._store = store
        self._plain = plain

    def is_kept(self, key: str) -> bool:
        """See `_obstore.Dialect`: adlfs reads a version into some keys."""
        return tuple(self._store.fs.split_path(key)) == (*split(key), None)

    async def describe(self, bucket: str) -> Description:
        """See `_obstore.Dialect`."""
        return await describe(self._store.fs, bucket)

    def client(self, told: Description, failed: Callable[[Exception], None]) -> tuple[Any, dict[str, Any]]:
        """See `_obstore.Dialect`."""
        from obstore.store import AzureStore

        ask = None if told.anonymous else provider(self._store.fs, failed)
        return AzureStore, {"config": told.config, "credential_provider": ask}

    def pin(self, info: Info) -> dict[str, Any]:
        """See `_obstore.Dialect`."""
        if not (info.version or "").startswith('"'):
            raise Unmapped("etags of another form")
        return {"if_match": info.version}

    async def send(self, bucket: Bucket, file: Outgoing, moved: Callable[[int], None], beside: int) -> Info | None:
        """See `_obstore.Dialect`."""
        if file.size > MOST_BLOCKS * WINDOW:
            return None
        if file.size <= WINDOW:
            _, body, _ = await _obstore.put(bucket, file, moved, _METADATA)
            return await self._plain.described(file, body)
        await _obstore.put_parts(bucket, file, moved, _METADATA, beside)
        return await self._plain.described(file)


class AzureEngine:
    """Azure Blob Storage through adlfs's client."""

    name = "fsspec"

    def __init__(self, store: GenericStore) -> None:
        """Keep the store."""
        self._store = store

    async def fetch(self, key: str, start: int, stop: int, info: Info, write: Callable[[Buffer], None]) -> None:
        """Ask once for a range; see `_transfer_loop.Engine`."""
        async for data in self._chunks(key, start, stop, info):
            write(data)

    async def _chunks(self, key: str, start: int, stop: int, info: Info) -> AsyncIterator[bytes]:
        from azure.core import MatchConditions
        from azure.core.exceptions import ResourceModifiedError, ResourceNotFoundError

        fs = self._store.fs
        container, blob, version = fs.split_path(key)
        pinned: dict[str, Any] = {"version_id": version} if version else {}
        if info.version and not version:
            quoted = '"' + info.version.strip('"') + '"'
            pinned = {"etag": quoted, "match_condition": MatchConditions.IfNotModified}
        try:
            async with fs.service_client.get_blob_client(container=container, blob=blob) as client:
                answer = await client.download_blob(start, stop - start, **pinned, **fs._timeout_kwargs)
                async for data in answer.chunks():
                    yield data
        except ResourceModifiedError as error:
            raise self._store.error(errno.ESTALE, key, "the object was replaced while it was being read") from error
        except ResourceNotFoundError as error:
            raise self._store.error(errno.ENOENT, key) from error

    async def send(self, file: Outgoing, moved: Callable[[int], None], beside: int) -> Info:
        """Publish a file; see `_transfer_loop.Engine`."""
        store, key = self._store, file.location.key
        await retried(lambda: store.fs._pipe_file(key, cast(BinaryIO, Slice(file, 0, file.size))))
        moved(file.size)
        return await self.described(file)

    async def described(self, file: Outgoing, body: bytes | None = None) -> Info:
        """What the store says that it has now; an error where that is not the size of the file.

        Args:
            file: The file.
            body: All of its bytes, where they went in one request: Azure keeps the checksum of those.
        """
        store, key = self._store, file.location.key
        told = await retried(lambda: store.fs._info(key))
        found = _store_generic._info(told, key)
        if found.size != file.size:
            raise store.error(errno.EIO, key, f"the store has {found.size} of {file.size} bytes")
        checksum = getattr(told.get("content_settings"), "content_md5", None)
        if body is not None and checksum and bytes(checksum) != hashlib.md5(body, usedforsecurity=False).digest():
            raise store.error(errno.EIO, key, "the store has other bytes than were sent")
        return found

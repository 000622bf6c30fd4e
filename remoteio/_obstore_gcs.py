"""Describing a live GCS store to obstore: everything read from gcsfs's own session and credentials, nothing guessed.

obstore speaks the XML API. Objects are read by it and small ones written; large ones go up
through the live client, since no server in reach of the tests takes multipart uploads of that API.

Source: object_store's ``GoogleConfigKey``; Cloud Storage XML API reference: GET Object, PUT Object; aiohttp's
``ClientTimeout``; google-auth's ``Credentials.apply``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any
from urllib.parse import urlsplit

from remoteio import _obstore, _store_gcs
from remoteio._engine_fsspec import GCSEngine
from remoteio._obstore import Bucket, Description, Unmapped
from remoteio._obstore_answers import Answer
from remoteio._store import Info
from remoteio._store_gcs import GCSStore
from remoteio._store_loop import retried
from remoteio._store_objects import split
from remoteio._transfer_plan import Outgoing

UNBOUNDED = "24h"

_FOREIGN_VARIABLES = "BASE_URL BEARER_TOKEN SERVICE_ACCOUNT SERVICE_ACCOUNT_PATH SERVICE_ACCOUNT_KEY".split()


async def describe(fs: Any, bucket: str) -> Description:
    """Describe one bucket of a gcsfs filesystem; on its loop.

    Raises:
        Unmapped: Something has no counterpart.
    """
    _refuse_options(fs)
    await fs._set_session()
    endpoint = _endpoint(fs)
    headers: dict[str, str] = {}
    await _obstore.in_thread(lambda: fs.credentials.apply(headers))  # it may renew them, and block
    anonymous = not _token(headers)
    # The address of the server has no setting of its own in older obstore: only an account's file tells it.
    account = {"gcs_base_url": endpoint, "disable_oauth": True, "client_email": "", "private_key": ""}
    config = {
        "service_account_key": json.dumps({**account, "private_key_id": ""}),
        "skip_signature": anonymous,
    }
    options = _client_options(fs, endpoint)
    return Description(bucket, config, options, options, anonymous)


def _refuse_options(fs: Any) -> None:
    _obstore.refuse_variables("GOOGLE_", _FOREIGN_VARIABLES)
    _obstore.refuse_proxies()
    if fs.requester_pays:
        raise Unmapped("requester pays")
    if fs.session_kwargs:
        raise Unmapped("session_kwargs")
    if getattr(fs, "_use_client_cert", False):
        raise Unmapped("a client certificate")


def _endpoint(fs: Any) -> str:
    endpoint = str(fs._location).rstrip("/")
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or parts.path or parts.query or "@" in parts.netloc:
        raise Unmapped("the address of its server")
    return endpoint


def _token(headers: Mapping[str, str]) -> str:
    """The token in the headers that the credentials add to a request; empty where they add none."""
    told = {name.lower(): value for name, value in headers.items()}
    kind, _, token = told.pop("authorization", "Bearer ").partition(" ")
    if told:
        raise Unmapped(f"its credentials send {min(told)}")
    if kind != "Bearer":
        raise Unmapped("its way of signing")
    return token


def _client_options(fs: Any, endpoint: str) -> dict[str, Any]:
    options: dict[str, Any] = {"allow_http": endpoint.startswith("http://"), **_timeouts(fs)}
    if endpoint.startswith("https://"):
        # What only a directory holds, obstore does not trust: the live client is then the one to connect.
        options.update(_obstore.trust(os.environ.get("SSL_CERT_FILE") or True))
    return options


def _timeouts(fs: Any) -> dict[str, str]:
    given = fs.requests_timeout
    if isinstance(given, (int, float)):
        return {"timeout": _bound(given), "connect_timeout": _bound(given)}
    limits: Any = fs.session.timeout if given is None else given
    if not hasattr(limits, "sock_connect"):
        raise Unmapped("its timeouts")
    found = {"timeout": _bound(limits.total), "connect_timeout": _bound(limits.sock_connect or limits.connect)}
    return {**found, "read_timeout": _bound(limits.sock_read)} if limits.sock_read else found


def _bound(seconds: float | None) -> str:
    return _obstore.milliseconds(seconds) if seconds else UNBOUNDED


def provider(fs: Any, failed: Callable[[Exception], None]) -> Callable[[], dict[str, Any]]:
    """Asks the live client for its token at each request.

    Args:
        fs: The gcsfs filesystem, which renews its token well before that expires.
        failed: Told the client's own error, of which obstore keeps only the words.
    """

    def credentials() -> dict[str, Any]:
        headers: dict[str, str] = {}
        try:
            fs.credentials.apply(headers)
            token = _token(headers)
        except Exception as error:
            failed(error)
            raise
        return {"token": token, "expires_at": datetime.now(timezone.utc)}  # so that the next request asks again

    return credentials


class GCSDialect:
    """Google Cloud Storage, where the generation of an object is asked for by its number.

    A bucket that keeps old generations answers with the one that was described; any other says
    that there is none, and the live client then tells whether the object was replaced or removed.
    """

    def __init__(self, store: GCSStore, plain: GCSEngine) -> None:
        """Keep the store; the engine over its live client is not needed."""
        self._store = store

    def is_kept(self, key: str) -> bool:
        """See `_obstore.Dialect`."""
        return True

    async def describe(self, bucket: str) -> Description:
        """See `_obstore.Dialect`."""
        return await describe(self._store.fs, bucket)

    def client(self, told: Description, failed: Callable[[Exception], None]) -> tuple[Any, dict[str, Any]]:
        """See `_obstore.Dialect`."""
        from obstore.store import GCSStore

        ask = None if told.anonymous else provider(self._store.fs, failed)
        return GCSStore, {"config": told.config, "credential_provider": ask}

    def pin(self, info: Info) -> dict[str, Any]:
        """See `_obstore.Dialect`."""
        return {"version": info.version} if info.version else {}

    def version(self, meta: Any) -> str | None:
        """See `_obstore.Dialect`."""
        found = meta.get("version")
        return None if found is None else str(found)

    def replaces(self, version: str) -> dict[str, str]:
        """See `_obstore.Dialect`."""
        return {"version": version}

    def is_doubtful(self, said: Exception) -> bool:
        """See `_obstore.Dialect`: a replaced object is not found, nor is any by a server without this API."""
        return isinstance(said, Answer) and said.status == 404

    async def send(self, bucket: Bucket, file: Outgoing, moved: Callable[[int], None], beside: int) -> Info | None:
        """See `_obstore.Dialect`."""
        key = file.location.key
        if file.size > _store_gcs.CHUNK:
            return None
        kind = {"Content-Type": _store_gcs._content_type(key)}
        answer, body, proved = await _obstore.put(bucket, file, moved, kind)
        if proved and answer["version"]:
            return Info(key, file.size, False, str(answer["version"]))
        return await self._verified(key, body)

    async def _verified(self, key: str, body: bytes) -> Info:
        """What the store says that it has now; an error where those are not the bytes that were sent."""
        store = self._store
        name, inner = split(key)
        item = await retried(lambda: store._json("GET", "b/{}/o/{}", name, inner))
        digest = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        store._check_answer(key, item, len(body), digest)
        return _store_gcs._info(name, item)

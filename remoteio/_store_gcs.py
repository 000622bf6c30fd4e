"""Google Cloud Storage, through the JSON calls of gcsfs's own session.

gcsfs's upload helpers are not used: the simple one frames its body with a fixed boundary
that a file may contain, and all of them retry by themselves.

Source: Cloud Storage JSON API reference: Objects get, list, insert (media and resumable),
rewrite, delete; "Request preconditions".
"""

from __future__ import annotations

import asyncio
import base64
import calendar
import errno
import hashlib
import io
import json
import mimetypes
import re
import time
import uuid
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, BinaryIO
from urllib.parse import quote

from remoteio._store import Info
from remoteio._store_loop import retried
from remoteio._store_objects import RangedStore, split
from remoteio._store_s3 import _read_at

CHUNK = 8 * 2**20  # a multiple of 256 KiB, as resumable uploads want
DELETES_IN_FLIGHT = 16
DELETE_BATCH = 256


class GCSStore(RangedStore):
    """Objects of Google Cloud Storage or its emulator."""

    compares = True

    @property
    def endpoint(self) -> str:
        return str(self.fs._location)

    async def _json(self, method: str, path: str, *args: str, **kwargs: Any) -> Any:
        return await self.fs._call(method, path, *args, json_out=True, **kwargs)

    # ---- questions

    def _head(self, key: str) -> Info:
        bucket, inner = split(key)
        return _info(bucket, self.run(key, lambda: self._json("GET", "b/{}/o/{}", bucket, inner)))

    def _list(self, start: str, delimiter: str, limit: int | None = None) -> Iterator[Info]:
        bucket, prefix = split(start)
        token: str | None = None
        while True:
            query = {"prefix": prefix, "delimiter": delimiter or None, "maxResults": limit or 1000, "pageToken": token}
            page = self.run(start, partial(self._json, "GET", "b/{}/o", bucket, **query))
            for common in page.get("prefixes") or ():
                yield Info(f"{bucket}/{common}", 0, True)
            for item in page.get("items") or ():
                yield _info(bucket, item)
            token = page.get("nextPageToken")
            if limit or not token:
                return

    def _buckets(self) -> Iterator[Info]:
        token: str | None = None
        while True:
            page = self.run("", partial(self._json, "GET", "b", project=self.fs.project, pageToken=token))
            for bucket in page.get("items") or ():
                yield Info(str(bucket["name"]), 0, True)
            token = page.get("nextPageToken")
            if not token:
                return

    # ---- bytes

    async def read_async(self, key: str, start: int, stop: int | None, info: Info | None) -> bytes:
        bucket, inner = split(key)
        url = f"{self.fs._location}/download/storage/v1/b/{quote(bucket, safe='')}/o/{quote(inner, safe='')}"
        headers = {}
        if start or stop is not None:
            headers["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
        version = info.version if info is not None else None
        try:
            answered, data = await self.fs._call("GET", url, alt="media", headers=headers, ifGenerationMatch=version)
        except FileExistsError as error:  # gcsfs's word for a failed precondition
            raise self.error(errno.ESTALE, key, "the object was replaced while it was being read") from error
        if version and answered.get("X-Goog-Generation", version) != version:
            raise self.error(errno.ESTALE, key, "the object was replaced while it was being read")
        return bytes(data)

    def write(
        self, key: str, source: BinaryIO, size: int, *, exclusive: bool = False, expected: str | None = None
    ) -> None:
        condition = {"ifGenerationMatch": "0"} if exclusive else {}
        if expected is not None:
            condition = {"ifGenerationMatch": expected or "0"}
        if size <= CHUNK:
            body = _read_at(source, 0, size, self, key)
            self.run(key, lambda: self._put(key, body, condition))
        else:
            if exclusive and self.head(key) is not None:  # found early: it need not be sent to be refused
                raise self.error(errno.EEXIST, key)
            self.run(key, lambda: self._put_resumable(key, source, size, condition), retry=False)

    def _upload_url(self, bucket: str) -> str:
        return f"{self.fs._location}/upload/storage/v1/b/{quote(bucket, safe='')}/o"

    async def _put(self, key: str, body: bytes, condition: dict[str, str]) -> None:
        bucket, inner = split(key)
        boundary = uuid.uuid4().hex
        while boundary.encode() in body:
            boundary = uuid.uuid4().hex
        parts = [("application/json; charset=UTF-8", json.dumps({"name": inner}).encode()), (_content_type(key), body)]
        framed = [f"--{boundary}\r\nContent-Type: {kind}\r\n\r\n".encode() + data + b"\r\n" for kind, data in parts]
        framed.append(f"--{boundary}--".encode())
        headers = {"Content-Type": f'multipart/related; boundary="{boundary}"'}
        answer = await self._json(
            "POST",
            self._upload_url(bucket),
            uploadType="multipart",
            headers=headers,
            data=_Body(b"".join(framed)),
            **condition,
        )
        digest = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        self._check_answer(key, answer, len(body), digest)

    async def _put_resumable(self, key: str, source: BinaryIO, size: int, condition: dict[str, str]) -> None:
        bucket, inner = split(key)
        kind = _content_type(key)
        headers, _ = await retried(
            lambda: self.fs._call(
                "POST",
                self._upload_url(bucket),
                uploadType="resumable",
                json={"name": inner},
                headers={"X-Upload-Content-Type": kind},
                **condition,
            )
        )
        session = str(headers["Location"])
        md5 = hashlib.md5(usedforsecurity=False)
        answer: Any = None
        try:
            for offset in range(0, size, CHUNK):
                body = _read_at(source, offset, min(CHUNK, size - offset), self, key)
                md5.update(body)
                answer = await self._put_chunk(session, body, offset, size, key)
        except BaseException:
            await asyncio.shield(self._end_session(session))
            raise
        self._check_answer(key, answer, size, base64.b64encode(md5.digest()).decode())

    async def _put_chunk(self, session: str, body: bytes, offset: int, size: int, key: str) -> Any:
        span = {"Content-Range": f"bytes {offset}-{offset + len(body) - 1}/{size}", "Content-Type": _content_type(key)}
        headers, text = await retried(lambda: self.fs._call("PUT", session, headers=span, data=_Body(body)))
        if "Range" in headers:
            kept = int(headers["Range"].rpartition("-")[2]) + 1
            if kept < offset + len(body):  # the server kept a part: the rest goes again
                return await self._put_chunk(session, body[kept - offset :], kept, size, key)
        return json.loads(text) if text else None

    async def _end_session(self, session: str) -> None:
        try:
            await self.fs._call("DELETE", session)
        except Exception:  # noqa: BLE001 - the first failure is the one to report; sessions expire by themselves
            return

    def _check_answer(self, key: str, answer: Any, size: int, digest: str) -> None:
        if not isinstance(answer, dict) or int(answer.get("size", -1)) != size:
            raise self.error(errno.EIO, key, "the store does not have all bytes")
        if answer.get("md5Hash") not in (None, "", digest):
            raise self.error(errno.EIO, key, "the store has other bytes than were sent")

    def copy(self, source: str, target: str, info: Info) -> None:
        with self.as_replaced(source):
            self.run(target, lambda: self._rewrite(source, target, info.version), retry=False)

    async def _rewrite(self, source: str, target: str, version: str | None) -> None:
        token: str | None = None
        done = False
        while not done:
            again = token

            async def step(token: str | None = again) -> Any:
                path = "b/{}/o/{}/rewriteTo/b/{}/o/{}"
                kind = {"Content-Type": "application/json"}
                query = {"rewriteToken": token, "ifSourceGenerationMatch": version}
                return await self._json("POST", path, *split(source), *split(target), headers=kind, **query)

            answer = await retried(step)
            done, token = bool(answer["done"]), answer.get("rewriteToken")

    # ---- removal

    def delete(self, key: str) -> None:
        bucket, inner = split(key)
        try:
            self.run(key, lambda: self.fs._call("DELETE", "b/{}/o/{}", bucket, inner))
        except FileNotFoundError:
            return

    def delete_many(self, keys: Iterable[str]) -> Iterator[tuple[str, OSError]]:
        batch: list[str] = []
        for key in keys:
            batch.append(key)
            if len(batch) == DELETE_BATCH:
                yield from self._delete_batch(batch)
                batch = []
        yield from self._delete_batch(batch)

    def _delete_batch(self, batch: list[str]) -> list[tuple[str, OSError]]:
        from remoteio._store_errors import translate

        gate = asyncio.Semaphore(DELETES_IN_FLIGHT)

        async def one(key: str) -> tuple[str, OSError] | None:
            async with gate:
                try:
                    await retried(lambda: self.fs._call("DELETE", "b/{}/o/{}", *split(key)))
                except FileNotFoundError:
                    return None
                except Exception as error:  # noqa: BLE001 - told per key, as the caller wants it
                    return key, translate(error, self.url_of(key), self.secrets)
            return None

        async def every() -> list[tuple[str, OSError] | None]:
            return list(await asyncio.gather(*(one(key) for key in batch)))

        if not batch:
            return []
        return [failed for failed in self.run(batch[0], every, retry=False) if failed is not None]

    def _put_marker(self, key: str) -> None:
        self.run(key, lambda: self._put(f"{key}/", b"", {}))


class _Body(io.BytesIO):
    """A body that goes to its connection in pieces: of bytes all is handed over at once, and sent after Ctrl-C too."""

    def close(self) -> None:
        """Stay open: what was sent is closed, and may have to be sent again."""


def _info(bucket: str, item: dict[str, Any]) -> Info:
    key = f"{bucket}/{item['name']}"
    return Info(
        key, int(item.get("size", 0)), key.endswith("/"), str(item["generation"]), _seconds(item.get("updated"))
    )


def _seconds(stamp: str | None) -> float | None:
    """Seconds since the epoch of an RFC 3339 time, whose fraction may have any number of digits."""
    if not stamp:
        return None
    whole, fraction = stamp[:19], re.match(r"\.\d+", stamp[19:])
    return calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")) + (float(fraction.group()) if fraction else 0.0)


def _content_type(key: str) -> str:
    return mimetypes.guess_type(key)[0] or "application/octet-stream"

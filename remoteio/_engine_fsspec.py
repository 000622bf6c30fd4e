"""The engine that is always there: S3 and GCS through the live store's own client.

Bodies are read in small pieces as they come, from several requests at once; no whole body
is ever in memory on the way down, and a few parts of 8 MiB on the way up.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import io
from collections.abc import Callable
from typing import Any, BinaryIO, cast
from urllib.parse import quote

from remoteio import _store_s3
from remoteio._store import Info
from remoteio._store_gcs import GCSStore
from remoteio._store_loop import retried
from remoteio._store_objects import split
from remoteio._store_s3 import S3Store
from remoteio._transfer_plan import MIB, Buffer, Outgoing

PIECE = MIB  # at most this much of a body is in Python's hands at a time
PARTS_AT_ONCE = 6  # parts in memory, of all files together
LARGEST_BODY = 16 * MIB  # larger parts, of objects over 150 GiB, are read from the disk while they are sent
LARGEST_OBJECT = 5 * 2**40


class S3Engine:
    """S3 through s3fs's client."""

    name = "fsspec"

    def __init__(self, store: S3Store) -> None:
        """Keep the store; make this on its loop's thread or anywhere else."""
        self._store = store
        self._parts: asyncio.Semaphore | None = None

    async def fetch(self, key: str, start: int, stop: int, info: Info, write: Callable[[Buffer], None]) -> None:
        """Ask once for a range; see `_transfer_loop.Engine`."""
        store = self._store
        whole = start == 0 and stop == info.size
        try:
            answer = await store.get(key, "" if whole else f"bytes={start}-{stop - 1}", info.version)
        except Exception as error:
            changed = store.as_changed(key, error, info)
            if changed is error:
                raise  # "from" itself would lose what it came from
            raise changed from error
        body = answer["Body"]
        try:
            if info.version and _store_s3.quoted(answer.get("ETag")) not in (None, info.version):
                raise store.error(errno.ESTALE, key, "the object was replaced while it was being read")
            if not whole and not str(answer.get("ContentRange", "")).startswith(f"bytes {start}-"):
                raise store.error(errno.EIO, key, "the store sent another range than the one asked for")
            while data := await body.read(PIECE):
                write(data)
        finally:
            body.close()

    async def send(self, file: Outgoing, moved: Callable[[int], None], beside: int) -> Info:
        """Publish a file; see `_transfer_loop.Engine`."""
        if self._parts is None:
            self._parts = asyncio.Semaphore(PARTS_AT_ONCE)
        if file.size <= _store_s3.PART_SIZE:
            return await self._put(file, moved)
        return await self._put_parts(file, moved)

    async def _put(self, file: Outgoing, moved: Callable[[int], None]) -> Info:
        store, key = self._store, file.location.key
        assert self._parts is not None
        async with self._parts if file.size > MIB else contextlib.nullcontext():
            body = file.read(0, file.size)
            wanted = _store_s3.condition(file.expected)
            etag = await store.write_if(key, wanted, lambda told: store.put(key, body, told))
        moved(file.size)
        if etag.strip('"') == hashlib.md5(body, usedforsecurity=False).hexdigest():
            return Info(key, file.size, False, _store_s3.quoted(etag))
        return await self.described(file)  # encrypted, or a store with etags of its own: its size tells

    async def _put_parts(self, file: Outgoing, moved: Callable[[int], None]) -> Info:
        store, key, size = self._store, file.location.key, file.size
        if size > LARGEST_OBJECT:
            raise store.error(errno.EFBIG, key, "one object holds at most 5 TiB")
        each = _store_s3.part_size(size)
        offsets = range(0, size, each)
        window = min(_store_s3.PARTS_IN_FLIGHT, max(1, PARTS_AT_ONCE * LARGEST_BODY // each))
        gate = self._parts
        assert gate is not None

        async def part(upload: dict[str, Any], number: int) -> Any:
            offset = offsets[number - 1]
            count = min(each, size - offset)
            async with gate:
                if each <= LARGEST_BODY:
                    answer = await store.send_part(upload, number, file.read(offset, count))
                else:
                    body = Slice(file, offset, count)
                    answer = await store._call("upload_part", **upload, PartNumber=number, Body=body)
            moved(count)
            return answer

        await store._multipart(key, len(offsets), part, window, _store_s3.condition(file.expected))
        return await self.described(file)

    async def described(self, file: Outgoing) -> Info:
        """What the store says that it has now; an error where that is not the size of the file."""
        store, key = self._store, file.location.key
        bucket, inner = split(key)
        answer = await retried(lambda: store._call("head_object", Bucket=bucket, Key=inner))
        found = int(answer["ContentLength"])
        if found != file.size:
            raise store.error(errno.EIO, key, f"the store has {found} of {file.size} bytes")
        return _store_s3.as_info(key, found, answer)


class GCSEngine:
    """Google Cloud Storage through gcsfs's session."""

    name = "fsspec"

    def __init__(self, store: GCSStore) -> None:
        """Keep the store."""
        self._store = store

    async def fetch(self, key: str, start: int, stop: int, info: Info, write: Callable[[Buffer], None]) -> None:
        """Ask once for a range; see `_transfer_loop.Engine`."""
        store = self._store
        fs = store.fs
        bucket, inner = split(key)
        url = f"{fs._location}/download/storage/v1/b/{quote(bucket, safe='')}/o/{quote(inner, safe='')}"
        query = {"alt": "media", **({"ifGenerationMatch": info.version} if info.version else {})}
        whole = start == 0 and stop == info.size
        headers = {} if whole else {"Range": f"bytes={start}-{stop - 1}"}
        await fs._set_session()
        async with fs.session.get(
            url, params=fs._get_params(query), headers=fs._get_headers(headers), timeout=fs.requests_timeout
        ) as answer:
            if answer.status >= 400:
                await self._refuse(key, answer)
            if info.version and answer.headers.get("X-Goog-Generation", info.version) != info.version:
                raise store.error(errno.ESTALE, key, "the object was replaced while it was being read")
            if not whole and not answer.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
                raise store.error(errno.EIO, key, "the store sent another range than the one asked for")
            while data := await answer.content.read(PIECE):
                write(data)

    async def _refuse(self, key: str, answer: Any) -> None:
        from gcsfs.retry import validate_response

        if answer.status == 412:
            raise self._store.error(errno.ESTALE, key, "the object was replaced while it was being read")
        validate_response(answer.status, await answer.read(), key)
        raise self._store.error(errno.EIO, key, f"the store answered {answer.status}")

    async def send(self, file: Outgoing, moved: Callable[[int], None], beside: int) -> Info:
        """Publish a file; see `_transfer_loop.Engine`."""
        store, key = self._store, file.location.key
        condition = {} if file.expected is None else {"ifGenerationMatch": file.expected or "0"}
        if file.size <= _gcs_chunk():
            body = file.read(0, file.size)
            await retried(lambda: store._put(key, body, condition))
        else:
            await store._put_resumable(key, cast(BinaryIO, Slice(file, 0, file.size)), file.size, condition)
        moved(file.size)
        return await self.described(file)

    async def described(self, file: Outgoing) -> Info:
        """What the store says that it has now; an error where that is not the size of the file."""
        from remoteio._store_gcs import _info

        store, key = self._store, file.location.key
        bucket, inner = split(key)
        found = _info(bucket, await retried(lambda: store._json("GET", "b/{}/o/{}", bucket, inner)))
        if found.size != file.size:
            raise store.error(errno.EIO, key, f"the store has {found.size} of {file.size} bytes")
        return found


class Slice(io.RawIOBase):
    """A part of a local file as a seekable reader, with a place of its own."""

    def __init__(self, file: Outgoing, offset: int, count: int) -> None:
        """Read ``count`` bytes from ``offset`` on."""
        self._file = file
        self._offset = offset
        self._count = count
        self._at = 0

    def readable(self) -> bool:
        """It can be read."""
        return True

    def seekable(self) -> bool:
        """It can be rewound, as signing and trying again do."""
        return True

    def tell(self) -> int:
        """Bytes from the beginning of the part."""
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place in the part."""
        base = (0, self._at, self._count)[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read; a file that became shorter is an error."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int | None = -1) -> bytes:
        """Read; a file that became shorter is an error."""
        left = max(0, self._count - self._at)
        count = left if size is None or size < 0 else min(size, left)
        data = self._file.read(self._offset + self._at, count)
        self._at += len(data)
        return data

    def __len__(self) -> int:
        return self._count


def _gcs_chunk() -> int:
    from remoteio._store_gcs import CHUNK

    return CHUNK

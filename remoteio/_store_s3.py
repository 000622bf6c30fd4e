"""S3 and what speaks its protocol, through the calls of s3fs's own client.

Keys go to the client as they are: s3fs's path functions would expand patterns, split off
``?versionId=`` and create buckets.

Source: Amazon S3 API reference: HeadObject, GetObject, ListObjectsV2, PutObject (conditional
writes), CreateMultipartUpload, UploadPartCopy, CopyObject, DeleteObjects.
"""

from __future__ import annotations

import asyncio
import errno
import io
import mimetypes
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, TypeVar

from remoteio import _store_errors
from remoteio._store import Info
from remoteio._store_loop import retried
from remoteio._store_objects import ObjectStore, RangedStore, split
from remoteio._store_s3_direct import Direct, NotDirect

T = TypeVar("T")

MIB = 2**20
PART_SIZE = 8 * MIB
PARTS_IN_FLIGHT = 4
BYTES_IN_FLIGHT = 64 * MIB
MAX_PARTS = 10_000
MIN_PART = 5 * MIB
MAX_COPY = 5 * 2**30  # what one CopyObject or UploadPartCopy takes
COPY_PART = 2**30
DELETE_BATCH = 1000
SEND_BOUND_S = 600  # of one request of the client's that sends: it waits for a server that is silent without end
_CHECKSUMS = frozenset("ChecksumCRC32 ChecksumCRC32C ChecksumCRC64NVME ChecksumSHA1 ChecksumSHA256".split())


# What stores say that do not know the header of a condition.
_OF_A_CONDITION = re.compile(r"if-?(none-?)?match|header|condition", re.IGNORECASE)


def part_size(size: int) -> int:
    """Bytes of one part, so that an object of this size stays below the store's 10,000 parts."""
    need = -(-size // MAX_PARTS)
    return max(PART_SIZE, -(-need // MIB) * MIB)


class S3Store(RangedStore):
    """Objects behind the S3 protocol."""

    compares = True
    _direct: Direct | None = None
    _keeps_folders = False  # whether emptied prefixes are listed still, as SeaweedFS does

    @property
    def endpoint(self) -> str:
        fs = self.fs
        from_client = fs.client_kwargs.get("endpoint_url") if fs.client_kwargs else None
        return str(fs.endpoint_url or from_client or _environment_endpoint())

    async def _call(self, method: str, **kwargs: Any) -> Any:
        return await self.fs._call_s3(method, **kwargs)

    @property
    def direct(self) -> Direct:
        """The direct requests of this process's filesystem."""
        fs = self.fs
        if self._direct is None or self._direct.fs is not fs:
            self._direct = Direct(fs)
        return self._direct

    async def get(self, key: str, span: str, version: str | None) -> dict[str, Any]:
        """Ask for an object that must have this version, or for a range of it; on the loop.

        Returns:
            What the client's ``get_object`` does: ``Body``, ``ETag``, ``ContentRange``, ``ContentLength``.
        """
        bucket, inner = split(key)
        try:
            return await self.direct.get(bucket, inner, span, version)
        except NotDirect as said:
            reason = said
        query: dict[str, Any] = {"Bucket": bucket, "Key": inner}
        if span:
            query["Range"] = span
        if version:
            query["IfMatch"] = version
        answer: dict[str, Any] = await self._call("get_object", **query)
        self.direct.leave(bucket, reason)
        return answer

    async def put(self, key: str, body: bytes, condition: dict[str, str]) -> str:
        """Publish an object in one request; on the loop.

        Returns:
            Its etag, empty where the store tells none.
        """
        bucket, inner = split(key)
        kind = _content_type(key)
        try:
            return await self.direct.put(bucket, inner, body, kind.get("ContentType"), condition)
        except NotDirect as said:
            reason = said
        put = {"Bucket": bucket, "Key": inner, "Body": Body(body), **kind, **condition}
        answer = await asyncio.wait_for(self._call("put_object", **put), SEND_BOUND_S)
        self.direct.leave(bucket, reason)
        return str(answer.get("ETag") or "")

    async def send_part(self, upload: dict[str, Any], number: int, body: bytes) -> dict[str, Any]:
        """Send one part of an upload; on the loop."""
        try:
            return {"ETag": await self.direct.part(upload, number, body)}
        except NotDirect as said:
            reason = said
        part = {**upload, "PartNumber": number, "Body": Body(body)}
        answer: dict[str, Any] = await asyncio.wait_for(self._call("upload_part", **part), SEND_BOUND_S)
        self.direct.leave(upload["Bucket"], reason)
        return answer

    async def write_if(self, key: str, condition: dict[str, str], write: Callable[[dict[str, str]], Awaitable[T]]) -> T:
        """Write, with retries, under a condition; without it where the store cannot have it.

        Some stores refuse the header, and to compare takes the right to read, which one who only writes may lack. Any
        other refusal is raised: without the condition the next try could replace what somebody else has written.
        """
        try:
            return await retried(lambda: write(condition))
        except Exception as error:
            if not condition or not await self._cannot_have(key, condition, _store_errors.judge(error)):
                raise
        return await retried(lambda: write({}))

    async def _cannot_have(self, key: str, condition: dict[str, str], said: _store_errors.Verdict) -> bool:
        """Whether it is the condition itself that was refused."""
        if said.number == errno.EINVAL:
            return _OF_A_CONDITION.search(said.detail) is not None
        if said.number == errno.EACCES and "IfMatch" in condition:
            return not await self._may_look(key)
        return said.number == errno.ENOTSUP

    async def _may_look(self, key: str) -> bool:
        """Whether an object may be looked at."""
        bucket, inner = split(key)
        try:
            await retried(lambda: self._call("head_object", Bucket=bucket, Key=inner))
        except Exception as error:  # noqa: BLE001 - judged
            return _store_errors.judge(error).number != errno.EACCES
        return True

    # ---- questions

    def _head(self, key: str) -> Info:
        bucket, inner = split(key)
        try:
            answer = self.run(key, lambda: self._call("head_object", Bucket=bucket, Key=inner))
        except OSError as error:
            if error.errno == errno.EINVAL:
                # The answer to a HEAD has no body to say why; that to a listing has (an expired token, for one).
                next(self._list(key, "/", limit=1), None)
            raise
        return as_info(key, answer["ContentLength"], answer)

    def _list(self, start: str, delimiter: str, limit: int | None = None) -> Iterator[Info]:
        bucket, prefix = split(start)
        query: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix}
        if delimiter:
            query["Delimiter"] = delimiter
        if limit:
            query["MaxKeys"] = limit
        while True:
            page = self.run(start, lambda: self._call("list_objects_v2", **query))
            self._keeps_folders = _is_seaweed(page)
            for common in page.get("CommonPrefixes") or ():
                yield Info(f"{bucket}/{common['Prefix']}", 0, True)
            for item in page.get("Contents") or ():
                key = f"{bucket}/{item['Key']}"
                yield as_info(key, item["Size"], item, is_dir=key.endswith("/"))
            if limit or not page.get("IsTruncated"):
                return
            query["ContinuationToken"] = page["NextContinuationToken"]

    def _buckets(self) -> Iterator[Info]:
        answer = self.run("", lambda: self._call("list_buckets"))
        for bucket in answer.get("Buckets") or ():
            yield Info(str(bucket["Name"]), 0, True)

    # ---- bytes

    async def read_async(self, key: str, start: int, stop: int | None, info: Info | None) -> bytes:
        span = f"bytes={start}-{'' if stop is None else stop - 1}" if start or stop is not None else ""
        try:
            answer = await self.get(key, span, info.version if info is not None else None)
        except Exception as error:
            changed = self.as_changed(key, error, info)
            if changed is error:
                raise
            raise changed from error
        body = answer["Body"]
        try:
            data: bytes = await body.read()
        finally:
            body.close()
        if info is not None and info.version and quoted(answer.get("ETag")) not in (None, info.version):
            raise self.error(errno.ESTALE, key, "the object was replaced while it was being read")
        expected = int(answer["ContentLength"])
        if len(data) != expected:
            # ClientPayloadError's case where the client did not notice: worth another try
            raise ConnectionResetError(errno.ECONNRESET, f"{len(data)} of {expected} bytes came")
        return data

    def as_changed(self, key: str, error: Exception, info: Info | None) -> Exception:
        """What a failed read means: where its If-Match failed the object was replaced; else the failure itself."""
        if info is not None and _store_errors.judge(error).number == errno.EEXIST:
            return self.error(errno.ESTALE, key, "the object was replaced while it was being read")
        return error

    def write(
        self, key: str, source: BinaryIO, size: int, *, exclusive: bool = False, expected: str | None = None
    ) -> None:
        wanted = condition("" if exclusive else expected)
        if "IfNoneMatch" in wanted and self.head(key) is not None:  # not every server looks at the condition
            raise self.error(errno.EEXIST, key)
        if size <= 2 * PART_SIZE:
            body = _read_at(source, 0, size, self, key)
            if exclusive:
                self.run(key, lambda: self.put(key, body, wanted))
            else:
                self.run(key, lambda: self.write_if(key, wanted, lambda told: self.put(key, body, told)), retry=False)
            return
        each = part_size(size)
        offsets = range(0, size, each)

        async def part(upload: dict[str, Any], number: int) -> Any:
            offset = offsets[number - 1]
            body = _read_at(source, offset, min(each, size - offset), self, key)
            return await self.send_part(upload, number, body)

        window = max(1, min(PARTS_IN_FLIGHT, BYTES_IN_FLIGHT // each))
        self.run(key, lambda: self._multipart(key, len(offsets), part, window, wanted), retry=False)

    async def _multipart(self, key: str, count: int, part: Any, window: int, condition: dict[str, str]) -> None:
        """Create, send ``count`` parts with at most ``window`` in flight, complete; abort on any failure."""
        bucket, inner = split(key)
        begin = {"Bucket": bucket, "Key": inner, **_content_type(key)}
        upload = {"Bucket": bucket, "Key": inner, "UploadId": await self._begin(begin)}
        gate = asyncio.Semaphore(window)

        async def one(number: int) -> dict[str, Any]:
            async with gate:
                answer = await retried(lambda: part(upload, number))
            checksums = {name: value for name, value in answer.items() if name in _CHECKSUMS}
            return {"PartNumber": number, "ETag": answer["ETag"], **checksums}

        tasks = [asyncio.ensure_future(one(number)) for number in range(1, count + 1)]
        try:
            parts = await asyncio.gather(*tasks)
            query = {**upload, "MultipartUpload": {"Parts": parts}}
            await self.write_if(key, condition, lambda told: self._call("complete_multipart_upload", **query, **told))
        except BaseException:
            await asyncio.shield(self._give_up(upload, tasks))
            raise

    async def _begin(self, query: dict[str, Any]) -> str:
        """Create an upload; its id. One that is cancelled meanwhile is aborted when its id is known."""
        creating = asyncio.ensure_future(retried(lambda: self._call("create_multipart_upload", **query)))
        try:
            return str((await asyncio.shield(creating))["UploadId"])
        except asyncio.CancelledError:
            upload = {"Bucket": query["Bucket"], "Key": query["Key"], "UploadId": (await creating)["UploadId"]}
            await asyncio.shield(self._abort(upload))
            raise

    async def _give_up(self, upload: dict[str, Any], parts: Sequence[asyncio.Future[Any]]) -> None:
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)
        await self._abort(upload)

    async def _abort(self, upload: dict[str, Any]) -> None:
        try:
            await retried(lambda: self._call("abort_multipart_upload", **upload))
        except Exception:  # noqa: BLE001 - the first failure is the one to report; a lost abort costs space only
            import logging

            shown = self.url_of(f"{upload['Bucket']}/{upload['Key']}")
            logging.getLogger("remoteio").warning(
                "the multipart upload %s to %s could not be aborted: its parts stay", upload["UploadId"], shown
            )

    def append(self, key: str, info: Info, source: BinaryIO, size: int) -> bool:
        old = info.size or 0
        if old < MIN_PART or not size:
            return False
        copied = list(_copy_ranges(old))
        each = part_size(size)
        offsets = range(0, size, each)
        bucket, inner = split(key)

        async def part(upload: dict[str, Any], number: int) -> Any:
            if number <= len(copied):
                first, last = copied[number - 1]
                return await self._copy_part(upload, number, bucket, inner, f"bytes={first}-{last}", info)
            offset = offsets[number - 1 - len(copied)]
            body = _read_at(source, offset, min(each, size - offset), self, key)
            return await self.send_part(upload, number, body)

        count = len(copied) + len(offsets)
        try:
            with self.as_replaced(key):
                wanted = condition(info.version)
                self.run(key, lambda: self._multipart(key, count, part, PARTS_IN_FLIGHT, wanted), retry=False)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            return False
        return True

    async def _copy_part(self, upload: Any, number: int, bucket: str, inner: str, span: str, info: Info) -> Any:
        condition = {"CopySourceIfMatch": info.version} if info.version else {}
        source = {"Bucket": bucket, "Key": inner}
        answer = await self._call(
            "upload_part_copy", **upload, PartNumber=number, CopySource=source, CopySourceRange=span, **condition
        )
        if not answer.get("CopyPartResult", {}).get("ETag"):  # it took the request for a part without bytes
            raise OSError(errno.EOPNOTSUPP, "the store copies no ranges")
        return answer["CopyPartResult"]

    def copy(self, source: str, target: str, info: Info) -> None:
        bucket, inner = split(source)
        to_bucket, to_inner = split(target)
        if (info.size or 0) <= MAX_COPY:
            query = {"Bucket": to_bucket, "Key": to_inner, "CopySource": {"Bucket": bucket, "Key": inner}}
            if info.version:
                query["CopySourceIfMatch"] = info.version
            with self.as_replaced(source):
                self.run(target, lambda: self._call("copy_object", **query))
            return
        spans = list(_copy_ranges(info.size or 0))

        async def part(upload: dict[str, Any], number: int) -> Any:
            first, last = spans[number - 1]
            return await self._copy_part(upload, number, bucket, inner, f"bytes={first}-{last}", info)

        with self.as_replaced(source):
            self.run(target, lambda: self._multipart(target, len(spans), part, PARTS_IN_FLIGHT, {}), retry=False)

    # ---- removal

    def with_folders(self, key: str, below: Iterable[str]) -> Iterator[str]:
        top = key.rstrip("/")
        folders = {top: None}
        for one in below:
            yield one
            if not self._keeps_folders:
                continue
            folder = one.rstrip("/").rpartition("/")[0]
            while len(folder) > len(top) and folder not in folders:
                folders[folder] = None
                folder = folder.rpartition("/")[0]
        if self._keeps_folders and split(top)[1]:
            yield from (f"{folder}/" for folder in sorted(folders, key=lambda folder: -folder.count("/")))

    def delete(self, key: str) -> None:
        bucket, inner = split(key)
        self.run(key, lambda: self._call("delete_object", Bucket=bucket, Key=inner))

    def delete_many(self, keys: Iterable[str]) -> Iterator[tuple[str, OSError]]:
        batch: list[str] = []
        for key in keys:
            if batch and (len(batch) == DELETE_BATCH or split(key)[0] != split(batch[0])[0]):
                yield from self._delete_batch(batch)
                batch = []
            batch.append(key)
        if batch:
            yield from self._delete_batch(batch)

    def _delete_batch(self, batch: list[str]) -> Iterator[tuple[str, OSError]]:
        bucket = split(batch[0])[0]
        wanted = {"Objects": [{"Key": split(key)[1]} for key in batch], "Quiet": True}
        try:
            answer = self.run(batch[0], lambda: self._call("delete_objects", Bucket=bucket, Delete=wanted))
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL):
                yield from ((key, error) for key in batch)
                return
            yield from self._delete_singly(batch)  # some stores know DeleteObject alone
            return
        for failed in answer.get("Errors") or ():
            key = f"{bucket}/{failed.get('Key', '')}"
            denied = failed.get("Code") in ("AccessDenied", "403")
            number = errno.EACCES if denied else errno.EIO
            yield key, self.error(number, key, f"{failed.get('Code', '')}: {failed.get('Message', '')}")

    def _delete_singly(self, batch: list[str]) -> Iterator[tuple[str, OSError]]:
        for key in batch:
            try:
                self.delete(key)
            except OSError as error:
                yield key, error

    def _put_marker(self, key: str) -> None:
        bucket, inner = split(key)
        self.run(key, lambda: self._call("put_object", Bucket=bucket, Key=f"{inner}/", Body=b""))


class Body(io.BytesIO):
    """Bytes as a file, whose buffer is those bytes: BytesIO's own is a copy of them, which aiohttp asks for."""

    def __init__(self, data: bytes) -> None:
        """Read these bytes."""
        super().__init__(data)
        self._data = data

    def getbuffer(self) -> memoryview:
        """All of the bytes."""
        return memoryview(self._data)


def as_info(key: str, size: Any, said: dict[str, Any], *, is_dir: bool = False) -> Info:
    """An object, by what the client says of it in a listing or in the answer to a HEAD."""
    return Info(key, int(size), is_dir, quoted(said.get("ETag")), _seconds(said.get("LastModified")))


def quoted(etag: str | None) -> str | None:
    """An etag as HTTP spells it: some servers leave out the quotes in their listings."""
    return f'"{etag}"' if etag and not etag.endswith('"') else etag


def condition(expected: str | None) -> dict[str, str]:
    """The condition that a version is there still, that nothing is there (an empty one), or none."""
    if expected is None:
        return {}
    return {"IfMatch": expected} if expected else {"IfNoneMatch": "*"}


def _is_seaweed(answer: dict[str, Any]) -> bool:
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return str(headers.get("server", "")).startswith("SeaweedFS")


def _environment_endpoint() -> str:
    import os

    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or "aws"


def _seconds(when: Any) -> float | None:
    return None if when is None else float(when.timestamp())


def _copy_ranges(size: int) -> Iterator[tuple[int, int]]:
    """First and last byte of the pieces in which the server copies; none is below the smallest part."""
    start = 0
    while start < size:
        last = min(start + COPY_PART, size)
        if size - last < MIN_PART:
            last = size
        yield start, last - 1
        start = last


def _content_type(key: str) -> dict[str, str]:
    guessed = mimetypes.guess_type(key)[0]
    return {"ContentType": guessed} if guessed else {}


def _read_at(source: BinaryIO, offset: int, size: int, store: ObjectStore, key: str) -> bytes:
    """Bytes of the source for one part; a source that became shorter must never be published."""
    source.seek(offset)
    data = source.read(size)
    if len(data) != size:
        raise store.error(errno.EIO, key, f"the local copy holds {len(data)} of {size} bytes at {offset}")
    return data

"""The public names as a type checker sees them: checked by ``mypy --strict``, never run."""

from __future__ import annotations

import asyncio
from typing import Any

from typing_extensions import assert_type

import remoteio
from remoteio import NativeIO, RemoteIO, Status, bind, is_remote, native_io, remote_io, status, url_to_fs


@remote_io
def bare(a: int, *, b: str = "") -> float:
    return a + len(b)


@remote_io(schemes=["s3"], storage_options={"s3": {"anon": True}}, on_error={"*.log": "commit"}, flush_interval_s=30)
def called(a: int) -> str:
    return str(a)


@remote_io(on_error="discard", directory_markers=True, allow_bucket_delete=False, inherit_threads=False, enabled="env")
async def coroutine(a: int) -> bytes:
    return bytes(a)


@native_io()
def native(a: int) -> int:
    return a


assert_type(bare(1, b="x"), float)
assert_type(called(1), str)
assert_type(asyncio.run(coroutine(1)), bytes)
assert_type(native(1), int)
assert_type(remote_io(), RemoteIO)
assert_type(native_io(), NativeIO)
assert_type(bind(called)(1), str)
assert_type(status(), Status)
assert_type(status().scopes, int)
assert_type(status().counts["open", "s3"].bytes_read, int)
assert_type(is_remote("s3://bucket/key"), bool)
assert_type(url_to_fs("s3://bucket/key"), tuple[Any, Any])

with remote_io() as scope:
    assert_type(scope, RemoteIO)
    scope.enter_worker(0)
with native_io() as block:
    assert_type(block, NativeIO)

bare("1")  # type: ignore[arg-type]
remote_io(3)  # type: ignore[call-overload]
remote_io(enabled="always")  # type: ignore[call-overload]
remote_io(unknown=1)  # type: ignore[call-overload]
remoteio.unknown  # type: ignore[attr-defined]  # noqa: B018

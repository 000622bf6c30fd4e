"""Direct requests to S3: sent once, proved by a CRC-32, and made by the client's own call where that cannot be."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from pathlib import Path
from typing import Any

import pytest

import remoteio
from remoteio import _transfer
from tests import servers
from tests.conftest import Place
from tests.reach import SECRET_KEY
from tests.test_transfer import WINDOW, at, fetch, send, unfinished

BODY = os.urandom(2 * WINDOW + 7)


@pytest.fixture
def parts_place(s3_place: Place, proxy: servers.Proxy) -> Place:
    """Like ``proxy_place``, on a filesystem that no other test has learned anything of."""
    options = {**proxy.storage_options["s3"], "skip_instance_cache": True}
    return Place(s3_place.base, "s3", {"s3": options})


def ways(proxy: servers.Proxy, operation: str = "UploadPart") -> list[str]:
    """Who made the requests of a kind: only one of them leaves bodies out of the signature."""
    return [
        "direct" if request.headers.get("x-amz-content-sha256") == "UNSIGNED-PAYLOAD" else "client"
        for request in proxy.requests
        if request.operation == operation
    ]


def upload(place: Place, source: Path) -> Any:
    """Send the body to ``a``; the store it went to."""
    (source / "up").write_bytes(BODY)
    location = at(place, "a")
    _transfer.upload([(str(source / "up"), location)])
    return location.store


def test_a_part_is_sent_once_with_its_checksum(parts_place: Place, proxy: servers.Proxy, tmp_path: Path) -> None:
    upload(parts_place, tmp_path)
    assert ways(proxy) == ["direct"] * 3
    assert parts_place.read("a") == BODY
    sent = [request.headers for request in proxy.requests if request.operation == "UploadPart"]
    assert all("x-amz-checksum-crc32" in headers and "aiobotocore" in headers["user-agent"] for headers in sent)


def test_open_sends_its_parts_the_same_way(parts_place: Place, proxy: servers.Proxy) -> None:
    with remoteio.remote_io(storage_options=parts_place.options), open(parts_place.url("a"), "wb") as file:
        file.write(BODY)
    assert ways(proxy) == ["direct"] * 3
    assert parts_place.read("a") == BODY


@pytest.mark.parametrize("operation", ["UploadPart", "PutObject"])
def test_bytes_that_changed_on_the_way_are_not_published(
    parts_place: Place, proxy: servers.Proxy, tmp_path: Path, operation: str
) -> None:
    proxy.spoil_request(operation=operation)
    data = BODY if operation == "UploadPart" else b"few"
    with pytest.raises(OSError, match=r"Md5|checksum|SHA|provided"):
        send(parts_place, {"a": data}, tmp_path)
    assert parts_place.files() == {}
    assert unfinished(parts_place) == []


def test_bytes_that_changed_once_are_sent_again(parts_place: Place, proxy: servers.Proxy, tmp_path: Path) -> None:
    proxy.spoil_request(operation="UploadPart", times=1)
    upload(parts_place, tmp_path)
    assert parts_place.read("a") == BODY
    assert len(ways(proxy)) == 4


def test_a_connection_that_breaks_costs_its_part_alone(
    parts_place: Place, proxy: servers.Proxy, tmp_path: Path
) -> None:
    proxy.cut_request(WINDOW // 2, operation="UploadPart", times=1)
    upload(parts_place, tmp_path)
    assert parts_place.read("a") == BODY
    assert len(ways(proxy)) == 4


def test_a_store_that_wants_signed_bodies_gets_them(parts_place: Place, proxy: servers.Proxy, tmp_path: Path) -> None:
    proxy.answer(400, "InvalidRequest", "bodies must be signed", operation="UploadPart", times=3)
    store = upload(parts_place, tmp_path)
    assert parts_place.read("a") == BODY
    proxy.reset()
    upload(parts_place, tmp_path)
    assert ways(proxy) == ["client"] * 3
    assert store.direct._left == {"test-bucket"}


def test_small_files_go_both_ways_directly(parts_place: Place, proxy: servers.Proxy, tmp_path: Path) -> None:
    files = {"empty": b"", "small": b"x", "page.html": b"<p>", "whole": os.urandom(WINDOW)}
    send(parts_place, files, tmp_path, engine="fsspec")
    assert fetch(parts_place, list(files), tmp_path, engine="fsspec") == files
    assert ways(proxy, "PutObject") == ["direct"] * 4
    assert ways(proxy, "GetObject") == ["direct"] * 3
    assert parts_place.fs().info(parts_place.url("page.html"))["ContentType"] == "text/html"


def test_open_reads_directly(parts_place: Place, proxy: servers.Proxy) -> None:
    parts_place.put("a", BODY)
    with remoteio.remote_io(storage_options=parts_place.options), open(parts_place.url("a"), "rb") as file:
        file.seek(-10, os.SEEK_END)
        assert file.read() == BODY[-10:]
    assert set(ways(proxy, "GetObject")) == {"direct"}


def test_bytes_that_changed_on_the_way_down_are_an_error(
    parts_place: Place, proxy: servers.Proxy, tmp_path: Path
) -> None:
    send(parts_place, {"a": b"data"}, tmp_path, engine="fsspec")
    proxy.spoil_response(operation="GetObject")
    with pytest.raises(OSError, match="CRC-32"):
        fetch(parts_place, ["a"], tmp_path, engine="fsspec")
    assert os.listdir(tmp_path) == ["up0"]


def test_what_anybody_may_read_is_asked_for_without_a_signature(
    s3_server: servers.Server, s3_place: Place, tmp_path: Path
) -> None:
    s3_place.put("a", b"data")
    with servers.Proxy(s3_server.url) as proxy:
        place = Place(s3_place.base, "s3", {"s3": {"anon": True, "endpoint_url": proxy.url}})
        proxy.answer(200, "OK", "is not looked at", operation="GetObject")
        store: Any = at(place, "a").store
        asked = store.get(place.url("a").partition("://")[2], "", None)
        answer = asyncio.run_coroutine_threadsafe(asked, store.fs.loop).result(20)
        answer["Body"].close()
        assert [request.headers.get("authorization") for request in proxy.requests] == [None]


@pytest.mark.parametrize("status", [301, 400, 403])
def test_what_the_store_refuses_is_asked_for_by_the_client(
    parts_place: Place, proxy: servers.Proxy, tmp_path: Path, status: int
) -> None:
    parts_place.put("a", b"data")
    proxy.answer(status, "Refused", "not in this way", operation="GetObject", times=1)
    assert fetch(parts_place, ["a"], tmp_path, engine="fsspec") == {"a": b"data"}
    os.remove(tmp_path / "0")
    proxy.reset()
    assert fetch(parts_place, ["a"], tmp_path, engine="fsspec") == {"a": b"data"}
    assert ways(proxy, "GetObject") == ["client"]


def test_a_store_that_was_busy_is_still_asked_directly(
    parts_place: Place, proxy: servers.Proxy, tmp_path: Path
) -> None:
    proxy.unavailable(operation="PutObject", times=2)
    send(parts_place, {"a": b"data"}, tmp_path, engine="fsspec")
    send(parts_place, {"b": b"data"}, tmp_path, engine="fsspec")
    assert ways(proxy, "PutObject") == ["direct"] * 4


@pytest.mark.parametrize(
    "options",
    [
        {"config_kwargs": {"s3": {"payload_signing_enabled": True}}},
        {"config_kwargs": {"request_checksum_calculation": "when_required"}},
        {"s3_additional_kwargs": {"ACL": "private"}},
        {"requester_pays": True},
    ],
    ids=["signed", "no-checksums", "more-arguments", "requester-pays"],
)
def test_wishes_of_the_users_own_are_the_clients_to_fulfil(
    s3_place: Place, proxy: servers.Proxy, tmp_path: Path, options: dict[str, Any]
) -> None:
    place = Place(s3_place.base, "s3", {"s3": {**proxy.storage_options["s3"], **options}})
    upload(place, tmp_path)
    assert ways(proxy) == ["client"] * 3
    assert place.read("a") == BODY


def test_the_clients_own_error_is_raised(parts_place: Place, proxy: servers.Proxy, tmp_path: Path) -> None:
    proxy.answer(404, "NoSuchUpload", "the upload is not there", operation="UploadPart")
    with pytest.raises(OSError, match="the upload is not there") as caught:
        upload(parts_place, tmp_path)
    assert caught.value.errno in (errno.ENOENT, errno.EIO)
    assert caught.value.filename == parts_place.url("a")


def test_no_secret_is_logged(
    parts_place: Place, proxy: servers.Proxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.answer(503, "SlowDown", "busy", operation="UploadPart", times=1)
    with caplog.at_level(logging.DEBUG):
        upload(parts_place, tmp_path)
    assert "a direct request was answered with 503" in caplog.text
    assert SECRET_KEY not in caplog.text
    assert "X-Amz-Signature" not in caplog.text

"""Direct requests to S3: sent once, proved by a CRC-32, and made by the client's own call where that cannot be."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest

import remoteio
from remoteio import _transfer
from tests import servers
from tests.conftest import Place
from tests.reach import SECRET_KEY
from tests.test_transfer import WINDOW, at, fetch, send, unfinished

BODY = os.urandom(2 * WINDOW + 70)


@pytest.fixture
def parts_place(s3_place: Place, proxy: servers.Proxy) -> Place:
    """Like ``proxy_place``, on a filesystem that no other test has learned anything of."""
    options = {**proxy.storage_options["s3"], "skip_instance_cache": True}
    return Place(s3_place.base, "s3", {"s3": options})


def ways(proxy: servers.Proxy, operation: str = "UploadPart") -> list[str]:
    """Who made the requests of a kind: only one of them leaves bodies out of the signature.

    The first direct part, which asks whether the store compares, is left out.
    """
    found = [
        "direct" if request.headers.get("x-amz-content-sha256") == "UNSIGNED-PAYLOAD" else "client"
        for request in proxy.requests
        if request.operation == operation
    ]
    if operation == "UploadPart" and "direct" in found:
        found.remove("direct")
    return found


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
    parts_place: Place, proxy: servers.Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    monkeypatch.setattr("remoteio._store_loop.TRIES", 3)
    monkeypatch.setattr("remoteio._obstore.TRIES", 3)
    proxy.spoil_request(operation=operation)
    data = BODY if operation == "UploadPart" else b"few"
    with pytest.raises(OSError, match=r"Md5|checksum|SHA|provided"):
        send(parts_place, {"a": data}, tmp_path)
    assert parts_place.files() == {}
    assert unfinished(parts_place) == []


def test_bytes_that_changed_once_are_sent_again(parts_place: Place, proxy: servers.Proxy, tmp_path: Path) -> None:
    proxy.spoil_request(operation="UploadPart", times=1, skip=1)
    upload(parts_place, tmp_path)
    assert parts_place.read("a") == BODY
    assert len(ways(proxy)) == 4


def test_a_connection_that_breaks_costs_its_part_alone(
    parts_place: Place, proxy: servers.Proxy, tmp_path: Path
) -> None:
    proxy.cut_request(70, operation="UploadPart", times=1, skip=1)
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
        answer = asyncio.run_coroutine_threadsafe(asked, store.fs.loop).result(120)
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


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
@pytest.mark.parametrize(
    ("status", "code"), [(503, "SlowDown"), (500, "InternalError"), (400, "RequestTimeout"), (400, "BadDigest")]
)
def test_what_is_sent_again_is_whole(
    parts_place: Place, proxy: servers.Proxy, tmp_path: Path, engine: str, status: int, code: str
) -> None:
    """Also where the store has read the body before it refused it."""
    parts_place.put("a", b"old")
    proxy.reset()
    data = os.urandom(300_000)
    for times in (1, 2):
        proxy.answer(status, code, "once more", operation="PutObject", times=times, reads_body=True)
        send(parts_place, {"a": data}, tmp_path, engine=engine)
        assert parts_place.read("a") == data
    assert proxy_lengths(proxy) == {300_000}


def proxy_lengths(proxy: servers.Proxy) -> set[int]:
    """The sizes of the bodies of the small uploads."""
    sent = [request.headers for request in proxy.requests if request.operation == "PutObject"]
    return {int(headers.get("x-amz-decoded-content-length", headers["content-length"])) for headers in sent}


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
@pytest.mark.parametrize("cuts", [1, 2, 3])
def test_a_small_file_whose_connections_break_arrives_whole(
    parts_place: Place, proxy: servers.Proxy, tmp_path: Path, engine: str, cuts: int
) -> None:
    data = os.urandom(300_000)
    proxy.cut_request(100_000, operation="PutObject", times=cuts)
    send(parts_place, {"a": data}, tmp_path, engine=engine)
    assert parts_place.read("a") == data
    assert proxy_lengths(proxy) == {300_000}


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
@pytest.mark.parametrize(("size", "operation"), [(7, "PutObject"), (2 * WINDOW, "CompleteMultipartUpload")])
@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "BadDigest"),
        (400, "InvalidPart"),
        (403, "RequestTimeTooSkewed"),
        (403, "AccessDenied"),
        (400, "ExpiredToken"),
    ],
)
def test_a_refusal_of_another_kind_does_not_cost_the_condition(
    parts_place: Place,
    s3_place: Place,
    proxy: servers.Proxy,
    tmp_path: Path,
    engine: str,
    size: int,
    operation: str,
    status: int,
    code: str,
) -> None:
    s3_place.put("a", b"old")
    location = at(parts_place, "a")
    info = location.store.head(location.key)
    assert info is not None
    (tmp_path / "up").write_bytes(os.urandom(size))

    def theirs() -> None:
        s3_place.put("a", b"theirs")

    for skip in range(2):
        proxy.answer(status, code, "refused", operation=operation, times=1, skip=skip, reads_body=True)
    proxy.before(theirs, operation=operation, times=1)
    with pytest.raises(OSError):
        _transfer.upload(
            [(str(tmp_path / "up"), location)],
            engine=engine,
            expected={str(tmp_path / "up"): info.version or ""},
        )
    assert s3_place.read("a") in (b"old", b"theirs")


def test_a_part_that_no_store_compares_is_compared_here(
    moto_place: Place, moto_server: servers.Server, tmp_path: Path
) -> None:
    """Moto looks at no checksum of a part."""
    with servers.Proxy(moto_server.url) as proxy:
        place = Place(moto_place.base, "s3", {"s3": {**proxy.storage_options["s3"], "skip_instance_cache": True}})
        proxy.spoil_request(operation="UploadPart", times=1, skip=2)
        upload(place, tmp_path)
        assert ways(proxy).count("client") == 1
    assert moto_place.read("a") == BODY


def test_a_server_that_takes_nothing_more_is_given_up(
    parts_place: Place, proxy: servers.Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remoteio._store_s3_direct.STUCK_S", 0.5)
    proxy.hang(operation="UploadPart")
    options = {**parts_place.options["s3"], "config_kwargs": {"read_timeout": 1}}
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        upload(Place(parts_place.base, "s3", {"s3": options}), tmp_path)
    assert time.monotonic() - began < 60  # some timeouts, and pauses
    proxy.clear()
    assert unfinished(parts_place) == []


def test_checksums_of_the_users_own_choice_are_told_at_the_end(
    s3_place: Place, proxy: servers.Proxy, tmp_path: Path
) -> None:
    more = {"s3_additional_kwargs": {"ChecksumAlgorithm": "SHA256"}}
    place = Place(s3_place.base, "s3", {"s3": {**proxy.storage_options["s3"], **more}})
    upload(place, tmp_path)
    assert place.read("a") == BODY


def test_an_abort_is_tried_again(parts_place: Place, proxy: servers.Proxy, tmp_path: Path) -> None:
    proxy.deny(operation="UploadPart", skip=2)
    proxy.unavailable(operation="AbortMultipartUpload", times=2)
    with pytest.raises(PermissionError):
        upload(parts_place, tmp_path)
    assert unfinished(parts_place) == []


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_a_store_that_takes_other_bytes_for_a_part_never_is_sent_the_same(
    rclone_place: Place, tmp_path: Path, engine: str
) -> None:
    send(rclone_place, {"a": BODY, "small": b"few"}, tmp_path, engine=engine)
    assert rclone_place.files() == {"a": BODY, "small": b"few"}
    target = tmp_path / "down"
    target.mkdir()
    assert fetch(rclone_place, ["a", "small"], target, engine=engine) == {"a": BODY, "small": b"few"}


def test_a_store_that_copies_no_ranges_is_sent_all_of_what_was_added_to(rclone_place: Place) -> None:
    with rclone_place.scope():
        with open(rclone_place.url("a"), "wb") as file:
            file.write(BODY)
        with open(rclone_place.url("a"), "ab") as file:
            file.write(b"more")
    assert rclone_place.read("a") == BODY + b"more"


def test_a_tree_is_staged_on_a_store_that_does_less(rclone_place: Place) -> None:
    url, options = rclone_place.url("run/"), rclone_place.options
    with remoteio.staged_local(url, "w", storage_options=options) as path:
        Path(path, "d").mkdir()
        Path(path, "d", "a").write_bytes(BODY)
        Path(path, "b").write_bytes(b"b")
    with remoteio.staged_local(url, "r+", storage_options=options, mirror=True) as path:
        assert Path(path, "d", "a").read_bytes() == BODY
        Path(path, "b").write_bytes(b"changed")
        Path(path, "d", "a").unlink()
        Path(path, "c").write_bytes(b"c")
    assert rclone_place.files() == {"run/b": b"changed", "run/c": b"c"}

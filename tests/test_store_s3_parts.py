"""The parts of large S3 uploads: sent once, proved by a CRC-32, and by the client's own call where that cannot be."""

from __future__ import annotations

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
from tests.test_transfer import WINDOW, at, send, unfinished

BODY = os.urandom(2 * WINDOW + 7)


@pytest.fixture
def parts_place(s3_place: Place, proxy: servers.Proxy) -> Place:
    """Like ``proxy_place``, on a filesystem that no other test has learned anything of."""
    options = {**proxy.storage_options["s3"], "skip_instance_cache": True}
    return Place(s3_place.base, "s3", {"s3": options})


def ways(proxy: servers.Proxy) -> list[str]:
    """How the bodies of the parts were signed."""
    return [
        "quick" if request.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD" else "client"
        for request in proxy.requests
        if request.operation == "UploadPart"
    ]


def upload(place: Place, source: Path) -> Any:
    """Send the body to ``a``; the store it went to."""
    (source / "up").write_bytes(BODY)
    location = at(place, "a")
    _transfer.upload([(str(source / "up"), location)])
    return location.store


def test_a_part_is_sent_once_with_its_checksum(parts_place: Place, proxy: servers.Proxy, tmp_path: Path) -> None:
    upload(parts_place, tmp_path)
    assert ways(proxy) == ["quick"] * 3
    assert parts_place.read("a") == BODY
    sent = [request.headers for request in proxy.requests if request.operation == "UploadPart"]
    assert all("x-amz-checksum-crc32" in headers and "aiobotocore" in headers["user-agent"] for headers in sent)


def test_open_sends_its_parts_the_same_way(parts_place: Place, proxy: servers.Proxy) -> None:
    with remoteio.remote_io(storage_options=parts_place.options), open(parts_place.url("a"), "wb") as file:
        file.write(BODY)
    assert ways(proxy) == ["quick"] * 3
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
    assert not store._quick_parts


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
    assert "sent again by the client" in caplog.text
    assert SECRET_KEY not in caplog.text
    assert "X-Amz-Signature" not in caplog.text

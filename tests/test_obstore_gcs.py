"""GCS through obstore, on fake-gcs-server.

That server has the XML API for reading. It takes no plain PUT of it, only a signed one: `XmlProxy` says
the one for the other, and answers with the headers that Cloud Storage sends.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from remoteio import _transfer
from remoteio.errors import ObjectChangedError
from tests import servers
from tests.conftest import Place
from tests.proxy import Proxy, Request
from tests.test_transfer import MIB, ODD_KEYS, PEAK, ROOT, TRANSFER, WINDOW, at, fetch, left, send

pytest.importorskip("obstore")
pytest.importorskip("gcsfs")

from google.auth.credentials import AnonymousCredentials, Credentials
from google.auth.exceptions import RefreshError

from remoteio import _engine_obstore, _obstore_gcs


class XmlProxy(Proxy):
    """Lets fake-gcs-server take the PUT of the XML API, and answer it as Cloud Storage does."""

    etags_are_checksums = True

    def _for_upstream(self, head: bytes) -> bytes:
        head = super()._for_upstream(head)
        if head.startswith((b"PUT /upload", b"PUT /storage")):
            return head
        return re.sub(rb"^PUT (/[^ ?]+) ", rb"PUT \1?X-Goog-Algorithm=GOOG4-RSA-SHA256 ", head)

    async def _for_client(self, head: bytes, request: Request) -> bytes:
        head = await super()._for_client(head, request)
        if request.method != "PUT" or request.path.startswith("/upload") or b" 200 " not in head[:20]:
            return head
        item = await asyncio.get_running_loop().run_in_executor(None, self._item, request.path)
        etag = base64.b64decode(item["md5Hash"]).hex() if self.etags_are_checksums else "opaque"
        told = f'\r\nETag: "{etag}"\r\nx-goog-generation: {item["generation"]}\r\n\r\n'
        return head.removesuffix(b"\r\n\r\n") + told.encode()

    def _item(self, path: str) -> Any:
        bucket, _, key = path.lstrip("/").partition("/")
        host, port = self._upstream
        address = f"http://{host}:{port}/storage/v1/b/{bucket}/o/{quote(key, safe='')}"
        with urllib.request.urlopen(address, timeout=10) as answer:
            return json.load(answer)


@pytest.fixture
def proxied(gcs_place: Place, gcs_proxy: servers.Proxy) -> Place:
    """A directory on fake-gcs-server whose scope goes through `gcs_proxy`."""
    return Place(gcs_place.base, "gcs", gcs_proxy.gcs_options)


@pytest.fixture
def xml_proxy(gcs_server: servers.Server) -> Iterator[XmlProxy]:
    with XmlProxy(gcs_server.url, keeps_host=False) as one:
        yield one


@pytest.fixture
def writable(gcs_place: Place, xml_proxy: XmlProxy) -> Place:
    """A directory on fake-gcs-server whose scope goes through `xml_proxy`."""
    return Place(gcs_place.base, "gcs", xml_proxy.gcs_options)


def agents(proxy: Proxy) -> list[str]:
    """Which library moved bytes, for each request that did."""
    moving = [
        request
        for request in proxy.requests
        if not request.path.startswith("/storage/v1") and request.method != "DELETE"
    ]
    return [request.headers["user-agent"].partition("/")[0] for request in moving]


def change(place: Place, **options: Any) -> Place:
    """The same place, with other options of its store."""
    return Place(place.base, "gcs", {"gs": {**place.options["gs"], **options}})


def described(place: Place) -> Any:
    """What obstore is told of a place's bucket."""
    store: Any = at(place, "a").store
    return asyncio.run_coroutine_threadsafe(_obstore_gcs.describe(store.fs, "test-bucket"), store.fs.loop).result(120)


class Renewed(Credentials):
    """Credentials whose token is another one each time."""

    def __init__(self, quota_project_id: str | None = None) -> None:
        super().__init__()
        self.asked = 0
        self._quota_project_id = quota_project_id

    @property
    def valid(self) -> bool:
        return True

    def apply(self, headers: Any, token: str | None = None) -> None:
        self.asked += 1
        headers["authorization"] = f"Bearer token-{self.asked}"
        if self._quota_project_id:
            headers["x-goog-user-project"] = self._quota_project_id

    def refresh(self, request: Any) -> None:
        raise AssertionError("they are always valid")


# ---- down


def test_every_byte_that_comes_down_comes_through_obstore(
    proxied: Place, gcs_place: Place, gcs_proxy: Proxy, tmp_path: Path
) -> None:
    files = {str(size): os.urandom(size) for size in (0, 1, MIB, MIB + 1, WINDOW, 2 * WINDOW + 7)}
    for name, data in files.items():
        gcs_place.put(name, data)
    assert fetch(proxied, list(files), tmp_path, engine="obstore") == files
    assert agents(gcs_proxy) == ["object_store"] * 7  # one for each, two more for the largest, none for the empty one
    assert sum("range" in request.headers for request in gcs_proxy.requests) == 3


def test_odd_keys_mean_themselves(proxied: Place, gcs_place: Place, gcs_proxy: Proxy, tmp_path: Path) -> None:
    files = {f"odd/{name}": name.encode() for name in ODD_KEYS}
    for name, data in files.items():
        gcs_place.put(name, data)
    assert fetch(proxied, list(files), tmp_path, engine="obstore") == files
    assert agents(gcs_proxy) == ["object_store"] * len(files)


def test_every_request_names_the_generation(proxied: Place, gcs_place: Place, gcs_proxy: Proxy, tmp_path: Path) -> None:
    gcs_place.put("a", os.urandom(2 * WINDOW))
    fetch(proxied, ["a"], tmp_path, engine="obstore")
    location = at(gcs_place, "a")
    info = location.store.head(location.key)
    assert info is not None
    asked = [request for request in gcs_proxy.requests if request.headers["user-agent"].startswith("object_store")]
    assert [request.query for request in asked] == [{"generation": info.version}] * 2


def test_an_object_replaced_in_the_middle_is_an_error(
    proxied: Place, gcs_place: Place, gcs_proxy: Proxy, tmp_path: Path
) -> None:
    gcs_place.put("a", os.urandom(4 * WINDOW))
    new = os.urandom(4 * WINDOW)
    gcs_proxy.before(lambda: gcs_place.put("a", new), target="/test-bucket/t-.*generation", skip=1, times=1)
    with pytest.raises(ObjectChangedError) as caught:
        fetch(proxied, ["a"], tmp_path, engine="obstore", max_concurrency=1)
    assert caught.value.errno == errno.ESTALE
    assert agents(gcs_proxy) == ["object_store", "object_store", "python-gcsfs"]
    assert left(tmp_path) == []


def test_an_answer_of_another_generation_is_an_error(gcs_place: Place, tmp_path: Path) -> None:
    gcs_place.put("a", b"old")
    location = at(gcs_place, "a")
    old = location.store.head(location.key)
    assert old is not None
    chosen: Any = _transfer.engine_for(location.store, "obstore")
    chosen._dialect.pin = lambda info: {}  # as with a server that does not heed the number
    gcs_place.put("a", b"new")

    async def ask() -> None:
        await chosen.fetch(location.key, 0, 3, old, lambda data: None)

    with pytest.raises(ObjectChangedError):
        asyncio.run_coroutine_threadsafe(ask(), location.store.fs.loop).result(120)


def test_an_object_that_is_gone_is_not_found(gcs_place: Place, tmp_path: Path) -> None:
    gcs_place.put("a", b"data")
    location = at(gcs_place, "a")
    info = location.store.head(location.key)
    assert info is not None
    location.store.delete(location.key)
    with pytest.raises(FileNotFoundError):
        _transfer.download([(location, info, str(tmp_path / "x"))], engine="obstore")
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [(403, "AccessDenied", PermissionError), (401, "AuthenticationRequired", PermissionError), (416, "X", OSError)],
)
def test_a_refusal_is_the_builtin_error_and_leaves_nothing(
    proxied: Place, gcs_place: Place, gcs_proxy: Proxy, tmp_path: Path, status: int, code: str, expected: type[OSError]
) -> None:
    gcs_place.put("a", os.urandom(2 * WINDOW))
    gcs_proxy.answer(status, code, "no", target="generation=", skip=1)
    with pytest.raises(expected) as caught:
        fetch(proxied, ["a"], tmp_path, engine="obstore")
    assert caught.value.filename == proxied.url("a")
    assert left(tmp_path) == []
    assert len(agents(gcs_proxy)) == 2


def test_a_busy_store_is_asked_again(proxied: Place, gcs_place: Place, gcs_proxy: Proxy, tmp_path: Path) -> None:
    gcs_place.put("a", b"data")
    gcs_proxy.unavailable(target="generation=", times=2)
    assert fetch(proxied, ["a"], tmp_path, engine="obstore") == {"a": b"data"}
    assert agents(gcs_proxy) == ["object_store"] * 3


def test_a_range_that_breaks_is_resumed_at_its_byte(
    proxied: Place, gcs_place: Place, gcs_proxy: Proxy, tmp_path: Path
) -> None:
    data = os.urandom(3 * MIB)
    gcs_place.put("a", data)
    gcs_proxy.cut_response(MIB, target="generation=", times=1)
    assert fetch(proxied, ["a"], tmp_path, engine="obstore") == {"a": data}
    ranges = [request.headers.get("range", "") for request in gcs_proxy.requests if "generation=" in request.target]
    assert len(ranges) == 2
    assert 0 < int(ranges[1].removeprefix("bytes=").partition("-")[0]) <= MIB


def test_an_unreachable_store_is_a_connection_error(gcs_place: Place, tmp_path: Path) -> None:
    gcs_place.put("a", b"x")
    location = at(gcs_place, "a")
    info = location.store.head(location.key)
    assert info is not None
    gone = at(
        Place(gcs_place.base, "gcs", {"gs": {"token": "anon", "endpoint_url": "http://127.0.0.1:9"}}),
        "a",
    )
    with pytest.raises(ConnectionError):
        _transfer.download([(gone, info, str(tmp_path / "x"))], engine="obstore")
    assert left(tmp_path) == []


def test_the_timeout_of_the_store_is_kept(proxied: Place, gcs_place: Place, gcs_proxy: Proxy, tmp_path: Path) -> None:
    gcs_place.put("a", b"x")
    gcs_proxy.hang(target="generation=")
    with pytest.raises(TimeoutError):
        fetch(change(proxied, requests_timeout=0.5), ["a"], tmp_path, engine="obstore")
    assert set(agents(gcs_proxy)) == {"object_store"}


def test_a_server_without_this_api_is_asked_by_its_own_client(
    gcs_server: servers.Server, gcs_place: Place, tmp_path: Path
) -> None:
    for name in ("a", "b", "c"):
        gcs_place.put(name, name)
    with servers.Proxy(gcs_server.url) as proxy:  # by another name, fake-gcs-server has the JSON API alone
        place = Place(gcs_place.base, "gcs", proxy.gcs_options)
        found = fetch(place, ["a", "b", "c"], tmp_path, engine="obstore", max_concurrency=1)
        asked = agents(proxy)
    assert found == {"a": b"a", "b": b"b", "c": b"c"}
    assert asked == ["object_store", "python-gcsfs", "python-gcsfs", "python-gcsfs"]


# ---- credentials


def tokens(proxy: Proxy) -> list[str | None]:
    """The tokens that obstore sent."""
    asked = [request for request in proxy.requests if request.headers["user-agent"].startswith("object_store")]
    return [request.headers.get("authorization") for request in asked]


def test_the_live_client_is_asked_for_its_token_at_every_request(
    proxied: Place, gcs_place: Place, gcs_proxy: Proxy, tmp_path: Path
) -> None:
    gcs_place.put("a", os.urandom(3 * WINDOW))
    fetch(change(proxied, token=Renewed()), ["a"], tmp_path, engine="obstore", max_concurrency=1)
    sent = tokens(gcs_proxy)
    assert len(sent) == len(set(sent)) == 2
    assert all(str(token).startswith("Bearer token-") for token in sent)


@pytest.mark.parametrize("token", ["anon", AnonymousCredentials()], ids=["anon", "object"])
def test_anonymous_requests_carry_no_token(
    proxied: Place, gcs_place: Place, gcs_proxy: Proxy, tmp_path: Path, token: Any
) -> None:
    gcs_place.put("a", b"data")
    assert fetch(change(proxied, token=token), ["a"], tmp_path, engine="obstore") == {"a": b"data"}
    assert tokens(gcs_proxy) == [None]


def test_credentials_that_come_later_are_used(
    proxied: Place, gcs_place: Place, gcs_proxy: Proxy, tmp_path: Path
) -> None:
    gcs_place.put("a", b"data")
    fetch(proxied, ["a"], tmp_path, engine="obstore")
    store: Any = at(proxied, "a").store
    store.fs.credentials.connect(Renewed())
    (tmp_path / "again").mkdir()
    fetch(proxied, ["a"], tmp_path / "again", engine="obstore")
    first, second = tokens(gcs_proxy)
    assert first is None
    assert str(second).startswith("Bearer token-")


def test_credentials_that_cannot_be_renewed_in_the_middle_are_a_permission_error(
    proxied: Place, gcs_place: Place, gcs_proxy: Proxy, tmp_path: Path
) -> None:
    gcs_place.put("a", os.urandom(3 * WINDOW))
    credentials = Renewed()
    true = credentials.apply

    def apply(headers: Any, token: str | None = None) -> None:
        if len(tokens(gcs_proxy)) == 1:
            raise RefreshError("it was revoked")
        true(headers)

    credentials.apply = apply  # type: ignore[method-assign]
    with pytest.raises(PermissionError, match="it was revoked"):
        fetch(change(proxied, token=credentials), ["a"], tmp_path, engine="obstore", max_concurrency=1)
    assert left(tmp_path) == []


# ---- what cannot be mapped


@pytest.mark.parametrize(
    "options",
    [
        {"requester_pays": True},
        {"session_kwargs": {"trust_env": True}},
        {"token": Renewed("somebody-pays")},
        {"endpoint_url": "http://127.0.0.1:9/below/a/path"},
        {"requests_timeout": "soon"},
    ],
    ids=lambda options: str(next(iter(options))),
)
def test_options_that_obstore_cannot_be_told_keep_the_store_with_its_client(
    proxied: Place, options: dict[str, Any]
) -> None:
    with pytest.raises(_obstore_gcs.Unmapped):
        described(change(proxied, **options))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GOOGLE_BASE_URL", "http://127.0.0.1:9"),
        ("GOOGLE_SERVICE_ACCOUNT", "/account.json"),
        ("GOOGLE_BEARER_TOKEN", "other"),
        ("GOOGLE_PROXY_URL", "http://127.0.0.1:9"),
        ("GOOGLE_ALLOW_INVALID_CERTIFICATES", "true"),
        ("http_proxy", "http://127.0.0.1:9"),
    ],
)
def test_variables_that_only_obstore_reads_keep_the_store_with_its_client(
    proxied: Place, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(_obstore_gcs.Unmapped):
        described(proxied)


def test_a_client_certificate_keeps_the_store_with_its_client(proxied: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at(proxied, "a").store.fs, "_use_client_cert", True, raising=False)
    with pytest.raises(_obstore_gcs.Unmapped):
        described(proxied)


def test_a_file_of_certificates_is_told_to_obstore(
    proxied: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "ca.pem").write_bytes(b"PEM")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    assert described(change(proxied, endpoint_url="https://127.0.0.1:9")).down["root_certificate"] == b"PEM"


def test_a_store_that_cannot_be_described_is_read_and_written_by_its_client(
    proxied: Place, gcs_proxy: Proxy, tmp_path: Path
) -> None:
    place = change(proxied, session_kwargs={"trust_env": False})
    send(place, {"a": b"data"}, tmp_path, engine="obstore")
    (tmp_path / "down").mkdir()
    assert fetch(place, ["a"], tmp_path / "down", engine="obstore") == {"a": b"data"}
    assert set(agents(gcs_proxy)) == {"python-gcsfs"}
    assert _transfer.engines()["obstore"].endswith("not for gs://test-bucket: session_kwargs")


def test_credentials_that_cannot_be_mapped_any_more_leave_the_rest_to_the_client(
    proxied: Place, gcs_place: Place, gcs_proxy: Proxy, tmp_path: Path
) -> None:
    data = os.urandom(3 * WINDOW)
    gcs_place.put("a", data)
    credentials = Renewed()
    gcs_proxy.before(lambda: setattr(credentials, "_quota_project_id", "somebody-pays"), target="generation=", times=1)
    place = change(proxied, token=credentials)
    assert fetch(place, ["a"], tmp_path, engine="obstore", max_concurrency=1) == {"a": data}
    assert agents(gcs_proxy) == ["object_store", "python-gcsfs"]


def test_keys_that_obstore_would_change_go_as_they_are(gcs_place: Place, tmp_path: Path) -> None:
    files = {"a//b": b"1", "tab\there": b"2", "back\\slash": b"3"}
    send(gcs_place, files, tmp_path, engine="obstore")
    (tmp_path / "down").mkdir()
    assert fetch(gcs_place, list(files), tmp_path / "down", engine="obstore") == files


# ---- up


def test_files_go_up_whole_to_a_server_that_takes_no_plain_put(
    proxied: Place, gcs_place: Place, gcs_proxy: Proxy, tmp_path: Path
) -> None:
    files = {"empty": b"", "small": b"x", "whole": os.urandom(WINDOW), "big": os.urandom(2 * WINDOW + 7)}
    calls: list[tuple[int, int, str]] = []
    send(proxied, files, tmp_path, engine="obstore", max_concurrency=1, progress=lambda *call: calls.append(call))
    assert gcs_place.files() == files
    assert agents(gcs_proxy).count("object_store") == 1  # refused once, not asked again
    assert calls[-1][0] == sum(map(len, files.values()))
    assert "not for gs://test-bucket: the store answered 400 to an upload" in _transfer.engines()["obstore"]


def test_a_server_that_takes_no_put_is_still_read_through_obstore(
    proxied: Place, gcs_proxy: Proxy, tmp_path: Path
) -> None:
    (tmp_path / "up").write_bytes(b"data")
    location = at(proxied, "a")
    chosen = _transfer.engine_for(location.store, "obstore")
    assert chosen is not None
    got: list[bytes] = []

    async def there_and_back() -> None:
        sent = await chosen.send(_transfer.Outgoing(str(tmp_path / "up"), location), lambda count: None, 1)
        await chosen.fetch(location.key, 0, 4, sent, lambda data: got.append(bytes(data)))

    asyncio.run_coroutine_threadsafe(there_and_back(), location.store.fs.loop).result(120)
    assert got == [b"data"]
    assert agents(gcs_proxy) == ["object_store", "python-gcsfs", "object_store"]


@pytest.mark.parametrize("checksums", [True, False], ids=["checksum-etags", "opaque-etags"])
def test_small_files_go_up_through_obstore(
    writable: Place, gcs_place: Place, xml_proxy: XmlProxy, tmp_path: Path, checksums: bool
) -> None:
    xml_proxy.etags_are_checksums = checksums
    files = {f"odd/{name}": name.encode() for name in ODD_KEYS} | {"whole": os.urandom(WINDOW), "page.html": b"<p>"}
    sent = send(writable, files, tmp_path, engine="obstore")
    assert gcs_place.files() == files
    assert set(agents(xml_proxy)) == {"object_store"}
    store = at(gcs_place, "a").store
    for info in sent:
        found = store.head(info.key)
        assert found is not None
        assert (info.size, info.version) == (found.size, found.version)
    asked = sum(request.path.startswith("/storage/v1") for request in xml_proxy.requests)
    assert asked == (0 if checksums else len(files))  # an etag that proves it saves a question


def test_the_type_of_a_file_is_told_as_the_other_engine_tells_it(
    writable: Place, gcs_place: Place, tmp_path: Path
) -> None:
    for engine in ("obstore", "fsspec"):
        send(writable, {f"{engine}.html": b"<p>", f"{engine}.unknown": b"x"}, tmp_path, engine=engine)
    kinds = {path.rpartition("/")[2]: info["contentType"] for path, info in found_below(gcs_place).items()}
    assert kinds["obstore.html"] == kinds["fsspec.html"] == "text/html"
    assert kinds["obstore.unknown"] == kinds["fsspec.unknown"]


def found_below(place: Place) -> dict[str, Any]:
    """What gcsfs tells of every file of a place."""
    found: dict[str, Any] = place.fs().find(place.base, detail=True)
    return found


def test_a_store_that_has_other_bytes_than_were_sent_is_noticed(
    writable: Place, gcs_place: Place, xml_proxy: XmlProxy, tmp_path: Path
) -> None:
    xml_proxy.etags_are_checksums = False
    xml_proxy.before(lambda: gcs_place.put("a", b"DATA"), target="/storage/v1/b/.*/a$", times=1)
    with pytest.raises(OSError, match="other bytes than were sent"):
        send(writable, {"a": b"data"}, tmp_path, engine="obstore")


def test_a_failed_upload_keeps_the_old_object(
    writable: Place, gcs_place: Place, xml_proxy: XmlProxy, tmp_path: Path
) -> None:
    gcs_place.put("a", b"old")
    xml_proxy.deny(method="PUT")
    with pytest.raises(PermissionError):
        send(writable, {"a": b"new"}, tmp_path, engine="obstore")
    assert gcs_place.read("a") == b"old"


def test_an_upload_to_a_busy_store_is_tried_again(
    writable: Place, gcs_place: Place, xml_proxy: XmlProxy, tmp_path: Path
) -> None:
    xml_proxy.unavailable(method="PUT", times=1)
    send(writable, {"a": b"data"}, tmp_path, engine="obstore")
    assert gcs_place.read("a") == b"data"
    assert agents(xml_proxy) == ["object_store"] * 2


def test_large_files_go_up_through_the_live_client(
    writable: Place, gcs_place: Place, xml_proxy: XmlProxy, tmp_path: Path
) -> None:
    data = os.urandom(2 * WINDOW + 7)
    send(writable, {"a": data}, tmp_path, engine="obstore")
    assert gcs_place.read("a") == data
    assert set(agents(xml_proxy)) == {"python-gcsfs"}


# ---- which engine, and memory


def test_obstore_is_used_where_it_is_installed(gcs_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(_transfer.ENVIRONMENT, raising=False)
    chosen = _transfer.engine_for(at(gcs_place, "a").store)
    assert isinstance(chosen, _engine_obstore.ObstoreEngine)


@pytest.mark.slow
def test_memory_stays_bounded_whatever_the_size(gcs_server: servers.Server, gcs_place: Place, tmp_path: Path) -> None:
    key = f"{gcs_place.base.rpartition('/')[2]}/a"
    gcs_server.put(key, bytes(40 * WINDOW))
    ended = subprocess.run(
        [sys.executable, "-c", TRANSFER + PEAK, "down", gcs_place.url("a"), str(tmp_path / "x"), "obstore"],
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(ended.stdout.splitlines()[-1]) < 256

"""Azure through obstore, on azurite: ``npm install azurite``, and its ``azurite-blob`` on the PATH.

It comes from no Python package, so where it is missing these tests are skipped, whatever else is required.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from remoteio import _engine_obstore, _transfer
from remoteio.errors import ObjectChangedError
from tests import servers
from tests.conftest import Place
from tests.proxy import Proxy
from tests.test_transfer import MIB, ODD_KEYS, WINDOW, at, fetch, left, send

pytest.importorskip("obstore")
pytest.importorskip("adlfs")

from remoteio import _obstore_azure

ACCOUNT = "devstoreaccount1"
# The key of every azurite, from its documentation.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def options(url: str, **more: Any) -> dict[str, dict[str, Any]]:
    """Storage options that lead to an azurite, or to a proxy in front of one."""
    told = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={url}/{ACCOUNT};"
    return {"abfs": {"connection_string": told, **more}}


class Azurite(servers.Server):
    """Azure Blob Storage by azurite."""

    name = "azurite"
    package = "azurite"
    scheme = "abfs"
    health = f"/{ACCOUNT}?comp=list"

    @classmethod
    def program(cls) -> str | None:
        return shutil.which("azurite-blob")

    def command(self, program: str, folder: str) -> list[str]:
        port = servers.free_port()
        self.url = f"http://127.0.0.1:{port}"
        flags = ["--silent", "--skipApiVersionCheck", "--disableTelemetry"]
        return [program, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", folder, *flags]

    def _wait_until_healthy(self, seconds: float) -> None:
        def look() -> None:
            try:
                urllib.request.urlopen(self.url + self.health, timeout=5).close()
            except urllib.error.HTTPError:  # it answers: that it wants a signature
                return

        self._with_patience(look, seconds)

    def make_bucket(self, bucket: str) -> None:
        self.files().mkdir(bucket)

    def files(self) -> Any:
        """A filesystem of adlfs, past remoteio."""
        import fsspec

        return fsspec.filesystem("abfs", **options(self.url)["abfs"], skip_instance_cache=True)


@pytest.fixture(scope="module")
def azurite() -> Iterator[Azurite]:
    if Azurite.program() is None:
        pytest.skip("needs azurite-blob on the PATH: npm install azurite")
    with Azurite() as server:
        yield server


@pytest.fixture
def proxy(azurite: Azurite) -> Iterator[Proxy]:
    with Proxy(azurite.url) as one:
        yield one


@pytest.fixture
def direct(azurite: Azurite) -> Place:
    """A directory on azurite."""
    return Place(f"{azurite.base}/t-{uuid.uuid4().hex[:12]}", "azure", options(azurite.url))


@pytest.fixture
def proxied(direct: Place, proxy: Proxy) -> Place:
    """The same directory, through `proxy`."""
    return Place(direct.base, "azure", options(proxy.url))


def moving(proxy: Proxy) -> list[Any]:
    """The requests that moved bytes."""
    return [
        request
        for request in proxy.requests
        if (request.method == "PUT" or (request.method == "GET" and "restype" not in request.query))
        and request.query.get("comp") in (None, "block", "blocklist")
    ]


def agents(proxy: Proxy) -> list[str]:
    """Which library sent each of them."""
    return [request.headers["user-agent"].partition("/")[0] for request in moving(proxy)]


def described(place: Place) -> Any:
    """What obstore is told of a place's container."""
    store: Any = at(place, "a").store
    work = _obstore_azure.describe(store.fs, "test-bucket")
    return asyncio.run_coroutine_threadsafe(work, store.fs.loop).result(120)


# ---- down


def test_every_byte_that_comes_down_comes_through_obstore(
    proxied: Place, direct: Place, proxy: Proxy, tmp_path: Path
) -> None:
    files = {str(size): os.urandom(size) for size in (0, 1, MIB, MIB + 1, WINDOW, 2 * WINDOW + 7)}
    for name, data in files.items():
        direct.put(name, data)
    assert fetch(proxied, list(files), tmp_path, engine="obstore") == files
    assert agents(proxy) == ["object_store"] * 7  # one for each, two more for the largest, none for the empty one
    assert all("if-match" in request.headers for request in moving(proxy))


def test_odd_keys_mean_themselves(proxied: Place, direct: Place, proxy: Proxy, tmp_path: Path) -> None:
    files = {f"odd/{name}": name.encode() for name in ODD_KEYS}
    send(proxied, files, tmp_path, engine="obstore")
    assert direct.files() == files
    (tmp_path / "down").mkdir()
    assert fetch(proxied, list(files), tmp_path / "down", engine="obstore") == files
    assert agents(proxy) == ["object_store"] * 2 * len(files)


def test_a_key_that_adlfs_changes_goes_to_adlfs(proxied: Place, proxy: Proxy, tmp_path: Path) -> None:
    send(proxied, {"a?versionid=1": b"data"}, tmp_path, engine="obstore")
    (tmp_path / "down").mkdir()
    assert fetch(proxied, ["a"], tmp_path / "down", engine="fsspec") == {"a": b"data"}
    assert set(agents(proxy)) == {"adlfs"}


@pytest.mark.parametrize("mapped", [True, False], ids=["obstore", "adlfs"])
def test_an_object_replaced_in_the_middle_is_an_error(
    proxied: Place, direct: Place, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped: bool
) -> None:
    if not mapped:
        monkeypatch.setenv("AZURE_PROXY_URL", "http://127.0.0.1:9")
    direct.put("a", os.urandom(4 * WINDOW))
    new = os.urandom(4 * WINDOW)
    proxy.before(lambda: direct.put("a", new), method="GET", target=f"/{ACCOUNT}/test-bucket/t-", skip=1, times=1)
    with pytest.raises(ObjectChangedError):
        fetch(proxied, ["a"], tmp_path, engine="obstore", max_concurrency=1)
    assert set(agents(proxy)) == {"object_store" if mapped else "adlfs"}
    assert left(tmp_path) == []


def test_an_object_that_is_gone_is_an_error(direct: Place, tmp_path: Path) -> None:
    direct.put("a", b"data")
    location = at(direct, "a")
    info = location.store.head(location.key)
    assert info is not None
    location.store.delete(location.key)
    with pytest.raises((FileNotFoundError, ObjectChangedError)):  # azurite says of it that the etag does not match
        _transfer.download([(location, info, str(tmp_path / "x"))], engine="obstore")
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("status", "kind"), [(401, PermissionError), (403, PermissionError), (405, OSError)], ids=["401", "403", "405"]
)
def test_a_refusal_by_adlfs_is_told_by_its_status(
    proxied: Place, proxy: Proxy, status: int, kind: type[OSError]
) -> None:
    store = at(proxied, "a").store
    proxy.answer(status, "NotForYou", "no", target=f"/{ACCOUNT}/test-bucket")
    with pytest.raises(kind) as caught:
        store.head(at(proxied, "a").key)
    assert caught.value.errno == (errno.EACCES if kind is PermissionError else errno.ENOTSUP)
    assert caught.value.filename == proxied.url("a")


def test_a_refusal_is_a_permission_error(proxied: Place, direct: Place, proxy: Proxy, tmp_path: Path) -> None:
    direct.put("a", os.urandom(2 * WINDOW))
    proxy.answer(403, "AuthorizationFailure", "no", method="GET", target=f"/{ACCOUNT}/test-bucket/t-", skip=1)
    with pytest.raises(PermissionError) as caught:
        fetch(proxied, ["a"], tmp_path, engine="obstore")
    assert caught.value.filename == proxied.url("a")
    assert left(tmp_path) == []


def test_an_unreachable_store_is_a_connection_error(direct: Place, tmp_path: Path) -> None:
    direct.put("a", b"x")
    location = at(direct, "a")
    info = location.store.head(location.key)
    assert info is not None
    gone = at(Place(direct.base, "azure", options("http://127.0.0.1:9")), "a")
    with pytest.raises(ConnectionError):
        _transfer.download([(gone, info, str(tmp_path / "x"))], engine="obstore")
    assert left(tmp_path) == []


# ---- up


def test_every_byte_that_goes_up_goes_through_obstore(
    proxied: Place, direct: Place, proxy: Proxy, tmp_path: Path
) -> None:
    files = {str(size): os.urandom(size) for size in (0, 1, WINDOW, 2 * WINDOW + 7)}
    sent = send(proxied, files, tmp_path, engine="obstore")
    assert direct.files() == files
    assert set(agents(proxy)) == {"object_store"}
    store = at(direct, "a").store
    for info in sent:
        found = store.head(info.key)
        assert found is not None
        assert (info.size, info.version) == (found.size, found.version)


def test_what_obstore_writes_is_marked_as_adlfs_marks_it(direct: Place, azurite: Azurite, tmp_path: Path) -> None:
    for engine in ("obstore", "fsspec"):
        send(direct, {engine: b"x", f"{engine}-big": bytes(WINDOW + 1)}, tmp_path, engine=engine)
    found = {path.rpartition("/")[2]: info for path, info in azurite.files().find(direct.base, detail=True).items()}
    told = {name: azurite.files().info(info["name"]) for name, info in found.items()}
    for name in ("obstore", "obstore-big"):
        theirs = told[name.replace("obstore", "fsspec")]
        assert told[name]["metadata"] == theirs["metadata"]
        assert told[name]["content_settings"]["content_type"] == theirs["content_settings"]["content_type"]


@pytest.mark.parametrize("size", [1, 4 * WINDOW])
def test_a_failed_upload_keeps_the_old_object(
    proxied: Place, direct: Place, proxy: Proxy, tmp_path: Path, size: int
) -> None:
    direct.put("a", b"old")
    proxy.answer(403, "AuthorizationFailure", "no", method="PUT", skip=1 if size > 1 else 0)
    with pytest.raises(PermissionError):
        send(proxied, {"a": os.urandom(size)}, tmp_path, engine="obstore")
    assert direct.read("a") == b"old"


def test_bytes_that_changed_on_the_way_are_noticed(proxied: Place, proxy: Proxy, tmp_path: Path) -> None:
    proxy.spoil_request(method="PUT")
    with pytest.raises(OSError, match="other bytes than were sent"):
        send(proxied, {"a": b"few"}, tmp_path, engine="obstore")


def test_a_local_file_that_becomes_shorter_is_never_published(
    proxied: Place, direct: Place, proxy: Proxy, tmp_path: Path
) -> None:
    proxy.before(lambda: os.truncate(tmp_path / "up0", MIB), method="PUT", times=1)
    with pytest.raises(OSError, match="shorter"):
        send(proxied, {"a": bytes(16 * WINDOW)}, tmp_path, engine="obstore")
    with pytest.raises(FileNotFoundError):
        direct.read("a")


def test_an_upload_to_a_busy_store_is_tried_again(proxied: Place, direct: Place, proxy: Proxy, tmp_path: Path) -> None:
    proxy.unavailable(method="PUT", times=1)
    send(proxied, {"a": b"data"}, tmp_path, engine="obstore")
    assert direct.read("a") == b"data"


# ---- credentials


def token_of(place: Place) -> str:
    """A signature for the whole account."""
    from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas

    return str(
        generate_account_sas(
            ACCOUNT,
            KEY,
            ResourceTypes(service=True, container=True, object=True),
            AccountSasPermissions(read=True, write=True, list=True, create=True),
            datetime.now(timezone.utc) + timedelta(hours=1),
        )
    )


def test_a_shared_access_signature_is_used(direct: Place, proxy: Proxy, tmp_path: Path) -> None:
    signature = token_of(direct)
    told = f"BlobEndpoint={proxy.url}/{ACCOUNT};AccountName={ACCOUNT};SharedAccessSignature={signature}"
    place = Place(direct.base, "azure", {"abfs": {"connection_string": told}})
    send(place, {"a b": b"data"}, tmp_path, engine="obstore")
    (tmp_path / "down").mkdir()
    assert fetch(place, ["a b"], tmp_path / "down", engine="obstore") == {"a b": b"data"}
    assert set(agents(proxy)) == {"object_store"}
    assert all("authorization" not in request.headers for request in moving(proxy))


def test_a_key_that_was_changed_in_the_live_client_is_used(
    proxied: Place, direct: Place, proxy: Proxy, tmp_path: Path
) -> None:
    direct.put("a", os.urandom(4 * WINDOW))
    store: Any = at(proxied, "a").store
    policy = store.fs.service_client.credential
    true = policy.account_key
    wrong = "d3Jvbmc="
    proxy.before(
        lambda: setattr(policy, "account_key", wrong),
        method="GET",
        target=f"/{ACCOUNT}/test-bucket/t-",
        times=1,
    )
    try:
        with pytest.raises(PermissionError):
            fetch(proxied, ["a"], tmp_path, engine="obstore", max_concurrency=1)
    finally:
        policy.account_key = true
    assert set(agents(proxy)) == {"object_store"}


def test_a_token_is_asked_of_the_live_client_each_time(direct: Place) -> None:
    class Renewed:
        asked = 0

        async def get_token(self, *scopes: str, **keywords: Any) -> Any:
            self.asked += 1
            return type("Token", (), {"token": f"token-{self.asked}"})

    fs: Any = at(direct, "a").store.fs
    client = fs.service_client
    true, client.credential = client.credential, Renewed()
    try:
        ask = _obstore_azure.provider(fs, lambda error: None)
        assert [ask()["token"], ask()["token"]] == ["token-1", "token-2"]
    finally:
        client.credential = true


# ---- what cannot be mapped


@pytest.mark.parametrize(
    "more",
    [{"location_mode": "secondary"}, {"timeout": 5}, {"connection_timeout": "soon"}],
    ids=lambda more: str(next(iter(more))),
)
def test_options_that_obstore_cannot_be_told_keep_the_store_with_its_client(
    azurite: Azurite, direct: Place, more: dict[str, Any]
) -> None:
    with pytest.raises(_obstore_azure.Unmapped):
        described(Place(direct.base, "azure", options(azurite.url, **more)))


def test_a_token_without_tls_keeps_the_store_with_its_client(direct: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    class Bearer:
        async def get_token(self, *scopes: str, **keywords: Any) -> Any:
            return type("Token", (), {"token": "token"})

    monkeypatch.setattr(at(direct, "a").store.fs.service_client, "credential", Bearer())
    with pytest.raises(_obstore_azure.Unmapped):
        described(direct)


@pytest.mark.parametrize("name", ["AZURE_ENCRYPTION_KEY", "AZURE_PROXY_URL", "http_proxy"])
def test_variables_that_only_obstore_reads_keep_the_store_with_its_client(
    direct: Place, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    with pytest.raises(_obstore_azure.Unmapped):
        described(direct)


def test_a_store_that_cannot_be_described_is_read_and_written_by_its_client(
    direct: Place, proxy: Proxy, tmp_path: Path
) -> None:
    place = Place(direct.base, "azure", options(proxy.url, timeout=30))
    files = {"empty": b"", "small": b"data", "big": os.urandom(2 * WINDOW + 7)}
    send(place, files, tmp_path, engine="obstore")
    (tmp_path / "down").mkdir()
    assert fetch(place, list(files), tmp_path / "down", engine="obstore") == files
    assert set(agents(proxy)) == {"adlfs"}
    assert "timeout" in _transfer.engines()["obstore"]


def test_obstore_is_used_where_it_is_installed(direct: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(_transfer.ENVIRONMENT, raising=False)
    store = at(direct, "a").store
    assert isinstance(_transfer.engine_for(store), _engine_obstore.ObstoreEngine)
    assert _transfer.engine_for(store, "fsspec") is None

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remoteio import _stores, _transfer, _transfer_plan
from remoteio._settings import Settings
from remoteio._stores import Location
from remoteio.errors import ObjectChangedError
from tests import servers
from tests.conftest import Place

MIB = 2**20
WINDOW = _transfer_plan.WINDOW
ROOT = str(Path(__file__).parent.parent)

ODD_KEYS = ["a b", "a#b", "a?b", "a*b", "a[b]", "a%20b", "a+b", "{x}", "ü", "日本", "run::1", ".hid", "a~b", "a&b=c"]


@pytest.fixture(params=["fsspec", "obstore"])
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine in turn."""
    if request.param == "obstore":
        pytest.importorskip("obstore")
    return str(request.param)


def at(place: Place, name: str) -> Location:
    """The location of a name in a place."""
    url = _stores.parse(place.url(name))
    assert url is not None
    return _stores.resolve(url, Settings(storage_options=(place.options,)))


def fetch(place: Place, names: list[str], target: Path, **keywords: Any) -> dict[str, bytes]:
    """Download some files; what came."""
    items = []
    for number, name in enumerate(names):
        location = at(place, name)
        info = location.store.head(location.key)
        assert info is not None
        items.append((location, info, str(target / f"{number}")))
    _transfer.download(items, **keywords)
    return {name: (target / f"{number}").read_bytes() for number, name in enumerate(names)}


def send(place: Place, files: dict[str, bytes], source: Path, **keywords: Any) -> list[Any]:
    """Upload some files."""
    items = []
    for number, (name, data) in enumerate(files.items()):
        (source / f"up{number}").write_bytes(data)
        items.append((str(source / f"up{number}"), at(place, name)))
    return _transfer.upload(items, **keywords)


def left(folder: Path) -> list[str]:
    """The names of what lies in a folder."""
    return sorted(os.listdir(folder))


# ---- whole files


def test_files_of_every_size_arrive_as_they_are(remote: Place, tmp_path: Path) -> None:
    sizes = [0, 1, MIB + 1, WINDOW, WINDOW + 1, 2 * WINDOW + 7]
    files = {f"dir/{size}": os.urandom(size) for size in sizes}
    for name, data in files.items():
        remote.put(name, data)
    assert fetch(remote, list(files), tmp_path) == files


def test_files_of_every_size_are_sent_as_they_are(remote: Place, tmp_path: Path) -> None:
    sizes = [0, 1, MIB + 1, WINDOW, WINDOW + 1, 2 * WINDOW + 7]
    files = {f"dir/{size}": os.urandom(size) for size in sizes}
    sent = send(remote, files, tmp_path)
    assert remote.files() == files
    assert [info.size for info in sent] == sizes


def test_both_engines_fetch_the_same(s3_place: Place, tmp_path: Path, engine: str) -> None:
    files = {"big": os.urandom(2 * WINDOW + 7), "small": b"x", "empty": b""}
    for name, data in files.items():
        s3_place.put(name, data)
    assert fetch(s3_place, list(files), tmp_path, engine=engine) == files


def test_both_engines_send_the_same(s3_place: Place, tmp_path: Path, engine: str) -> None:
    files = {"big": os.urandom(2 * WINDOW + 7), "small": b"x", "empty": b""}
    send(s3_place, files, tmp_path, engine=engine)
    assert s3_place.files() == files


@pytest.mark.parametrize(("named", "agent"), [("fsspec", "aiobotocore"), ("obstore", "object_store")])
def test_the_chosen_engine_is_the_one_that_moves_the_bytes(
    proxy_place: Place, proxy: Any, tmp_path: Path, named: str, agent: str
) -> None:
    """But S3's parts, which the live client sends: obstore has no condition for them."""
    pytest.importorskip(named)
    send(proxy_place, {"big": os.urandom(WINDOW + 7), "small": b"x"}, tmp_path, engine=named)
    fetch(proxy_place, ["big", "small"], tmp_path, engine=named)
    moving = {"GetObject", "PutObject"}
    asked = {
        request.headers["user-agent"].partition("/")[0] for request in proxy.requests if request.operation in moving
    }
    assert asked == {agent}


@pytest.mark.parametrize("status", [301, 307, 400])
def test_a_store_that_wants_to_be_asked_otherwise_is_asked_by_its_own_client(
    proxy_place: Place, proxy: Any, tmp_path: Path, status: int
) -> None:
    pytest.importorskip("obstore")
    proxy.answer(status, "PermanentRedirect", "elsewhere", operation="PutObject", times=1)
    send(proxy_place, {"a": b"x"}, tmp_path, engine="obstore")
    proxy.answer(status, "PermanentRedirect", "elsewhere", operation="GetObject", times=1)
    assert fetch(proxy_place, ["a"], tmp_path, engine="obstore") == {"a": b"x"}


def test_a_server_that_obstore_cannot_connect_to_is_asked_by_its_own_client(
    s3_place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore")
    from remoteio import _obstore_s3

    true = _obstore_s3._addressing
    monkeypatch.setattr(
        _obstore_s3,
        "_addressing",
        lambda *given: {**true(*given), **dict.fromkeys(ENDPOINTS, "http://nowhere.invalid")},
    )
    s3_place.put("a", b"x")
    assert fetch(s3_place, ["a"], tmp_path, engine="obstore") == {"a": b"x"}


ENDPOINTS = ("endpoint", "aws_endpoint_url_s3")


def test_what_was_sent_is_described_as_the_store_has_it(s3_place: Place, tmp_path: Path, engine: str) -> None:
    sent = send(s3_place, {"big": os.urandom(WINDOW + 7), "small": b"x"}, tmp_path, engine=engine)
    for info in sent:
        found = at(s3_place, "").store.head(info.key)
        assert found is not None
        assert (info.size, info.version) == (found.size, found.version)


def test_odd_keys_mean_themselves(s3_place: Place, tmp_path: Path, engine: str) -> None:
    files = {f"odd/{name}": name.encode() for name in ODD_KEYS}
    send(s3_place, files, tmp_path, engine=engine)
    assert s3_place.files() == files
    assert fetch(s3_place, list(files), tmp_path, engine=engine) == files


def test_keys_that_obstore_would_change_go_as_they_are(moto_place: Place, tmp_path: Path, engine: str) -> None:
    files = {"a//b": b"1", "tab\there": b"2", "back\\slash": b"3"}
    send(moto_place, files, tmp_path, engine=engine)
    assert fetch(moto_place, list(files), tmp_path, engine=engine) == files


def test_a_local_file_that_is_there_is_never_overwritten(s3_place: Place, tmp_path: Path, engine: str) -> None:
    s3_place.put("a", b"remote")
    (tmp_path / "0").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        fetch(s3_place, ["a"], tmp_path, engine=engine)
    assert (tmp_path / "0").read_bytes() == b"mine"


def test_a_link_planted_at_the_local_path_is_not_followed(s3_place: Place, tmp_path: Path, engine: str) -> None:
    s3_place.put("a", b"remote")
    (tmp_path / "0").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        fetch(s3_place, ["a"], tmp_path, engine=engine)
    assert left(tmp_path) == ["0"]


# ---- what breaks


def test_a_range_that_breaks_is_resumed_at_its_byte(
    proxy_place: Place, proxy: Any, tmp_path: Path, engine: str
) -> None:
    data = os.urandom(5 * MIB)
    proxy_place.put("a", data)
    proxy.cut_response(3 * MIB, operation="GetObject", times=1)
    assert fetch(proxy_place, ["a"], tmp_path, engine=engine) == {"a": data}
    asked = [request.headers.get("range", "") for request in proxy.requests if request.operation == "GetObject"]
    assert len(asked) == 2
    first = int(asked[1].removeprefix("bytes=").partition("-")[0])
    assert MIB <= first <= 3 * MIB  # obstore hands bytes on by the MiB


def test_a_busy_store_is_asked_again(proxy_place: Place, proxy: Any, tmp_path: Path, engine: str) -> None:
    proxy_place.put("a", b"data")
    proxy.unavailable(operation="GetObject", times=2)
    assert fetch(proxy_place, ["a"], tmp_path, engine=engine) == {"a": b"data"}
    assert proxy.tally["GetObject"] == 3


def test_retries_are_one_layer_and_end(proxy_place: Place, proxy: Any, tmp_path: Path, engine: str) -> None:
    proxy_place.put("a", b"data")
    proxy.unavailable(operation="GetObject")
    with pytest.raises(OSError):
        fetch(proxy_place, ["a"], tmp_path, engine=engine)
    assert proxy.tally["GetObject"] <= 7


def test_an_upload_to_a_busy_store_is_tried_again(proxy_place: Place, proxy: Any, tmp_path: Path, engine: str) -> None:
    data = os.urandom(WINDOW + 7)
    proxy.unavailable(operation="PutObject", times=1)
    proxy.unavailable(operation="UploadPart", times=1)
    send(proxy_place, {"small": b"x", "big": data}, tmp_path, engine=engine)
    assert proxy_place.read("small") == b"x"
    assert proxy_place.read("big") == data


def test_an_upload_to_a_busy_gcs_is_tried_again(gcs_place: Place, gcs_proxy: Any, tmp_path: Path) -> None:
    place = Place(gcs_place.base, "gcs", gcs_proxy.gcs_options)
    files = {"small": b"x" * 1000, "big": os.urandom(WINDOW + 7)}
    gcs_proxy.answer(503, "ServiceUnavailable", "busy", method="POST", times=1)
    gcs_proxy.answer(503, "ServiceUnavailable", "busy", method="PUT", times=1)
    send(place, files, tmp_path)
    assert gcs_place.files() == files


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [(403, "AccessDenied", PermissionError), (404, "NoSuchKey", FileNotFoundError), (416, "InvalidRange", OSError)],
)
def test_a_refusal_is_the_builtin_error_and_leaves_nothing(
    proxy_place: Place, proxy: Any, tmp_path: Path, engine: str, status: int, code: str, expected: type[OSError]
) -> None:
    proxy_place.put("a", os.urandom(2 * WINDOW))
    proxy.answer(status, code, "no", operation="GetObject", skip=1)
    with pytest.raises(expected) as caught:
        fetch(proxy_place, ["a"], tmp_path, engine=engine)
    assert caught.value.filename.endswith(proxy_place.url("a").rpartition("t-")[2])
    assert left(tmp_path) == []
    assert proxy.tally["GetObject"] <= 3


def test_an_object_replaced_in_the_middle_is_an_error(
    proxy_place: Place, s3_place: Place, proxy: Any, tmp_path: Path, engine: str
) -> None:
    proxy_place.put("a", os.urandom(4 * WINDOW))
    new = os.urandom(4 * WINDOW)
    proxy.before(lambda: s3_place.put("a", new), operation="GetObject", skip=1, times=1)
    with pytest.raises(ObjectChangedError):
        fetch(proxy_place, ["a"], tmp_path, engine=engine, max_concurrency=1)
    assert left(tmp_path) == []


def test_an_object_that_became_shorter_is_an_error(s3_place: Place, tmp_path: Path, engine: str) -> None:
    s3_place.put("a", b"long content")
    location = at(s3_place, "a")
    info = location.store.head(location.key)
    assert info is not None
    s3_place.put("a", b"short")
    with pytest.raises(ObjectChangedError):
        _transfer.download([(location, info, str(tmp_path / "x"))], engine=engine)
    assert left(tmp_path) == []


def test_the_first_failure_takes_the_other_files_along(proxy_place: Place, proxy: Any, tmp_path: Path) -> None:
    for name in "abc":
        proxy_place.put(name, name)
    proxy.deny(operation="GetObject", target="/b$")
    with pytest.raises(PermissionError):
        fetch(proxy_place, ["a", "b", "c"], tmp_path)
    assert left(tmp_path) == []


def test_an_unreachable_store_is_a_connection_error(s3_place: Place, tmp_path: Path, engine: str) -> None:
    s3_place.put("a", b"x")
    location = at(s3_place, "a")
    info = location.store.head(location.key)
    assert info is not None
    dead = servers.s3_options("http://127.0.0.1:9") if hasattr(servers, "s3_options") else {}
    gone = at(
        Place(
            s3_place.base, "s3", {"s3": {"key": "k", "secret": "secret", **dead, "endpoint_url": "http://127.0.0.1:9"}}
        ),
        "a",
    )
    with pytest.raises(ConnectionError):
        _transfer.download([(gone, info, str(tmp_path / "x"))], engine=engine)
    assert left(tmp_path) == []


def test_a_failed_upload_keeps_the_old_object(proxy_place: Place, proxy: Any, tmp_path: Path, engine: str) -> None:
    proxy_place.put("a", b"old")
    proxy.deny(operation="UploadPart", skip=1)
    with pytest.raises(PermissionError):
        send(proxy_place, {"a": os.urandom(4 * WINDOW)}, tmp_path, engine=engine)
    proxy.clear()
    assert proxy_place.read("a") == b"old"


def test_a_failed_multipart_upload_is_aborted(proxy_place: Place, proxy: Any, tmp_path: Path, engine: str) -> None:
    proxy.deny(operation="UploadPart", skip=1)
    with pytest.raises(PermissionError):
        send(proxy_place, {"a": os.urandom(4 * WINDOW)}, tmp_path, engine=engine)
    assert unfinished(proxy_place) == []


def test_many_uploads_that_are_broken_off_are_all_aborted(
    proxy_place: Place, proxy: Any, tmp_path: Path, engine: str
) -> None:
    """Of more files than are sent at a time; those too whose uploads are only being created."""
    proxy.cap(4 * MIB)
    cancel = threading.Event()
    for wait_s in (0.05, 0.4, 0.8):
        cancel.clear()
        timer = threading.Timer(wait_s, cancel.set)
        timer.start()
        with pytest.raises(OSError, match="given up"):
            send(
                proxy_place,
                {f"f{number}": bytes(20 * MIB) for number in range(6)},
                tmp_path,
                engine=engine,
                cancel=cancel,
            )
        timer.join()
        deadline = time.monotonic() + 15  # the machine may be busy
        while unfinished(proxy_place) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert unfinished(proxy_place) == []
    assert proxy_place.files() == {}


def test_a_failed_upload_tells_of_all_that_arrived(
    proxy_place: Place, proxy: Any, tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remoteio._transfer_loop.LAST_MOMENT_S", 30)  # the machine may be busy
    proxy.deny(operation="PutObject", target="bad")
    done: list[str] = []
    files = {**{f"f{number}": bytes([number]) * number for number in range(1, 60)}, "bad": bytes(100)}
    with pytest.raises(PermissionError):
        send(proxy_place, files, tmp_path, engine=engine, done=done.append)
    told = [list(files)[int(os.path.basename(path).removeprefix("up"))] for path in done]
    assert sorted(told) == sorted(proxy_place.files())
    assert told


def unfinished(place: Place) -> list[str]:
    """The keys of unfinished multipart uploads in a place."""
    store: Any = at(place, "x").store
    bucket, _, prefix = place.base.partition("://")[2].partition("/")
    page = store.run("x", lambda: store._call("list_multipart_uploads", Bucket=bucket, Prefix=prefix))
    return [found["Key"] for found in page.get("Uploads") or ()]


def test_an_upload_beside_somebody_elses_unfinished_one_leaves_that_alone(
    proxy_place: Place, proxy: Any, tmp_path: Path, engine: str
) -> None:
    store: Any = at(proxy_place, "a").store
    bucket, _, key = proxy_place.url("a").partition("://")[2].partition("/")
    store.run("a", lambda: store._call("create_multipart_upload", Bucket=bucket, Key=key))
    proxy.deny(operation="UploadPart", skip=1)
    with pytest.raises(PermissionError):
        send(proxy_place, {"a": os.urandom(4 * WINDOW)}, tmp_path, engine=engine)
    assert len(unfinished(proxy_place)) == 1


def test_files_sent_before_a_failure_are_told(proxy_place: Place, proxy: Any, tmp_path: Path, engine: str) -> None:
    proxy.deny(operation="PutObject", target="/bad$")
    there: list[str] = []
    with pytest.raises(PermissionError):
        send(
            proxy_place, {"good": b"longer", "bad": b"x"}, tmp_path, engine=engine, done=there.append, max_concurrency=1
        )
    assert there == [str(tmp_path / "up0")]


def test_a_local_file_that_becomes_shorter_is_never_published(
    proxy_place: Place, proxy: Any, tmp_path: Path, engine: str
) -> None:
    source = tmp_path / "up0"
    proxy.before(lambda: os.truncate(source, MIB), operation="CreateMultipartUpload")
    with pytest.raises(OSError, match="shorter"):
        send(proxy_place, {"a": os.urandom(4 * WINDOW)}, tmp_path, engine=engine)
    assert proxy_place.files() == {}
    assert unfinished(proxy_place) == []


def test_a_store_that_lost_bytes_of_an_upload_is_noticed(
    proxy_place: Place, s3_place: Place, proxy: Any, tmp_path: Path, engine: str
) -> None:
    proxy.before(lambda: s3_place.put("a", b"less"), operation="HeadObject", target="/a$")
    with pytest.raises(OSError, match="the store has 4 of"):
        send(proxy_place, {"a": os.urandom(WINDOW + 7)}, tmp_path, engine=engine)


# ---- what may be replaced


def expecting(place: Place, source: Path, data: bytes, version: str) -> Any:
    """Send one file that may replace this version alone."""
    (source / "up").write_bytes(data)
    path = str(source / "up")
    return _transfer.upload([(path, at(place, "a"))], expected={path: version})


def version_of(place: Place, name: str) -> str:
    """The version of an object; empty where there is none."""
    location = at(place, name)
    info = location.store.head(location.key)
    return (info.version or "") if info is not None else ""


@pytest.mark.parametrize("size", [7, WINDOW + 7])
@pytest.mark.parametrize("old", [b"", b"old"])
def test_what_is_expected_is_replaced(remote: Place, tmp_path: Path, size: int, old: bytes) -> None:
    if old:
        remote.put("a", old)
    (sent,) = expecting(remote, tmp_path, b"n" * size, version_of(remote, "a"))
    assert remote.read("a") == b"n" * size
    assert sent.size == size


@pytest.mark.parametrize("old", [b"", b"old"])
def test_what_is_not_expected_is_not_replaced(remote: Place, tmp_path: Path, old: bytes) -> None:
    if old:
        remote.put("a", old)
    version = version_of(remote, "a")
    remote.put("a", b"theirs")
    with pytest.raises(_transfer_plan.UnexpectedError) as caught:
        expecting(remote, tmp_path, b"mine", version)
    assert caught.value.path == str(tmp_path / "up")
    assert caught.value.errno == errno.EEXIST
    assert remote.read("a") == b"theirs"


@pytest.mark.parametrize(("size", "operation"), [(7, "PutObject"), (2 * WINDOW, "CompleteMultipartUpload")])
@pytest.mark.parametrize("old", [b"", b"old"])
def test_both_engines_replace_nothing_that_came_in_the_last_moment(
    proxy_place: Place,
    s3_place: Place,
    proxy: Any,
    tmp_path: Path,
    engine: str,
    size: int,
    operation: str,
    old: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(_transfer.ENVIRONMENT, engine)
    if old:
        s3_place.put("a", old)
    version = version_of(s3_place, "a")
    proxy.before(lambda: s3_place.put("a", b"theirs"), operation=operation, times=1)
    with pytest.raises(_transfer_plan.UnexpectedError):
        expecting(proxy_place, tmp_path, os.urandom(size), version)
    assert s3_place.read("a") == b"theirs"
    assert unfinished(s3_place) == []


def test_an_object_that_is_gone_is_not_the_expected_one(s3_place: Place, tmp_path: Path, engine: str) -> None:
    s3_place.put("a", b"old")
    version = version_of(s3_place, "a")
    s3_place.fs().rm_file(s3_place.url("a"))
    with pytest.raises(_transfer_plan.UnexpectedError):
        expecting(s3_place, tmp_path, b"mine", version)


@pytest.mark.parametrize("size", [7, WINDOW + 7])
@pytest.mark.parametrize("old", [b"", b"old"])
def test_a_store_that_refuses_conditions_is_asked_without(
    proxy_place: Place,
    proxy: Any,
    tmp_path: Path,
    engine: str,
    size: int,
    old: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(_transfer.ENVIRONMENT, engine)
    if old:
        proxy_place.put("a", old)
    version = version_of(proxy_place, "a")
    for operation in ("PutObject", "CompleteMultipartUpload"):
        times = 2 if engine == "obstore" and operation == "PutObject" else 1  # the first only says so to obstore
        proxy.answer(501, "NotImplemented", "a header is not implemented", operation=operation, times=times)
    expecting(proxy_place, tmp_path, b"n" * size, version)
    assert proxy_place.read("a") == b"n" * size


def test_one_who_may_write_and_not_read_replaces_what_is_there(
    proxy_place: Place, proxy: Any, tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(_transfer.ENVIRONMENT, engine)
    proxy_place.put("a", b"old")
    version = version_of(proxy_place, "a")
    proxy.deny(operation="PutObject", times=2 if engine == "obstore" else 1)
    expecting(proxy_place, tmp_path, b"new", version)
    assert proxy_place.read("a") == b"new"


# ---- giving up


def test_a_download_ends_soon_after_cancel_is_set(proxy_place: Place, proxy: Any, tmp_path: Path, engine: str) -> None:
    proxy_place.put("a", os.urandom(3 * WINDOW))
    proxy.hang(operation="GetObject", skip=1)
    cancel = threading.Event()
    cancelled_at: list[float] = []

    def give_up(done: int, total: int, url: str) -> None:
        if done and not cancelled_at:
            cancelled_at.append(time.monotonic())
            cancel.set()

    with pytest.raises(OSError) as caught:
        fetch(proxy_place, ["a"], tmp_path, engine=engine, cancel=cancel, progress=give_up)
    assert caught.value.errno == errno.ECANCELED
    assert time.monotonic() - cancelled_at[0] < 8  # it hangs for ever, or ends at once; the machine may be busy
    assert left(tmp_path) == []


def test_an_error_of_the_progress_callable_ends_the_transfer(s3_place: Place, tmp_path: Path, engine: str) -> None:
    s3_place.put("a", os.urandom(2 * WINDOW))

    def broken(done: int, total: int, url: str) -> None:
        if done:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fetch(s3_place, ["a"], tmp_path, engine=engine, progress=broken)
    assert left(tmp_path) == []


TRANSFER = """
import os, sys, threading
from remoteio import _stores, _transfer
def at(url):
    return _stores.resolve(_stores.parse(url))
what, url, path, engine = sys.argv[1:]
try:
    if what == "up":
        print("go", flush=True)
        _transfer.upload([(path, at(url))], engine=engine)
    else:
        location = at(url)
        info = location.store.head(location.key)
        print("go", flush=True)
        _transfer.download([(location, info, path)], engine=engine)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
"""


def start(what: str, url: str, path: Path, engine: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """A transfer in a process of its own, begun."""
    process = subprocess.Popen(
        [sys.executable, "-c", TRANSFER, what, url, str(path), engine],
        env={**os.environ, **environment, "PYTHONPATH": ROOT},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"go\n"
    return process


def wait_for(proxy: Any, operation: str, count: int) -> None:
    """Wait until so many requests of a kind have come."""
    end = time.monotonic() + 20
    while proxy.tally[operation] < count:
        assert time.monotonic() < end, f"no {operation} came"
        time.sleep(0.02)


def test_ctrl_c_in_a_download_returns_within_a_second(
    proxy_place: Place, proxy: Any, tmp_path: Path, engine: str
) -> None:
    url = proxy_place.put("a", os.urandom(4 * WINDOW))
    proxy.hang(operation="GetObject", skip=1)
    process = start("down", url, tmp_path / "x", engine, proxy.environment())
    wait_for(proxy, "GetObject", 2)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert out == b"interrupted\n"
    assert time.monotonic() - began < 8  # with the end of the interpreter, on a busy machine
    assert left(tmp_path) == []


def test_ctrl_c_in_an_upload_leaves_the_store_unchanged(
    proxy_place: Place, proxy: Any, tmp_path: Path, engine: str
) -> None:
    url = proxy_place.put("a", b"old")
    (tmp_path / "x").write_bytes(os.urandom(4 * WINDOW))
    proxy.delay(1.0, operation="UploadPart")
    process = start("up", url, tmp_path / "x", engine, proxy.environment())
    wait_for(proxy, "UploadPart", 1)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert out == b"interrupted\n"
    assert time.monotonic() - began < 8  # it hangs for ever, or ends at once; the machine may be busy
    time.sleep(4)
    assert proxy_place.read("a") == b"old"
    assert unfinished(proxy_place) == []


def test_a_second_ctrl_c_does_not_hang(proxy_place: Place, proxy: Any, tmp_path: Path, engine: str) -> None:
    url = proxy_place.put("a", b"old")
    (tmp_path / "x").write_bytes(os.urandom(4 * WINDOW))
    proxy.hang(operation="UploadPart")
    proxy.hang(operation="AbortMultipartUpload")
    process = start("up", url, tmp_path / "x", engine, proxy.environment())
    wait_for(proxy, "UploadPart", 1)
    process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    process.communicate(timeout=120)
    assert time.monotonic() - began < 8  # it hangs for ever, or ends at once; the machine may be busy
    assert process.returncode != 0


def test_a_process_whose_last_act_is_an_upload_ends_well(s3_place: Place, tmp_path: Path, engine: str) -> None:
    (tmp_path / "x").write_bytes(os.urandom(WINDOW + 7))
    for _ in range(5):
        process = start("up", s3_place.url("a"), tmp_path / "x", engine, {})
        _, words = process.communicate(timeout=120)
        assert (process.returncode, words) == (0, b"")


def test_a_disk_that_fills_up_leaves_nothing(s3_place: Place, tmp_path: Path, engine: str) -> None:
    url = s3_place.put("a", os.urandom(3 * WINDOW))
    # A limit on the size of files fails a write in the middle, as a full disk does.
    limit = f"import resource, signal\nresource.setrlimit(resource.RLIMIT_FSIZE, ({WINDOW}, {WINDOW}))\n"
    limit += "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    ended = subprocess.run(
        [sys.executable, "-c", limit + TRANSFER, "down", url, str(tmp_path / "x"), engine],
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
    )
    assert f"File too large: '{tmp_path}/x'" in ended.stderr
    assert left(tmp_path) == []


# ---- forks


def test_a_forked_child_transfers_after_its_parent_did(s3_place: Place, tmp_path: Path, engine: str) -> None:
    program = TRANSFER + textwrap.dedent(
        """
        child = os.fork()
        if child == 0:
            try:
                signal_alarm = __import__("signal").alarm(20)
                _transfer.upload([(path, at(url))], engine=engine)
                info = at(url).store.head(at(url).key)
                _transfer.download([(at(url), info, path + ".back")], engine=engine)
                os._exit(0 if open(path + ".back", "rb").read() == open(path, "rb").read() else 2)
            except BaseException:
                import traceback
                traceback.print_exc()
                os._exit(1)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    (tmp_path / "x").write_bytes(os.urandom(2 * WINDOW + 7))
    ended = subprocess.run(
        # Python 3.12 warns of every fork of a process with threads.
        [
            sys.executable,
            "-W",
            "ignore::DeprecationWarning",
            "-c",
            program,
            "up",
            s3_place.url("a"),
            str(tmp_path / "x"),
            engine,
        ],
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


# ---- telling


def test_progress_is_told_on_the_way_down(s3_place: Place, tmp_path: Path, engine: str) -> None:
    s3_place.put("a", os.urandom(WINDOW + 7))
    calls: list[tuple[int, int, str]] = []
    fetch(s3_place, ["a"], tmp_path, engine=engine, progress=lambda *call: calls.append(call))
    assert calls[0] == (0, WINDOW + 7, s3_place.url("a"))
    assert calls[-1] == (WINDOW + 7, WINDOW + 7, s3_place.url("a"))


def test_progress_is_told_on_the_way_up(s3_place: Place, tmp_path: Path, engine: str) -> None:
    calls: list[tuple[int, int, str]] = []
    files = {"a": os.urandom(WINDOW + 7), "b": b"123"}
    send(s3_place, files, tmp_path, engine=engine, progress=lambda *call: calls.append(call))
    assert calls[-1] == (WINDOW + 10, WINDOW + 10, f"{s3_place.base}/")


def test_every_complete_file_is_told(s3_place: Place, tmp_path: Path, engine: str) -> None:
    for name in ("a", "b"):
        s3_place.put(name, name)
    s3_place.put("empty", b"")
    there: list[str] = []
    fetch(s3_place, ["a", "b", "empty"], tmp_path, engine=engine, done=there.append)
    assert sorted(there) == [str(tmp_path / name) for name in "012"]


# ---- which engine


@pytest.fixture
def switched(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.delenv(_transfer.ENVIRONMENT, raising=False)
    yield monkeypatch


def test_the_environment_forces_an_engine(s3_place: Place, engine: str, switched: pytest.MonkeyPatch) -> None:
    switched.setenv(_transfer.ENVIRONMENT, engine)
    chosen = _transfer.engine_for(at(s3_place, "a").store)
    assert chosen is not None
    assert chosen.name == engine


def test_obstore_is_used_where_it_is_installed(s3_place: Place, switched: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    chosen = _transfer.engine_for(at(s3_place, "a").store)
    assert chosen is not None
    assert chosen.name == "obstore"


def test_an_unknown_engine_is_refused_by_name(s3_place: Place, switched: pytest.MonkeyPatch) -> None:
    switched.setenv(_transfer.ENVIRONMENT, "rocket")
    with pytest.raises(ValueError, match="rocket"):
        _transfer.engine_for(at(s3_place, "a").store)


def test_status_tells_of_both_engines(switched: pytest.MonkeyPatch) -> None:
    assert set(_transfer.engines()) == {"fsspec", "obstore"}


@pytest.mark.parametrize(
    "options",
    [
        {"requester_pays": True},
        {"s3_additional_kwargs": {"ServerSideEncryption": "AES256"}},
        {"config_kwargs": {"signature_version": "s3"}},
        {"config_kwargs": {"proxies": {"http": "http://127.0.0.1:9"}}},
        {"config_kwargs": {"client_cert": "/nowhere.pem"}},
        {"config_kwargs": {"connect_timeout": (1, 2)}},
        {"endpoint_url": "https://127.0.0.1:9", "client_kwargs": {"verify": "/tmp"}},
    ],
    ids=lambda options: str(next(iter(options.items()))),
)
def test_what_obstore_cannot_be_told_keeps_the_store_with_its_client(
    s3_place: Place, s3_server: servers.Server, options: dict[str, Any]
) -> None:
    pytest.importorskip("obstore")
    from remoteio import _obstore_s3

    place = Place(s3_place.base, "s3", {"s3": {**s3_server.storage_options()["s3"], **options}})
    store: Any = at(place, "a").store
    with pytest.raises(_obstore_s3.Unmapped):
        import asyncio

        asyncio.run_coroutine_threadsafe(_obstore_s3.describe(store.fs, "test-bucket"), store.fs.loop).result(120)


def described(store: Any, bucket: str = "test-bucket") -> Any:
    """How obstore is told of a bucket."""
    import asyncio

    from remoteio import _obstore_s3

    return asyncio.run_coroutine_threadsafe(_obstore_s3.describe(store.fs, bucket), store.fs.loop).result(120)


def test_an_anonymous_client_and_its_trust_are_described(s3_server: servers.Server, tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(b"certificates")
    options = {"anon": True, "endpoint_url": "https://127.0.0.1:9", "client_kwargs": {"region_name": "eu-west-3"}}
    trusts: dict[Any, dict[str, Any]] = {
        False: {"allow_invalid_certificates": True},
        str(bundle): {"root_certificate": b"certificates"},
        True: {},
    }
    for verify, told in trusts.items():
        options["client_kwargs"] = {"region_name": "eu-west-3", "verify": verify}
        found = described(at(Place("s3://test-bucket/x", "s3", {"s3": options}), "a").store)
        assert found.anonymous
        assert found.config["region"] == "eu-west-3"
        assert {name: found.down[name] for name in told} == told
        assert not found.down["allow_http"]


@pytest.mark.parametrize("bucket", ["arn:aws:s3:eu-west-1:123:accesspoint/a", "zone--x-s3"])
def test_access_points_stay_with_the_live_client(s3_place: Place, bucket: str) -> None:
    pytest.importorskip("obstore")
    from remoteio import _obstore_s3

    with pytest.raises(_obstore_s3.Unmapped):
        described(at(s3_place, "a").store, bucket)


@pytest.mark.parametrize(
    "signed",
    ["http://h/b/key/more?x", "http://h/other/key", "http://b.h/more/key"],
)
def test_an_address_of_another_form_stays_with_the_live_client(signed: str) -> None:
    pytest.importorskip("obstore")
    from remoteio import _obstore_s3

    with pytest.raises(_obstore_s3.Unmapped):
        _obstore_s3._addressing(signed, "b")


def test_credentials_are_asked_of_the_live_client(s3_place: Place, tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    s3_place.put("a", b"x")
    location = at(Place(s3_place.base, "s3", {"s3": {"use_ssl": False, "key": "test", "secret": "testsecret"}}), "a")
    store: Any = location.store
    info = store.head(location.key)
    signer = store.run("a", lambda: store.fs.get_s3("test-bucket"))._request_signer
    asked = []

    class Renewed:
        async def get_frozen_credentials(self) -> Any:
            asked.append(1)
            return await old.get_frozen_credentials()

    old, signer._credentials = signer._credentials, Renewed()
    try:
        _transfer.download([(location, info, str(tmp_path / "x"))], engine="obstore")
    finally:
        signer._credentials = old
    assert asked


def test_max_concurrency_bounds_the_requests_in_flight(
    proxy_place: Place, proxy: Any, tmp_path: Path, engine: str
) -> None:
    for number in range(6):
        proxy_place.put(f"{number}", b"x")
    proxy.delay(0.2, operation="GetObject")
    proxy.reset()
    fetch(proxy_place, [f"{number}" for number in range(6)], tmp_path, engine=engine, max_concurrency=2)
    times = sorted(request.at for request in proxy.requests if request.operation == "GetObject")
    assert times[2] - times[0] > 0.15
    assert times[-1] - times[0] > 0.35


def test_a_concurrency_of_zero_is_refused(s3_place: Place, tmp_path: Path) -> None:
    s3_place.put("a", b"x")
    with pytest.raises(ValueError, match="max_concurrency"):
        fetch(s3_place, ["a"], tmp_path, max_concurrency=0)


# ---- memory

# Not ru_maxrss: it counts what the parent held when this process was made of it.
PEAK = """
status = open("/proc/self/status").read()
print(int(status.partition("VmHWM:")[2].split()[0]) // 1024, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["up", "down"])
def test_memory_stays_bounded_whatever_the_size(s3_place: Place, tmp_path: Path, engine: str, what: str) -> None:
    source = tmp_path / "source"
    with source.open("wb") as file:
        for _ in range(48):
            file.write(os.urandom(WINDOW))
    if what == "down":
        _transfer.upload([(str(source), at(s3_place, "a"))])
    path = source if what == "up" else tmp_path / "x"
    ended = subprocess.run(
        [sys.executable, "-c", TRANSFER + PEAK, what, s3_place.url("a"), str(path), engine],
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(ended.stdout.splitlines()[-1]) < 256


# ---- one object


@pytest.mark.parametrize("size", [0, 5, 2 * WINDOW + 7])
def test_a_whole_object_is_fetched_into_an_open_file(remote: Place, tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    remote.put("a", data)
    location = at(remote, "a")
    info = location.store.head(location.key)
    assert info is not None
    with (tmp_path / "x").open("w+b") as target:
        _transfer.fetch_into(location, info, target)
        assert target.tell() == size
    assert (tmp_path / "x").read_bytes() == data


# ---- stores that are reached by blocking calls


def without_ranges(place: Place, name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The location of a name, whose store is said to have no ranges."""
    location = at(place, name)
    monkeypatch.setattr(location.store, "can_range", False)
    return location


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("size", [0, 3, 2 * MIB + 1])
def test_what_has_no_ranges_is_streamed(
    disk_place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, known: bool
) -> None:
    data = os.urandom(size)
    disk_place.put("a", data)
    location = without_ranges(disk_place, "a", monkeypatch)
    info = location.store.head(location.key)
    assert info is not None
    told: list[str] = []
    described = info if known else dataclasses.replace(info, size=None)
    _transfer.download([(location, described, str(tmp_path / "0"))], progress=False, done=told.append)
    assert (tmp_path / "0").read_bytes() == data
    assert told == [str(tmp_path / "0")]


def test_a_stream_that_ends_early_leaves_nothing(
    disk_place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk_place.put("a", b"abc")
    location = without_ranges(disk_place, "a", monkeypatch)
    info = location.store.head(location.key)
    assert info is not None
    with pytest.raises(OSError, match="3 of 7 bytes"):
        longer = dataclasses.replace(info, size=7, version=None)
        _transfer.download([(location, longer, str(tmp_path / "0"))], progress=False)
    assert left(tmp_path) == []


def test_a_file_that_is_gone_takes_the_others_along(disk_place: Place, tmp_path: Path) -> None:
    items = []
    for name in ("a", "b", "c"):
        disk_place.put(name, os.urandom(MIB))
        location = at(disk_place, name)
        items.append((location, location.store.head(location.key), str(tmp_path / name)))
    items[1][0].store.delete(items[1][0].key)
    with pytest.raises(FileNotFoundError) as caught:
        _transfer.download(items, progress=False)  # type: ignore[arg-type]
    assert caught.value.filename == disk_place.url("b")
    assert left(tmp_path) == []


def test_a_cancelled_transfer_of_blocking_calls_leaves_nothing(disk_place: Place, tmp_path: Path) -> None:
    disk_place.put("a", os.urandom(4 * WINDOW))
    location = at(disk_place, "a")
    info = location.store.head(location.key)
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(OSError) as caught:
        _transfer.download([(location, info, str(tmp_path / "a"))], progress=False, cancel=cancel)  # type: ignore[list-item]
    assert caught.value.errno == errno.ECANCELED
    assert left(tmp_path) == []


def test_a_store_that_writes_in_place_gets_a_temporary_name_first(tmp_path: Path) -> None:
    import io

    from fsspec.implementations.local import LocalFileSystem

    from remoteio._store_generic import GenericStore

    store = GenericStore("sftp", LocalFileSystem)
    key = str(tmp_path / "d" / "a")
    for data in (b"new", os.urandom(9 * MIB)):
        store.write(key, io.BytesIO(data), len(data))
        assert left(tmp_path / "d") == ["a"]
        assert (tmp_path / "d" / "a").read_bytes() == data
    for size in (9 * MIB + 1, 10):
        with pytest.raises(OSError, match="bytes"):
            store.write(key, io.BytesIO(b"short"), size)
    assert left(tmp_path / "d") == ["a"]
    with pytest.raises(FileExistsError):
        store.write(key, io.BytesIO(b"x"), 1, exclusive=True)
    assert list(store.delete_many([key, f"{key}-nothing", f"{tmp_path}/d/"])) == []
    ((failed, error),) = store.delete_many([str(tmp_path / "d")])
    assert failed == str(tmp_path / "d")
    assert isinstance(error, OSError)

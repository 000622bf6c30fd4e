"""What bad input and bad luck get: a clear built-in exception, in bounded time, and nothing lost.

On a real S3 server, through a proxy that misbehaves.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import remoteio
from tests import servers
from tests.conftest import Place
from tests.proxy import Proxy
from tests.reach import s3_options

REPOSITORY = Path(__file__).parent.parent
MIB = 2**20


def read(url: str) -> bytes:
    with open(url, "rb") as file:
        return file.read()


def write(url: str, data: bytes = b"new") -> None:
    with open(url, "wb") as file:
        file.write(data)


# Each looks its function up when it is called: what was put into a dictionary is not covered.
ASKING: dict[str, Callable[[str], object]] = {
    "read": read,
    "exists": lambda url: os.path.exists(url),
    "isdir": lambda url: os.path.isdir(url),
    "getsize": lambda url: os.path.getsize(url),
    "listdir": lambda url: os.listdir(url),
    "glob": lambda url: glob.glob(url + "/*"),
}
CHANGING: dict[str, Callable[[str], object]] = {
    "write": write,
    "remove": lambda url: os.remove(url),
    "makedirs": lambda url: os.makedirs(url),
    "rmtree": lambda url: shutil.rmtree(url),
    "copy": lambda url: shutil.copy(url, url + "-copy"),
}
EVERY = {**ASKING, **CHANGING}
CALLS = pytest.mark.parametrize("name", list(EVERY))


# --- The bucket


@pytest.mark.parametrize("call", ["read", "write", "getsize", "listdir", "remove", "makedirs", "rmtree", "copy"])
def test_a_missing_bucket_is_file_not_found(call: str, s3_server: servers.Server) -> None:
    with remoteio.remote_io(), pytest.raises(FileNotFoundError) as caught:
        EVERY[call]("s3://no-such-bucket/a")
    assert "no-such-bucket" in str(caught.value)


def test_in_a_missing_bucket_nothing_exists(s3_server: servers.Server) -> None:
    with remoteio.remote_io():
        assert os.path.exists("s3://no-such-bucket/a") is False
        assert os.path.isdir("s3://no-such-bucket") is False
        assert glob.glob("s3://no-such-bucket/*") == []


def test_no_bucket_is_ever_made(s3_server: servers.Server) -> None:
    with remoteio.remote_io():
        for name in ("write", "makedirs", "copy"):
            with pytest.raises(OSError):
                EVERY[name]("s3://no-such-bucket/a")
        assert not os.path.exists("s3://no-such-bucket")


# --- Credentials


@CALLS
def test_wrong_credentials_are_a_permission_error(name: str, s3_place: Place) -> None:
    url = s3_place.put("a", b"old")
    options = {**next(iter(s3_place_options(s3_place).values())), "secret": "wrong"}
    with remoteio.remote_io(storage_options={"s3": options}), pytest.raises(PermissionError) as caught:
        EVERY[name](url)
    assert caught.value.errno in (1, 13)
    assert s3_place.files() == {"a": b"old"}


def s3_place_options(place: Place) -> dict[str, dict[str, Any]]:
    return {"s3": s3_options(os.environ["AWS_ENDPOINT_URL"])}


@CALLS
def test_expired_credentials_are_a_permission_error(name: str, proxy: Proxy, proxy_place: Place) -> None:
    url = proxy_place.put("a", b"old")
    proxy.answer(400, "ExpiredToken", "The provided token has expired.")
    with proxy_place.scope(), pytest.raises(PermissionError):
        EVERY[name](url)
    proxy.clear()
    assert proxy_place.files() == {"a": b"old"}


def test_no_credentials_are_an_oserror(s3_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    url = s3_place.put("a", b"old")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with remoteio.remote_io(storage_options={"s3": {"use_ssl": False}}), pytest.raises(PermissionError):
        os.path.exists(url)


@pytest.mark.parametrize("call", ["read", "exists", "isdir", "getsize", "listdir"])
def test_denied_and_missing_are_not_confused(call: str, proxy: Proxy, proxy_place: Place) -> None:
    proxy.deny()
    with proxy_place.scope(), pytest.raises(PermissionError):
        ASKING[call](proxy_place.url("nothing"))


def test_a_denied_listing_does_not_hinder_a_write(proxy: Proxy, proxy_place: Place) -> None:
    proxy.deny(operation="ListObjectsV2")
    with proxy_place.scope():
        write(proxy_place.url("a"))
    proxy.clear()
    assert proxy_place.files() == {"a": b"new"}


def test_a_denied_write_keeps_the_old_object(proxy: Proxy, proxy_place: Place) -> None:
    url = proxy_place.put("a", b"old")
    proxy.deny(method="PUT")
    with proxy_place.scope(), pytest.raises(PermissionError) as caught:
        write(url)
    assert caught.value.filename == url
    assert proxy_place.read("a") == b"old"


SECRET = "Geh3im-Kennwort"


def said(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error) + str(error) + str(getattr(error, "filename", ""))


@CALLS
def test_secrets_in_options_are_never_shown(name: str, s3_place: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    options = {
        "s3": {"key": f"key-{SECRET}", "secret": f"secret-{SECRET}", "endpoint_url": os.environ["AWS_ENDPOINT_URL"]}
    }
    with remoteio.remote_io(storage_options=options) as scope:
        with pytest.raises(OSError) as caught:
            EVERY[name](s3_place.url("a"))
        assert SECRET not in said(caught.value)
        assert SECRET not in repr(scope) + str(scope)
        assert SECRET not in repr(remoteio.status()) + str(remoteio.status())
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    "form",
    [
        "ftp://user:{secret}@127.0.0.1:{port}/a",
        "http://user:{secret}@127.0.0.1:{port}/a",
        "http://127.0.0.1:{port}/a?token={secret}",
        "http://127.0.0.1:{port}/a?X-Amz-Signature={secret}&x=1",
    ],
)
def test_secrets_in_a_url_are_never_shown(form: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    url = form.format(secret=SECRET, port=servers.free_port())
    with remoteio.remote_io():
        with pytest.raises(OSError) as caught:
            read(url)
        assert SECRET not in said(caught.value)
        assert SECRET not in str(remoteio.status())
    assert SECRET not in caplog.text


# --- The network


@CALLS
def test_a_dead_endpoint_is_an_oserror_soon(name: str) -> None:
    options = {"s3": s3_options(f"http://127.0.0.1:{servers.free_port()}")}
    start = time.monotonic()
    with remoteio.remote_io(storage_options=options), pytest.raises(OSError) as caught:
        EVERY[name]("s3://bucket/a")
    assert not isinstance(caught.value, (FileNotFoundError, PermissionError))
    assert time.monotonic() - start < 60


@CALLS
def test_a_store_that_is_overloaded_for_a_moment_is_asked_again(name: str, proxy: Proxy, proxy_place: Place) -> None:
    proxy_place.put("d/f", b"old")
    url = proxy_place.url({"listdir": "d", "rmtree": "d", "makedirs": "new"}.get(name, "d/f"))
    proxy.unavailable(times=1)
    with proxy_place.scope():
        EVERY[name](url)


@pytest.mark.parametrize("name", ["read", "write", "exists"])  # each takes as long as it is asked again
def test_a_store_that_stays_overloaded_is_an_oserror_with_a_bound(name: str, proxy: Proxy, proxy_place: Place) -> None:
    url = proxy_place.put("a", b"old")
    proxy.unavailable()
    start = time.monotonic()
    with proxy_place.scope(), proxy.counting() as requests, pytest.raises(OSError):
        EVERY[name](url)
    assert len(requests) <= 15
    assert time.monotonic() - start < 60
    proxy.clear()
    assert proxy_place.files() == {"a": b"old"}


def content(size: int, seed: int = 0) -> bytes:
    return b"".join(b"%016x" % (i + seed * 10**9) for i in range(size // 16))


def test_a_reset_in_the_middle_of_a_read_never_gives_a_part(proxy: Proxy, proxy_place: Place) -> None:
    data = content(6 * MIB)
    url = proxy_place.put("a", data)
    proxy.cut_response(100_000, operation="GetObject", times=1)
    got = data
    with proxy_place.scope(), contextlib.suppress(OSError):
        got = read(url)
    assert got == data


def test_a_read_that_is_always_reset_is_an_oserror(proxy: Proxy, proxy_place: Place) -> None:
    url = proxy_place.put("a", content(6 * MIB))
    proxy.cut_response(100_000, operation="GetObject")
    with proxy_place.scope(), pytest.raises(OSError):
        read(url)


@pytest.mark.parametrize("size", [2 * MIB, 24 * MIB])
@pytest.mark.parametrize("times", [1, None])
def test_a_reset_in_the_middle_of_a_write_publishes_all_or_nothing(
    size: int, times: int | None, proxy: Proxy, proxy_place: Place
) -> None:
    url = proxy_place.put("a", b"old")
    data = content(size)
    proxy.cut_request(500_000, method="PUT", times=times)
    failed = False
    with proxy_place.scope():
        try:
            write(url, data)
        except OSError:
            failed = True
    proxy.clear()
    assert failed or times == 1
    assert proxy_place.read("a") == (b"old" if failed else data)


def test_a_failed_upload_leaves_no_parts(proxy: Proxy, proxy_place: Place, s3_server: servers.SeaweedFS) -> None:
    proxy.cut_request(500_000, operation="UploadPart", skip=1)
    with proxy_place.scope(), pytest.raises(OSError):
        write(proxy_place.url("a"), bytes(40 * MIB))
    proxy.clear()
    left = s3_server.client().list_multipart_uploads(Bucket=s3_server.bucket).get("Uploads", [])
    assert [upload["Key"] for upload in left if upload["Key"] in proxy_place.url("a")] == []


# --- Others on the same object


def test_an_object_that_is_replaced_while_it_is_read_is_never_mixed(proxy: Proxy, proxy_place: Place) -> None:
    old, new = content(20 * MIB, 1), content(20 * MIB, 2)
    url = proxy_place.put("a", old)
    got = b""
    with proxy_place.scope(), open(url, "rb") as file:
        got += file.read(1000)
        proxy_place.put("a", new)
        try:
            got += file.read()
        except OSError:
            return
    assert got == old


def test_an_object_that_is_replaced_between_two_requests_is_never_mixed(proxy: Proxy, proxy_place: Place) -> None:
    old, new = content(20 * MIB, 1), content(20 * MIB, 2)
    url = proxy_place.put("a", old)
    behind = Place(proxy_place.base, "s3")
    proxy.before(lambda: behind.put("a", new), operation="GetObject", times=1)
    got = old
    with proxy_place.scope(), contextlib.suppress(OSError):
        got = read(url)
    assert got in (old, new)


def test_an_object_that_is_removed_while_it_is_read_is_an_oserror_or_whole(proxy_place: Place) -> None:
    data = content(20 * MIB)
    url = proxy_place.put("a", data)
    got = b""
    with proxy_place.scope(), open(url, "rb") as file:
        got += file.read(1000)
        proxy_place.fs().rm_file(url)
        try:
            got += file.read()
        except OSError:
            return
    assert got == data


def test_of_two_writers_one_wins_whole(remote: Place) -> None:
    url = remote.url("a")
    contents = [content(3 * MIB, seed) for seed in range(2)]
    with remote.scope():
        handles = [open(url, "wb") for _ in contents]  # noqa: SIM115 - both are open at once
        for part in range(3):
            for handle, data in zip(handles, contents, strict=True):
                handle.write(data[part * MIB : (part + 1) * MIB])
        for handle in handles:
            handle.close()
    assert remote.files() == {"a": contents[1]}


def test_of_two_exclusive_writers_one_is_told(remote: Place) -> None:
    url, told, meet = remote.url("a"), [], threading.Barrier(2)

    def attempt(seed: int) -> None:
        try:
            with open(url, "xb") as file:
                meet.wait(120)
                file.write(content(1 * MIB, seed))
        except FileExistsError:
            told.append(seed)

    with remote.scope():
        threads = [threading.Thread(target=attempt, args=(seed,)) for seed in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(told) == 1
    assert remote.files() == {"a": content(1 * MIB, 1 - told[0])}


# --- This machine


def program(text: str, environment: dict[str, str] | None = None, *before: str) -> subprocess.Popen[str]:
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]))
    return subprocess.Popen(
        [*before, sys.executable, "-c", textwrap.dedent(text)],
        env={**os.environ, **(environment or {}), "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


FILL = """
    import os, resource, signal
    from remoteio import remote_io
    {limit}
    with remote_io():
        try:
            with open({url!r}, "wb") as file:
                for _ in range(64):
                    file.write(bytes(2**20))
        except OSError as error:
            print("told", error.errno)
    print(os.listdir({folder!r}))
"""


def test_a_file_that_grows_too_large_for_the_spool_publishes_nothing(s3_place: Place, tmp_path: Path) -> None:
    url = s3_place.put("a", b"old")
    limit = "resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20)); signal.signal(signal.SIGXFSZ, signal.SIG_IGN)"
    text = FILL.format(limit=limit, url=url, folder=str(tmp_path))
    out, err = program(text, {"TMPDIR": str(tmp_path), "COVERAGE_PROCESS_START": ""}).communicate(timeout=120)
    assert out == "told 27\n[]\n", err
    assert s3_place.read("a") == b"old"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_a_full_disk_under_the_spool_publishes_nothing(s3_place: Place, tmp_path: Path) -> None:
    url = s3_place.put("a", b"old")
    mount = f'mount -t tmpfs -o size=1m none {tmp_path} && exec "$@"'
    if subprocess.run(
        ["unshare", "-m", "sh", "-c", f"mount -t tmpfs -o size=1m none {tmp_path}"], check=False
    ).returncode:
        pytest.skip("cannot mount here")
    text = FILL.format(limit="", url=url, folder=str(tmp_path))
    out, err = program(text, {"TMPDIR": str(tmp_path)}, "unshare", "-m", "sh", "-c", mount, "sh").communicate(
        timeout=120
    )
    assert out == "told 28\n[]\n", err
    assert s3_place.read("a") == b"old"


INTERRUPTED = """
    import sys, time
    from remoteio import remote_io
    with remote_io():
        with open({url!r}, "wb") as file:
            file.write(bytes({size}))
            print("written", flush=True)
            time.sleep({sleep})
"""


def interrupt_when(process: subprocess.Popen[str], condition: Callable[[], bool]) -> tuple[str, float]:
    """Send a real Ctrl-C once the condition holds; return what was said, and the seconds that the end took."""
    end = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    return err, time.monotonic() - start


@pytest.mark.parametrize("size", [1 * MIB, 40 * MIB])
def test_ctrl_c_in_the_block_publishes_nothing(size: int, s3_place: Place) -> None:
    url = s3_place.put("a", b"old")
    process = program(INTERRUPTED.format(url=url, size=size, sleep=30))
    assert process.stdout is not None
    process.stdout.readline()
    err, _ = interrupt_when(process, lambda: True)
    assert "KeyboardInterrupt" in err
    assert s3_place.read("a") == b"old"


# In one request and in several; far more than the buffers of the connection hold, which arrive whatever happens.
@pytest.mark.parametrize("size", [16 * MIB, 40 * MIB])
def test_ctrl_c_in_an_upload_stops_it(size: int, proxy: Proxy, proxy_place: Place) -> None:
    url = proxy_place.put("a", b"old")
    proxy.reset()
    proxy.cap(2 * MIB)  # the upload takes seconds
    process = program(INTERRUPTED.format(url=url, size=size, sleep=0), proxy.environment())
    err, seconds = interrupt_when(process, lambda: any(request.method == "PUT" for request in proxy.requests))
    assert "KeyboardInterrupt" in err
    assert seconds < 5
    proxy.cap(None)
    time.sleep(3)  # what had gone on in the background would be there by now
    assert Place(proxy_place.base, "s3").files() == {"a": b"old"}

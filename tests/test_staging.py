from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import fcntl
import logging
import os
import pty
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import remoteio
from remoteio import StagingError, remote_io, resume_upload, staged_local
from tests import servers
from tests.conftest import Place
from tests.staging_help import ended, left_in, options, run, start, tree, write

MIB = 2**20
ODD = ["a?b", "a*b", "a[b]", "a#b", "a%20b", "a+b", "{x}", "a b", "ü", "日本", ".hidden", "run::1", "empty"]


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for all that staging writes, without a cache."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    for name in ("LOCAL_CACHE_DIR", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture(params=["memory", "s3", "gcs"])
def remote(request: pytest.FixtureRequest) -> Place:
    """An empty directory, on each kind of object store in turn."""
    found: Place = request.getfixturevalue(f"{request.param}_place")
    return found


# ---- shape


@pytest.mark.parametrize("mode", ["r", "r+", "w"])
def test_a_local_path_is_yielded_as_it_is(tmp_path: Path, mode: Any) -> None:
    with staged_local(tmp_path / "nothing", mode) as path:
        assert path == str(tmp_path / "nothing")
    assert not os.path.exists(path)


def test_a_file_url_is_its_own_local_path(tmp_path: Path) -> None:
    with staged_local((tmp_path / "model.pt").as_uri(), "w") as path:
        assert path == str(tmp_path / "model.pt")


def test_bytes_give_a_str() -> None:
    with staged_local(b"/some/where") as path:
        assert path == "/some/where"


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_file_comes_with_its_name(remote: Place, mode: Any) -> None:
    url = remote.put("run/model.tar.gz", b"bytes")
    with staged_local(url, mode) as path:
        assert type(path) is str
        assert os.path.basename(path) == "model.tar.gz"
        assert Path(path).read_bytes() == b"bytes"


def test_a_directory_comes_with_its_name(remote: Place) -> None:
    remote.put("run/a/b", b"1")
    remote.put("run/c", b"2")
    with staged_local(remote.url("run")) as path:
        assert os.path.basename(path) == "run"
        assert tree(path) == {"a/b": b"1", "c": b"2"}


def test_what_is_written_without_a_slash_is_a_file_or_a_directory_as_the_block_made_it(remote: Place) -> None:
    with staged_local(remote.url("one"), "w") as path:
        assert not os.path.exists(path)
        assert os.path.isdir(os.path.dirname(path))
        write(path, b"file")
    with staged_local(remote.url("two"), "w") as path:
        write(f"{path}/inner", b"tree")
    assert remote.files() == {"one": b"file", "two/inner": b"tree"}


def test_a_trailing_slash_is_a_directory_on_entry(remote: Place) -> None:
    with staged_local(remote.url("new/"), "w") as path:
        assert os.listdir(path) == []
        assert os.path.basename(path) == "new"


def test_an_existing_prefix_is_an_empty_directory_on_entry_for_writing(remote: Place) -> None:
    remote.put("run/old", b"1")
    with staged_local(remote.url("run"), "w") as path:
        assert os.listdir(path) == []
        write(f"{path}/new", b"2")
    assert remote.files() == {"run/old": b"1", "run/new": b"2"}


@pytest.mark.parametrize("name", ["gone", "gone/"])
def test_reading_what_is_not_there_is_an_error(remote: Place, name: str) -> None:
    with pytest.raises(FileNotFoundError) as caught, staged_local(remote.url(name), "r"):
        pass
    assert caught.value.filename == remote.url(name)


def test_a_block_that_makes_nothing_sends_nothing(remote: Place) -> None:
    with staged_local(remote.url("nothing")) as path:
        assert not os.path.exists(path)
    assert remote.files() == {}


@pytest.mark.parametrize("kind", ["s3", "gcs"])
def test_odd_keys_come_and_go_unchanged(request: pytest.FixtureRequest, kind: str) -> None:
    remote: Place = request.getfixturevalue(f"{kind}_place")
    files = {f"in/{name}": b"" if name == "empty" else name.encode() for name in ODD}
    fs = remote.fs()
    for name, data in files.items():
        fs.pipe_file(remote.url(f"run/{name}"), data)
    with staged_local(remote.url("run")) as path:
        assert tree(path) == files
        taken = tree(path)
    with staged_local(remote.url("again/"), "w") as path:
        for name, data in taken.items():
            write(f"{path}/{name}", data)
    found = remote.files()
    assert {name[6:]: data for name, data in found.items() if name.startswith("again/")} == files


@pytest.mark.parametrize("name", ODD)
def test_an_odd_key_alone_comes_and_goes_unchanged(s3_place: Place, name: str) -> None:
    with staged_local(s3_place.url(name), "w") as path:
        write(path, name)
    with staged_local(s3_place.url(name), "r") as path:
        assert (os.path.basename(path), Path(path).read_text()) == (name, name)


def test_a_name_longer_than_the_file_system_takes_is_shortened_in_its_middle(moto_place: Place) -> None:
    name = "a" * 300 + ".safetensors"
    moto_place.put(f"run/{name}", b"1")
    with staged_local(moto_place.url("run"), **options(moto_place)) as path:
        (short,) = os.listdir(path)
        assert len(short) <= 255
        assert short.startswith("aaa")
        assert short.endswith(".safetensors")
        write(f"{path}/{short}", b"22")
    assert moto_place.files() == {f"run/{name}": b"22"}


def test_markers_are_directories_and_empty_ones_come_back(s3_server: servers.Server, s3_place: Place) -> None:
    key = s3_place.base.partition("test-bucket/")[2]
    s3_server.put(f"{key}/run/empty/", b"")
    s3_place.put("run/full/x", b"1")
    with staged_local(s3_place.url("run"), "r") as path:
        assert left_in(path) == ["empty", "full", "full/x"]


def test_empty_directories_are_written_where_the_scope_writes_markers(s3_place: Place) -> None:
    with remote_io(directory_markers=True), staged_local(s3_place.url("run/"), "w") as path:
        os.makedirs(f"{path}/empty")
    with staged_local(s3_place.url("run"), "r") as path:
        assert left_in(path) == ["empty"]


def test_uploading_twice_does_not_nest(remote: Place) -> None:
    for _ in range(2):
        with staged_local(remote.url("run/"), "w") as path:
            write(f"{path}/sub/x", b"1")
    assert remote.files() == {"run/sub/x": b"1"}


def test_a_file_where_the_url_is_a_directory_is_refused_and_kept(s3_place: Place) -> None:
    s3_place.put("run/x", b"1")
    with pytest.raises(StagingError) as caught, staged_local(s3_place.url("run")) as path:
        os.unlink(f"{path}/x")
        os.rmdir(path)
        write(path, b"file")
    assert caught.value.errno == errno.EISDIR
    with pytest.raises(StagingError):
        resume_upload(str(caught.value.kept_path))
    assert s3_place.files() == {"run/x": b"1"}


@pytest.mark.parametrize("old", ["f", "f/x"])
def test_a_name_that_would_be_file_and_directory_is_refused_unless_mirrored(store: Place, old: str) -> None:
    store.put(f"run/{old}", b"1")
    new = "f/z" if old == "f" else "f"

    def turn(path: str) -> None:
        os.unlink(f"{path}/{old}")
        if old == "f/x":
            os.rmdir(f"{path}/f")
        os.makedirs(os.path.dirname(f"{path}/{new}"), exist_ok=True)
        write(f"{path}/{new}", b"new")

    with (
        pytest.raises(StagingError, match="file and a directory at once"),
        staged_local(store.url("run")) as path,
    ):
        turn(path)
    assert store.files() == {f"run/{old}": b"1"}
    with staged_local(store.url("run"), mirror=True) as path:
        turn(path)
    assert store.files() == {f"run/{new}": b"new"}


def test_a_file_in_the_way_of_a_directory_url_is_refused(s3_place: Place) -> None:
    s3_place.put("file", b"1")
    with pytest.raises(NotADirectoryError), staged_local(s3_place.url("file/"), "w"):
        pass


def test_the_object_may_be_entered_again_each_time_anew(s3_place: Place) -> None:
    staged = staged_local(s3_place.url("n"))
    for number in range(3):
        with staged as path:
            assert os.path.exists(path) == (number > 0)
            write(path, str(number))
    assert s3_place.read("n") == b"2"


def test_leaving_twice_is_a_scope_error(s3_place: Place) -> None:
    staged = staged_local(s3_place.url("n"))
    with staged:
        pass
    with pytest.raises(remoteio.ScopeError):
        staged.__exit__(None, None, None)


def test_a_wrong_mode_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="'r', 'r\\+' or 'w'"):
        staged_local("s3://b/k", "a")  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["r", "r+", "w"])
def test_a_bucket_that_does_not_exist_is_told_on_entry(s3_server: servers.Server, mode: Any) -> None:
    with pytest.raises(FileNotFoundError), staged_local("s3://no-such-bucket/run/", mode):
        pass


def test_a_store_is_no_directory_to_stage(s3_server: servers.Server) -> None:
    with pytest.raises(IsADirectoryError), staged_local("s3://", "r"):
        pass


def test_inside_a_scope_the_path_is_local_and_the_scopes_options_apply(proxy_place: Place) -> None:
    proxy_place.put("x", b"1")
    with remote_io(storage_options=proxy_place.options), staged_local(proxy_place.url("x")) as path:
        with open(path, "ab") as file:
            file.write(b"2")
        assert os.path.exists(path)
    assert proxy_place.read("x") == b"12"


def test_options_may_be_given_flat(s3_place: Place, proxy: servers.Proxy) -> None:
    s3_place.put("x", b"1")
    with staged_local(s3_place.url("x"), "r", storage_options=proxy.storage_options["s3"]):
        pass
    assert proxy.tally["GetObject"] == 1


# ---- what goes up


def test_reading_sends_nothing_and_an_edit_reaches_no_other_reader(s3_place: Place, tmp_path: Path) -> None:
    url = s3_place.put("x", b"12345")
    with staged_local(url, "r", cache_dir=tmp_path / "cache") as path:
        os.chmod(path, 0o600)
        Path(path).write_bytes(b"54321")
    assert s3_place.read("x") == b"12345"
    with staged_local(url, "r", cache_dir=tmp_path / "cache") as path:
        assert Path(path).read_bytes() == b"12345"


def test_an_unchanged_file_is_not_sent(s3_place: Place, proxy: servers.Proxy) -> None:
    s3_place.put("run/x", b"1")
    s3_place.put("run/y", b"2")
    with staged_local(s3_place.url("run"), storage_options=proxy.storage_options) as path:
        os.utime(f"{path}/x")
        write(f"{path}/y", b"2")  # written anew, the same
    assert proxy.tally["PutObject"] == 0


def test_in_writing_everything_is_sent_what_is_there_already_too(s3_place: Place, proxy: servers.Proxy) -> None:
    s3_place.put("run/x", b"1")
    with staged_local(s3_place.url("run"), "w", storage_options=proxy.storage_options) as path:
        write(f"{path}/x", b"1")
    assert proxy.tally["PutObject"] == 1


def test_new_and_changed_files_are_sent(s3_place: Place, proxy: servers.Proxy) -> None:
    for name in ("same", "changed"):
        s3_place.put(f"run/{name}", b"1")
    with staged_local(s3_place.url("run"), storage_options=proxy.storage_options) as path:
        write(f"{path}/changed", b"22")
        write(f"{path}/sub/new", b"3")
    assert s3_place.files() == {"run/same": b"1", "run/changed": b"22", "run/sub/new": b"3"}
    assert proxy.tally["PutObject"] == 2


def test_a_change_that_keeps_size_and_mtime_is_sent(remote: Place) -> None:
    url = remote.put("x", b"aaaa")
    with staged_local(url) as path:
        before = os.stat(path)
        Path(path).write_bytes(b"bbbb")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert remote.read("x") == b"bbbb"


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs a tmpfs, where a mapping changes no file's times")
def test_a_change_through_a_mapping_is_sent_where_it_changes_no_times(s3_place: Place) -> None:
    import mmap
    import tempfile

    url = s3_place.put("x", b"aaaa")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as cache, staged_local(url, cache_dir=cache) as path:
        before = os.stat(path)
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            mapped[:] = b"bbbb"
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert s3_place.read("x") == b"bbbb"


def test_a_change_through_a_mapping_is_sent(s3_place: Place) -> None:
    import mmap

    url = s3_place.put("x", b"aaaa")
    with staged_local(url) as path, open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[:] = b"bbbb"
    assert s3_place.read("x") == b"bbbb"


def test_what_is_renamed_or_deleted_stays_on_the_store(remote: Place) -> None:
    for name in ("a", "b", "c"):
        remote.put(f"run/{name}", name.encode())
    with staged_local(remote.url("run")) as path:
        os.unlink(f"{path}/a")
        os.rename(f"{path}/b", f"{path}/d")
    assert remote.files() == {"run/a": b"a", "run/b": b"b", "run/c": b"c", "run/d": b"b"}


def test_mirror_deletes_what_is_gone(remote: Place) -> None:
    for name in ("a", "b", "c"):
        remote.put(f"run/{name}", name.encode())
    remote.put("run2/a", b"not below")
    with staged_local(remote.url("run"), mirror=True) as path:
        os.unlink(f"{path}/a")
        os.rename(f"{path}/b", f"{path}/d")
    assert remote.files() == {"run/c": b"c", "run/d": b"b", "run2/a": b"not below"}


@pytest.mark.parametrize("mirror", [True, False])
@pytest.mark.parametrize("how", ["moved", "removed", "cleared"])
def test_a_directory_that_is_gone_deletes_nothing(remote: Place, tmp_path: Path, how: str, mirror: bool) -> None:
    """Whatever took the copy away, the block is told, and the store keeps what it has."""
    remote.put("run/a", b"1")
    with (
        pytest.raises(StagingError, match="nothing was sent or deleted"),
        staged_local(remote.url("run"), mirror=mirror) as path,
    ):
        write(f"{path}/b", b"2")
        if how == "moved":
            os.rename(path, tmp_path / "elsewhere")
        elif how == "removed":
            shutil.rmtree(path)
        else:  # as a cleaner of temporary files does, which leaves the folders
            for here, _, files in os.walk(os.path.dirname(os.path.dirname(path))):
                for name in files:
                    os.unlink(os.path.join(here, name))
    assert remote.files() == {"run/a": b"1"}


def test_an_engine_that_there_is_not_is_refused_before_the_block(
    memory_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMOTEIO_ENGINE", "warp")
    with pytest.raises(ValueError, match="warp"), staged_local(memory_place.url("x"), "w"):
        raise AssertionError("the block was entered")


def test_a_refusal_that_is_no_conflict_is_told_as_it_is(
    proxy_place: Place, proxy: servers.Proxy, tmp_path: Path
) -> None:
    url = proxy_place.put("x", b"1")
    proxy.answer(404, "NoSuchUpload", "the upload is not there", operation="UploadPart")
    with (
        pytest.raises(StagingError, match="the upload is not there"),
        staged_local(url, **options(proxy_place)) as path,
    ):
        write(path, bytes(9 * 2**20))
    assert proxy_place.read("x") == b"1"


def test_mirror_in_writing_leaves_what_the_block_made(remote: Place) -> None:
    remote.put("run/old/a", b"1")
    with staged_local(remote.url("run/"), "w", mirror=True) as path:
        write(f"{path}/new", b"2")
    assert remote.files() == {"run/new": b"2"}


def test_mirror_deletes_a_file_that_the_block_deleted(remote: Place) -> None:
    url = remote.put("x", b"1")
    with staged_local(url, mirror=True) as path:
        os.unlink(path)
    assert remote.files() == {}


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("mode", ["r+", "w"])
def test_nothing_goes_up_on_an_exception(s3_place: Place, scratch: Path, error: type[BaseException], mode: Any) -> None:
    url = s3_place.put("x", b"old")
    with pytest.raises(error), staged_local(url, mode) as path:
        write(path, b"new")
        raise error
    assert s3_place.read("x") == b"old"
    assert left_in(scratch) == []


def test_big_files_go_first_and_indexes_last(s3_place: Place, proxy: servers.Proxy) -> None:
    names = ["latest", "_SUCCESS", "model.safetensors.index.json", ".metadata", "small", "big", "middle"]
    sizes = {"big": 300, "middle": 200, "small": 100}
    with staged_local(s3_place.url("run/"), "w", storage_options=proxy.storage_options, max_concurrency=1) as path:
        for name in names:
            write(f"{path}/{name}", b"x" * sizes.get(name, 400))
    order = [request.path.rpartition("/")[2] for request in proxy.requests if request.operation == "PutObject"]
    assert order[:3] == ["big", "middle", "small"]
    assert set(order[3:5]) == {"model.safetensors.index.json", ".metadata"}
    assert set(order[5:]) == {"latest", "_SUCCESS"}


def test_the_index_does_not_go_up_where_a_shard_failed(s3_place: Place, proxy: servers.Proxy) -> None:
    proxy.deny(operation="PutObject", target="shard-1")
    with (
        pytest.raises(StagingError),
        staged_local(s3_place.url("run/"), "w", storage_options=proxy.storage_options) as path,
    ):
        for name in ("shard-0", "shard-1", "model.index.json"):
            write(f"{path}/{name}", name)
    assert "run/model.index.json" not in s3_place.files()


def test_bytes_that_were_changed_on_the_way_are_noticed(s3_place: Place, proxy: servers.Proxy) -> None:
    def tamper() -> None:
        s3_place.put("x", b"other")

    proxy.before(tamper, operation="HeadObject", skip=2)
    with (
        pytest.raises(StagingError),
        staged_local(s3_place.url("x"), "w", storage_options=proxy.storage_options) as path,
    ):
        write(path, b"z" * 9 * MIB)
    assert proxy.tally["HeadObject"] >= 3


def test_other_bytes_of_the_same_size_are_noticed_by_the_checksum(s3_place: Place, proxy: servers.Proxy) -> None:
    def change() -> None:
        write(path, b"other")

    proxy.before(change, operation="PutObject", times=1)
    with (
        pytest.raises(StagingError, match="other bytes are there"),
        staged_local(s3_place.url("x"), "w", storage_options=proxy.storage_options) as path,
    ):
        write(path, b"bytes")


# ---- failure keeps the work


@pytest.fixture
def failed(s3_place: Place, proxy: servers.Proxy) -> Iterator[StagingError]:
    """An upload of three files of which one is denied; denied no more afterwards."""
    rule = proxy.deny(operation="PutObject", target="/b$")
    with (
        pytest.raises(StagingError) as caught,
        staged_local(s3_place.url("run/"), "w", storage_options=proxy.storage_options, max_concurrency=1) as path,
    ):
        write(f"{path}/a", b"a" * 30)
        write(f"{path}/b", b"b" * 20)
        write(f"{path}/c", b"c" * 10)
    rule.times = 0
    yield caught.value


def test_a_failed_upload_says_all_and_keeps_the_copy(failed: StagingError, s3_place: Place) -> None:
    assert isinstance(failed, OSError)
    assert failed.errno == errno.EACCES
    assert failed.filename == s3_place.url("run/")
    assert "AccessDenied" in str(failed)
    assert "1 of 3 files went up" in str(failed)
    assert str(failed.kept_path) in str(failed)
    assert sorted(tree(str(failed.kept_path))) == ["a", "b", "c"]


def test_it_is_finished_later_in_another_process(failed: StagingError, s3_place: Place, scratch: Path) -> None:
    run("import sys, remoteio; remoteio.resume_upload(sys.argv[1])", str(failed.kept_path))
    assert s3_place.files() == {"run/a": b"a" * 30, "run/b": b"b" * 20, "run/c": b"c" * 10}
    assert "data" not in "".join(left_in(scratch))


@pytest.mark.usefixtures("uncollected")
def test_an_interrupt_while_it_is_finished_leaves_it_kept(
    failed: StagingError, s3_place: Place, proxy: servers.Proxy
) -> None:
    proxy.before(lambda: os.kill(os.getpid(), signal.SIGINT), operation="PutObject", target="/c$", times=1)
    proxy.delay(2, operation="PutObject", target="/c$", skip=1)
    with pytest.raises(KeyboardInterrupt):
        resume_upload(str(failed.kept_path), storage_options=proxy.storage_options, max_concurrency=1)
    resume_upload(str(failed.kept_path))
    assert sorted(s3_place.files()) == ["run/a", "run/b", "run/c"]


def test_what_went_up_is_not_sent_again(failed: StagingError, proxy: servers.Proxy) -> None:
    proxy.reset()
    resume_upload(str(failed.kept_path), storage_options=proxy.storage_options)
    assert proxy.tally["PutObject"] == 2


def test_it_may_fail_again_and_is_kept_still(failed: StagingError, proxy: servers.Proxy) -> None:
    proxy.deny(operation="PutObject")
    with pytest.raises(StagingError, match="1 of 3 files went up"):
        resume_upload(str(failed.kept_path), storage_options=proxy.storage_options)
    proxy.clear()
    resume_upload(str(failed.kept_path), storage_options=proxy.storage_options)


def test_no_credential_is_kept(failed: StagingError, scratch: Path) -> None:
    assert failed.kept_path
    for data in tree(scratch).values():
        assert b"testsecret" not in data


def test_where_nothing_is_kept_there_is_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        resume_upload(tmp_path / "data" / "x")


def test_a_failed_upload_in_parts_is_aborted(s3_place: Place, proxy: servers.Proxy) -> None:
    proxy.deny(operation="UploadPart", skip=1)
    with (
        pytest.raises(StagingError),
        staged_local(s3_place.url("x"), "w", storage_options=proxy.storage_options) as path,
    ):
        write(path, b"x" * 20 * MIB)
    assert proxy.tally["AbortMultipartUpload"] == 1
    assert s3_place.files() == {}


# ---- interruption

TRANSFER = """
    import sys, time
    from remoteio import staged_local
    url, mode, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
    staged = staged_local(url, mode)
    print("ready", flush=True)
    try:
        with staged as path:
            if mode == "w":
                open(path, "wb").write(b"n" * size)
            print("in", flush=True)
    except KeyboardInterrupt:
        print("interrupted", time.monotonic(), flush=True)
        raise
"""


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("mode", ["r", "w"])
def test_ctrl_c_ends_a_transfer_at_once_and_the_store_is_unchanged(
    s3_place: Place, proxy: servers.Proxy, scratch: Path, mode: str, times: int
) -> None:
    s3_place.put("x", b"o" * 24 * MIB)
    proxy.cap(2 * MIB)
    process = start(TRANSFER, s3_place.url("x"), mode, str(24 * MIB), **proxy.environment(), TMPDIR=str(scratch))
    with ended(process):
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        wanted = {"r": "GetObject", "w": "UploadPart"}[mode]
        while not proxy.tally[wanted]:
            time.sleep(0.02)
        time.sleep(0.5)
        began = time.monotonic()
        for _ in range(times):
            process.send_signal(signal.SIGINT)
            time.sleep(0.05)
        while "interrupted" not in (line := process.stdout.readline()):
            assert line
        assert time.monotonic() - began < 8  # it hangs for ever, or ends at once; the machine may be busy
        process.wait(timeout=120)
        time.sleep(max(0.0, 4 - (time.monotonic() - began)))
    assert s3_place.read("x") == b"o" * 24 * MIB
    proxy.cap(None)
    with staged_local(s3_place.url("x"), "r"):
        pass
    kept = [name for name in left_in(scratch) if name.endswith("/x")]
    assert len(kept) == (1 if mode == "w" else 0)  # what the block made is kept, what was fetched is not
    assert not any("/tmp/" in name for name in left_in(scratch))


LIVING_ON = """
    import sys, time
    from remoteio import staged_local
    try:
        with staged_local(sys.argv[1], "w") as path:
            open(path, "wb").write(b"n" * int(sys.argv[2]))
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize(("kind", "size", "count"), [("s3", 8, 1), ("gcs", 8, 1), ("gcs", 16, 2)])
def test_what_ctrl_c_has_ended_is_not_sent_by_a_process_that_lives_on(
    request: pytest.FixtureRequest, scratch: Path, kind: str, size: int, count: int
) -> None:
    place: Place = request.getfixturevalue(f"{kind}_place")
    between: servers.Proxy = request.getfixturevalue("proxy" if kind == "s3" else "gcs_proxy")
    reached = between.environment() if kind == "s3" else {"STORAGE_EMULATOR_HOST": between.url}
    sending = "POST" if (kind, count) == ("gcs", 1) else "PUT"
    place.put("x", b"old")
    between.cap(3 * MIB)
    process = start(LIVING_ON, place.url("x"), str(size * MIB - 1000), **reached, TMPDIR=str(scratch))
    with ended(process):
        assert process.stdout
        while len([one for one in between.requests if one.method == sending]) < count:
            assert process.poll() is None
            time.sleep(0.02)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        time.sleep(4)
        assert place.read("x") == b"old"
    assert len([name for name in left_in(scratch) if name.endswith("/x")]) == 1


@pytest.mark.usefixtures("uncollected")
def test_an_interrupted_upload_says_where_the_copy_is(
    s3_place: Place, proxy: servers.Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.before(lambda: os.kill(os.getpid(), signal.SIGINT), operation="PutObject", times=1)
    proxy.delay(3, operation="PutObject", skip=1)
    with (
        caplog.at_level(logging.WARNING, "remoteio"),
        pytest.raises(KeyboardInterrupt),
        staged_local(s3_place.url("run/"), "w", storage_options=proxy.storage_options, max_concurrency=1) as path,
    ):
        write(f"{path}/a", b"1")
        write(f"{path}/b", b"2")
    assert "the local copy is kept in" in caplog.text


# ---- space


def test_too_little_space_is_told_before_anything_is_fetched(
    s3_place: Place, proxy: servers.Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_place.put("x", b"1" * 1000)
    monkeypatch.setattr("remoteio._node_root.free_bytes", lambda path: 999)
    with pytest.raises(StagingError, match=r"1,000 bytes are needed.*999 are free") as caught:
        staged_local(s3_place.url("x"), "r", storage_options=proxy.storage_options).__enter__()
    assert caught.value.errno == errno.ENOSPC
    assert proxy.tally["GetObject"] == 0


def test_too_little_space_for_a_copy_to_work_on_is_told_and_leaves_nothing(
    s3_place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    s3_place.put("x", b"1" * 1000)
    cache = tmp_path / "cache"
    with staged_local(s3_place.url("x"), "r", cache_dir=cache):
        pass
    monkeypatch.setattr("remoteio._node_root.free_bytes", lambda path: 999)
    monkeypatch.setattr("remoteio._node_root.file_system", lambda path: "ext4")  # one whose copies take room
    with pytest.raises(StagingError, match=r"1,000 bytes are needed.*999 are free"):
        staged_local(s3_place.url("x"), cache_dir=cache).__enter__()
    assert os.listdir(cache / f"remoteio-{os.getuid()}" / "tmp") == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root may mount a small disk")
def test_a_disk_that_fills_up_in_the_middle_keeps_nothing(
    s3_place: Place, tmp_path: Path, proxy: servers.Proxy
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        s3_place.put("x", b"1" * 20 * MIB)
        filler = threading.Event()

        def fill() -> None:
            (disk / "filler").write_bytes(b"1" * 10 * MIB)
            filler.set()

        proxy.before(fill, operation="GetObject", times=1)
        with pytest.raises(OSError) as caught:
            staged_local(s3_place.url("x"), "r", cache_dir=disk, storage_options=proxy.storage_options).__enter__()
        assert filler.is_set()
        assert caught.value.errno == errno.ENOSPC
        assert not any(name.endswith("/x") for name in left_in(disk))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_the_temporary_file_is_on_the_caches_own_file_system(s3_place: Place, tmp_path: Path, scratch: Path) -> None:
    with staged_local(s3_place.url("x"), "w", cache_dir=tmp_path / "cache") as path:
        assert path.startswith(str(tmp_path / "cache"))
        assert left_in(scratch) == []


def test_a_thousand_cycles_leave_nothing_behind(memory_place: Place, scratch: Path) -> None:
    url = memory_place.put("x", b"1")
    descriptors = len(os.listdir("/proc/self/fd"))
    for number in range(1000):
        with staged_local(url, "r+" if number % 2 else "r") as path:
            assert os.path.getsize(path) >= 1
            if number % 2:
                write(path, str(number))
    assert left_in(scratch) == []
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_a_hundred_cycles_with_locks_leave_nothing_behind(s3_place: Place, scratch: Path) -> None:
    url = s3_place.put("x", b"1")
    for _ in range(100):
        with staged_local(url, "r"):
            pass
    assert left_in(scratch) == []


# ---- security


@pytest.mark.parametrize("key", ["../out", "a/../../out", "/absolute", "a//b", "C:/x", "D:x", "nul\0byte"])
def test_a_key_that_leads_elsewhere_is_refused_by_name(memory_place: Place, scratch: Path, key: str) -> None:
    fs = memory_place.fs()
    base = memory_place.base.partition("://")[2]
    from fsspec.implementations.memory import MemoryFile

    fs.store[f"/{base}/run/{key}"] = MemoryFile(fs, f"/{base}/run/{key}", b"evil")
    try:
        with pytest.raises(StagingError) as caught, staged_local(memory_place.url("run"), "r"):
            pass
        assert repr(key) in str(caught.value)
        assert left_in(scratch) == []
    finally:
        del fs.store[f"/{base}/run/{key}"]


def test_a_key_that_leads_elsewhere_is_refused_on_s3(moto_server: servers.Server, moto_place: Place) -> None:
    key = moto_place.base.partition("://")[2].partition("/")[2]
    moto_server.put(f"{key}/run//double", b"evil")
    with (
        pytest.raises(StagingError, match="'/double'"),
        staged_local(moto_place.url("run"), "r", **options(moto_place)),
    ):
        pass


def test_a_null_byte_is_refused() -> None:
    with pytest.raises(ValueError, match="null byte"), staged_local("s3://b/a\0b", "r"):
        pass


def test_a_key_that_is_a_file_and_a_directory_is_refused_by_name(memory_place: Place) -> None:
    fs = memory_place.fs()
    fs.pipe_file(memory_place.url("run/a/b"), b"1")
    base = memory_place.base.partition("://")[2]
    fs.store[f"/{base}/run/a"] = fs.store[f"/{base}/run/a/b"]
    with pytest.raises(StagingError, match="'a' is a file and a directory"), staged_local(memory_place.url("run"), "r"):
        pass


@pytest.mark.parametrize("target", ["/etc/hostname", "../../../outside"])
def test_a_link_that_leaves_the_tree_is_refused_by_name(s3_place: Place, target: str) -> None:
    with pytest.raises(StagingError, match="leads out.*innocent"), staged_local(s3_place.url("run/"), "w") as path:
        write(f"{path}/fine", b"1")
        os.symlink(target, f"{path}/innocent")
    assert s3_place.files() == {}


def test_a_refused_copy_is_sent_once_it_is_put_right(s3_place: Place) -> None:
    with pytest.raises(StagingError) as caught, staged_local(s3_place.url("run/"), "w") as path:
        write(f"{path}/fine", b"1")
        os.symlink("/etc/hostname", f"{path}/innocent")
    os.unlink(f"{caught.value.kept_path}/innocent")
    resume_upload(str(caught.value.kept_path))
    assert s3_place.files() == {"run/fine": b"1"}


def test_a_link_inside_the_tree_goes_up_as_what_it_names(s3_place: Place) -> None:
    with staged_local(s3_place.url("run/"), "w") as path:
        write(f"{path}/blobs/1", b"1")
        os.symlink("blobs/1", f"{path}/model")
    assert s3_place.files() == {"run/blobs/1": b"1", "run/model": b"1"}


def test_a_link_to_a_directory_inside_the_tree_goes_up_as_its_files(s3_place: Place) -> None:
    with staged_local(s3_place.url("run/"), "w") as path:
        write(f"{path}/step-1/x", b"1")
        os.symlink("step-1", f"{path}/last")
    assert s3_place.files() == {"run/step-1/x": b"1", "run/last/x": b"1"}


@pytest.mark.parametrize(
    ("name", "said"), [(b"C:x", "'C:x'"), (b"not\xffutf", "not UTF-8.*not.utf"), (b"gone", "cannot be read.*gone")]
)
def test_what_could_not_be_staged_again_or_read_is_refused_by_name(s3_place: Place, name: bytes, said: str) -> None:
    with pytest.raises(StagingError, match=said), staged_local(s3_place.url("run/"), "w") as path:
        if name == b"gone":
            os.symlink("nowhere", f"{path}/gone")
        else:
            write(os.fsdecode(os.fsencode(f"{path}/") + name), b"1")
    assert s3_place.files() == {}


def test_a_link_to_a_directory_above_is_refused(s3_place: Place) -> None:
    with pytest.raises(StagingError, match="leads back"), staged_local(s3_place.url("run/"), "w") as path:
        os.symlink(".", f"{path}/loop")


def test_a_socket_in_the_tree_is_refused_by_name(s3_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(StagingError, match="neither a file nor a directory.*sock"),
        staged_local(s3_place.url("run/"), "w") as path,
        socket.socket(socket.AF_UNIX) as plug,
    ):
        monkeypatch.chdir(path)  # a socket's path may not be long
        plug.bind("sock")


def test_a_cache_folder_of_somebody_else_is_refused(s3_place: Place, tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root may give a folder away")
    cache = tmp_path / "cache"
    cache.mkdir()
    os.chown(cache, 12345, -1)
    with pytest.raises(StagingError, match="belongs to user 12345") as caught:
        staged_local(s3_place.url("x"), cache_dir=cache).__enter__()
    assert caught.value.filename == str(cache)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give a folder away")
@pytest.mark.parametrize("name", ["", "tmp", "entries"])
def test_a_folder_of_somebody_else_in_the_cache_is_refused(s3_place: Place, tmp_path: Path, name: str) -> None:
    url = s3_place.put("x", b"1")
    own = tmp_path / "cache" / f"remoteio-{os.getuid()}"
    (own / name).mkdir(parents=True, mode=0o700)
    os.chown(own / name, 12345, -1)
    with pytest.raises(StagingError, match="belongs to user 12345") as caught:
        staged_local(url, "r", cache_dir=tmp_path / "cache").__enter__()
    assert caught.value.filename == str(own / name).rstrip("/")


def test_a_cache_folder_in_which_everybody_may_rename_is_refused(s3_place: Place, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    with pytest.raises(StagingError, match="everybody may replace"):
        staged_local(s3_place.url("x"), cache_dir=cache).__enter__()
    cache.chmod(0o1777)
    with staged_local(s3_place.url("x"), cache_dir=cache):
        pass


def test_a_folder_of_the_cache_that_others_may_enter_is_closed(s3_place: Place, tmp_path: Path) -> None:
    own = tmp_path / "cache" / f"remoteio-{os.getuid()}"
    own.mkdir(parents=True)
    own.chmod(0o755)
    with staged_local(s3_place.url("x"), cache_dir=tmp_path / "cache"):
        assert os.stat(own).st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("name", "mode"), [("", "r"), ("tmp", "r"), ("tmp", "w"), ("entries", "r"), ("entries", "r+"), ("ranks", "w")]
)
def test_a_link_planted_in_the_cache_is_refused(s3_place: Place, tmp_path: Path, name: str, mode: Any) -> None:
    url = s3_place.put("x", b"1")
    own = tmp_path / "cache" / f"remoteio-{os.getuid()}"
    own.mkdir(parents=True, mode=0o700)
    target = tmp_path / "elsewhere"
    target.mkdir()
    if name:
        os.symlink(target, own / name)
    else:
        own.rmdir()
        os.symlink(target, own)
    with pytest.raises(StagingError, match="link stands") as caught:
        staged_local(url, mode, cache_dir=tmp_path / "cache").__enter__()
    assert caught.value.filename == str(own / name if name else own)
    assert left_in(target) == []


def test_everything_in_the_cache_is_private(s3_place: Place, tmp_path: Path) -> None:
    with staged_local(s3_place.put("x", b"1"), "r", cache_dir=tmp_path / "cache"):
        for here, _, _ in os.walk(tmp_path / "cache"):
            assert os.stat(here).st_mode & 0o077 == 0 or here.endswith("/data")


def test_credentials_are_not_shown(s3_server: servers.Server, caplog: pytest.LogCaptureFixture) -> None:
    bad = {"key": "test", "secret": "very-secret-word", "endpoint_url": "http://127.0.0.1:1"}
    with caplog.at_level(logging.DEBUG), pytest.raises(OSError) as caught:
        staged_local("s3://test-bucket/x", "r", storage_options=bad).__enter__()
    assert "very-secret-word" not in str(caught.value) + caplog.text


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_no_signed_path_is_in_the_log(
    s3_place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    pytest.importorskip(engine)
    monkeypatch.setenv("REMOTEIO_ENGINE", engine)
    s3_place.put("x", b"1" * 9 * MIB)
    with caplog.at_level(logging.DEBUG), staged_local(s3_place.url("x")) as path:
        write(path, b"2" * 9 * MIB)
    assert caplog.text
    assert "X-Amz-Signature" not in caplog.text
    assert "testsecret" not in caplog.text


def test_no_secret_is_in_any_name_or_file_of_the_cache(s3_place: Place, tmp_path: Path, proxy: servers.Proxy) -> None:
    url = s3_place.put("x", b"1")
    with staged_local(url, "r", cache_dir=tmp_path / "cache", storage_options=proxy.storage_options):
        names = "".join(left_in(tmp_path / "cache"))
        assert "testsecret" not in names + "".join(map(str, tree(tmp_path / "cache").values()))


# ---- progress


def test_a_callable_hears_of_both_ways(s3_place: Place) -> None:
    calls: list[tuple[int, int, str]] = []
    url = s3_place.put("x", b"1" * 1000)
    with staged_local(url, progress=lambda *call: calls.append(call)) as path:
        assert calls[-1] == (1000, 1000, url)
        write(path, b"2" * 2000)
    assert calls[-1] == (2000, 2000, url)


def test_only_the_one_who_fetches_tells(s3_place: Place) -> None:
    calls: list[int] = []
    url = s3_place.put("x", b"1" * 1000)
    with staged_local(url, "r"), staged_local(url, "r", progress=lambda done, total, where: calls.append(done)):
        assert calls == []


def test_no_bar_is_drawn_into_a_log(s3_place: Place) -> None:
    url = s3_place.put("x", b"1" * 1000)
    program = "import sys, remoteio\nwith remoteio.staged_local(sys.argv[1], 'r'): pass"
    process = start(program, url)
    assert process.communicate(timeout=120) == ("", "")


def test_bars_are_drawn_where_they_are_wished_for(s3_place: Place) -> None:
    url = s3_place.put("x", b"1" * 1000)
    process = start("import sys, remoteio\nwith remoteio.staged_local(sys.argv[1], 'r', progress=True): pass", url)
    assert f"fetching {url}" in process.communicate(timeout=120)[1]


def test_bars_are_drawn_on_the_way_up(s3_place: Place) -> None:
    url = s3_place.url("x")
    program = "import sys, remoteio\nwith remoteio.staged_local(sys.argv[1], 'w', progress=True) as path: "
    process = start(f"{program}open(path, 'w').write('1')", url)
    assert f"sending {url}" in process.communicate(timeout=120)[1]


def drawn_on_a_terminal(program: str, url: str, **environment: str) -> bytes:
    """What a program draws."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent), **environment}
    process = subprocess.Popen([sys.executable, "-c", program, url], stderr=theirs, env=environment)
    os.close(theirs)
    drawn = b""
    try:
        while block := os.read(ours, 4096):
            drawn += block
    except OSError:  # how Linux says that the other end is closed
        pass
    process.wait(timeout=120)
    os.close(ours)
    return drawn


def test_bars_are_drawn_on_a_terminal(s3_place: Place) -> None:
    url = s3_place.put("x", b"1" * 1000)
    program = "import sys, remoteio\nwith remoteio.staged_local(sys.argv[1], 'r'): pass"
    assert b"fetching" in drawn_on_a_terminal(program, url, LOCAL_RANK="1")


@pytest.mark.parametrize(("rank", "drawn"), [("0", True), ("1", False)])
def test_of_the_ranks_that_send_the_first_draws(s3_place: Place, rank: str, drawn: bool) -> None:
    program = "import sys, remoteio\nwith remoteio.staged_local(sys.argv[1], 'w') as path: open(path, 'w').write('1')"
    assert (b"sending" in drawn_on_a_terminal(program, s3_place.url("x"), LOCAL_RANK=rank)) == drawn


# ---- processes


def test_a_block_left_in_a_forked_child_is_the_parents(s3_place: Place) -> None:
    staged = staged_local(s3_place.url("x"), "w")
    path = staged.__enter__()
    write(path, b"parent")
    child = os.fork()
    if child == 0:
        staged.__exit__(None, None, None)
        os._exit(0)
    os.waitpid(child, 0)
    assert os.path.exists(path)
    assert s3_place.files() == {}
    staged.__exit__(None, None, None)
    assert s3_place.read("x") == b"parent"


def test_threads_may_stage_the_same_object(s3_place: Place) -> None:
    urls = [s3_place.put(str(number), str(number)) for number in range(8)]
    staged = [staged_local(url) for url in urls]

    def work(number: int) -> bytes:
        with staged[number % 8] as path:
            return Path(path).read_bytes()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert [int(data) for data in pool.map(work, range(32))] == [number % 8 for number in range(32)]


def test_many_files_go_to_a_store_with_real_directories_and_back(disk_place: Place, tmp_path: Path) -> None:
    url = f"{disk_place.url('d')}/"
    files = {f"d/{number % 3}/{number}": str(number).encode() for number in range(40)}
    with disk_place.scope():
        with staged_local(url, "w") as path:
            for name, data in files.items():
                target = Path(path, name.removeprefix("d/"))
                target.parent.mkdir(exist_ok=True)
                target.write_bytes(data)
        assert disk_place.files() == files
        with staged_local(url) as path:
            for number in range(20):
                Path(path, str(number % 3), str(number)).write_bytes(b"changed")
    changed = {f"d/{number % 3}/{number}": b"changed" for number in range(20)}
    assert disk_place.files() == {**files, **changed}


def test_a_private_copy_is_made_where_the_kernel_copies_nothing(
    s3_place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "copy_file_range", refuse)
    data = os.urandom(3 * 2**20 + 1)
    url = s3_place.put("f", data)
    with s3_place.scope(), staged_local(url, cache_dir=str(tmp_path / "cache")) as path:
        assert Path(path).read_bytes() == data
        Path(path).write_bytes(b"mine")
    assert s3_place.read("f") == b"mine"


# ---- what goes wrong in the block


@pytest.mark.parametrize("mode", ["r+", "w"])
@pytest.mark.parametrize("mirror", [True, False])
def test_a_copy_that_was_cleared_away_is_an_error_and_nothing_is_deleted(
    remote: Place, tmp_path: Path, mode: Any, mirror: bool
) -> None:
    remote.put("run/a", "a")
    block = staged_local(remote.url("run/"), mode, mirror=mirror, cache_dir=tmp_path / "cache")
    with remote.scope(), pytest.raises(StagingError) as caught, block as path:
        write(f"{path}/b", "b")
        shutil.rmtree(os.path.dirname(os.path.dirname(path)))
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, remote.url("run/"))
    assert "gone" in str(caught.value)
    assert remote.files() == {"run/a": b"a"}


def test_a_directory_that_the_block_moved_away_is_an_error(memory_place: Place, tmp_path: Path) -> None:
    with pytest.raises(StagingError), staged_local(memory_place.url("run/"), "w") as path:
        write(f"{path}/a", "a")
        os.rename(path, tmp_path / "elsewhere")
    assert memory_place.files() == {}


@pytest.mark.parametrize("mode", ["r+", "w"])
def test_mirror_leaves_what_somebody_else_has_written_since(remote: Place, mode: Any) -> None:
    remote.put("run/a", "old")
    remote.put("run/b", "old")
    with (
        remote.scope(),
        pytest.raises(StagingError) as caught,
        staged_local(remote.url("run/"), mode, mirror=True) as p,
    ):
        write(f"{p}/b", "new")
        if mode == "r+":
            os.unlink(f"{p}/a")
        remote.put("run/a", "of somebody else")
    assert caught.value.errno == errno.EEXIST
    assert remote.files() == {"run/a": b"of somebody else", "run/b": b"old"}


def test_tasks_of_one_thread_leave_their_own_blocks(memory_place: Place) -> None:
    block = staged_local(memory_place.url("run/"), "w")

    async def fails() -> None:
        with contextlib.suppress(ValueError), block as path:
            write(f"{path}/bad", "1")
            await asyncio.sleep(0.1)
            raise ValueError

    async def succeeds() -> None:
        await asyncio.sleep(0.05)
        with block as path:
            write(f"{path}/good", "2")
            await asyncio.sleep(0.2)

    async def both() -> None:
        await asyncio.gather(fails(), succeeds())

    asyncio.run(both())
    assert memory_place.files() == {"run/good": b"2"}


def test_a_new_file_goes_into_the_folder_whose_name_was_shortened(remote: Place) -> None:
    long = "d" * 300
    remote.put(f"run/{long}/a", "a")
    with remote.scope(), staged_local(remote.url("run/")) as path:
        (short,) = os.listdir(path)
        write(f"{path}/{short}/b", "b")
        write(f"{path}/{short}/deep/c", "c")
    assert remote.files() == {f"run/{long}/a": b"a", f"run/{long}/b": b"b", f"run/{long}/deep/c": b"c"}


def test_a_file_that_is_rewritten_while_it_is_sent_is_not_published(s3_place: Place, proxy: servers.Proxy) -> None:
    place = Place(s3_place.base, "s3", proxy.storage_options)
    block = staged_local(place.url("f"), "w", max_concurrency=1)
    with place.scope(), pytest.raises(StagingError, match="written to while it was sent"), block as path:
        write(path)
        os.truncate(path, 160 * MIB)  # many more parts than are read ahead
        proxy.before(lambda: os.utime(path), operation="UploadPart", skip=1, times=1)
    assert s3_place.files() == {}


def test_generators_of_one_thread_share_an_object(memory_place: Place) -> None:
    staged = staged_local(memory_place.url("run/"), "w")
    failed: list[BaseException] = []

    def writer(name: str) -> Iterator[None]:
        with staged as path:
            write(f"{path}/{name}", name.encode())
            yield
            if name == "a":
                raise LookupError
            write(f"{path}/{name}2", b"more")

    first, second = writer("a"), writer("b")
    next(first)
    next(second)
    for one in (first, second):
        try:
            list(one)
        except LookupError as error:
            failed.append(error)
    assert len(failed) == 1
    assert memory_place.files() == {"run/b": b"b", "run/b2": b"more"}

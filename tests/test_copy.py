"""``shutil.copy`` where at least one side is on a store."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from remoteio import remote_io
from tests.conftest import Place
from tests.oracle import harvest, plant
from tests.proxy import Proxy

BIG = bytes(range(256)) * 100_000  # more than one part


@pytest.fixture
def planted(memory_place: Place) -> Place:
    plant(memory_place, {"a.txt": b"new"})
    return memory_place


# ---- between stores


@pytest.mark.parametrize("kinds", ["s3 gcs", "gcs s3", "memory s3", "gcs memory", "s3 memory", "moto s3", "s3 file"])
def test_a_file_goes_to_another_store_whole(kinds: str, request: pytest.FixtureRequest) -> None:
    source, target = (request.getfixturevalue(f"{kind}_place") for kind in kinds.split())
    plant(source, {"a.bin": BIG, "empty": b""})
    with source.scope(storage_options={**source.options, **target.options}):
        assert shutil.copy(source.url("a.bin"), target.base) == target.url("a.bin")
        assert shutil.copy(source.url("empty"), target.url("e")) == target.url("e")
    assert harvest(target) == {"a.bin": BIG, "e": b""}


def test_a_large_file_goes_up_and_down_whole(s3_place: Place, tmp_path: Path) -> None:
    (tmp_path / "up").write_bytes(BIG)
    with s3_place.scope():
        shutil.copy(tmp_path / "up", s3_place.url("a"))
        shutil.copy(s3_place.url("a"), tmp_path / "down")
    assert (tmp_path / "down").read_bytes() == BIG


def test_one_server_with_two_identities_is_copied_through_here(proxy: Proxy, proxy_place: Place) -> None:
    plant(Place(proxy_place.base, "s3"), {"a": b"1"})
    reader = proxy.storage_options["s3"]
    writer = {**reader, "config_kwargs": {"max_pool_connections": 7}}
    proxy.deny(operation="CopyObject")
    with remote_io(storage_options={"s3": reader, proxy_place.url("out"): writer}):
        shutil.copy(proxy_place.url("a"), proxy_place.url("out/b"))
    assert proxy_place.read("out/b") == b"1"


def test_a_denied_copy_by_one_identity_is_denied(proxy: Proxy, proxy_place: Place) -> None:
    plant(Place(proxy_place.base, "s3"), {"a": b"1"})
    proxy.deny(operation="CopyObject")
    with proxy_place.scope(), pytest.raises(PermissionError):
        shutil.copy(proxy_place.url("a"), proxy_place.url("b"))
    assert harvest(Place(proxy_place.base, "s3")) == {"a": b"1"}


# ---- the same file

SPELLINGS = [
    ("s3", "s3://{rest}/a", "s3a://{rest}/a"),
    ("s3", "s3://{rest}/a", "S3://{rest}/./a"),
    ("s3", "s3:/{rest}/a", "s3://{rest}/b/../a"),
    ("s3", "s3://{rest}/a", "s3a://{rest}"),
    ("gcs", "gs://{rest}/a", "gcs://{rest}/a"),
    ("memory", "memory://{rest}/a", "memory:///{rest}/a"),
    ("memory", "memory:/{rest}/a", "memory://{rest}/"),
]


@pytest.mark.parametrize(("kind", "one", "other"), SPELLINGS)
def test_a_file_is_the_same_in_every_spelling(kind: str, one: str, other: str, request: pytest.FixtureRequest) -> None:
    place: Place = request.getfixturevalue(f"{kind}_place")
    plant(place, {"a": b"1"})
    rest = place.base.partition("://")[2]
    with place.scope(), pytest.raises(shutil.SameFileError):
        shutil.copy(one.format(rest=rest), other.format(rest=rest))
    assert harvest(place) == {"a": b"1"}


def test_one_key_on_two_servers_is_not_the_same_file(s3_place: Place, moto_place: Place, proxy: Proxy) -> None:
    plant(s3_place, {"a": b"1"})
    other = s3_place.base.replace("s3://", "s3a://")
    tables = {s3_place.url("sub"): proxy.storage_options["s3"], **moto_place.options}
    with remote_io(storage_options=tables):
        shutil.copy(s3_place.url("a"), moto_place.url("a"))
        shutil.copy(moto_place.url("a"), f"{other}/sub")
    assert harvest(s3_place) == {"a": b"1", "sub": b"1"}


# ---- onto a store


def test_parents_are_not_needed_on_a_store(planted: Place) -> None:
    with planted.scope():
        shutil.copy(planted.url("a.txt"), planted.url("x/y/z"))
    assert planted.read("x/y/z") == b"new"


def test_a_missing_bucket_is_file_not_found_and_not_made(s3_place: Place) -> None:
    plant(s3_place, {"a": b"1"})
    with s3_place.scope():
        for url in ("s3://no-such-bucket-here", "s3://no-such-bucket-here/x"):
            with pytest.raises(FileNotFoundError):
                shutil.copy(s3_place.url("a"), url)


def test_a_missing_source_leaves_the_target(planted: Place) -> None:
    with planted.scope(), pytest.raises(FileNotFoundError):
        shutil.copy(planted.url("nope"), planted.url("a.txt"))
    assert harvest(planted) == {"a.txt": b"new"}


def test_a_failed_upload_leaves_the_target(proxy: Proxy, proxy_place: Place, tmp_path: Path) -> None:
    plant(Place(proxy_place.base, "s3"), {"a": b"old"})
    (tmp_path / "up").write_bytes(BIG)
    proxy.deny(method="PUT")
    with proxy_place.scope(), pytest.raises(PermissionError):
        shutil.copy(tmp_path / "up", proxy_place.url("a"))
    assert proxy_place.read("a") == b"old"


def test_who_may_write_need_not_be_allowed_to_look(proxy: Proxy, proxy_place: Place, tmp_path: Path) -> None:
    (tmp_path / "up").write_bytes(b"1")
    proxy.deny(operation="ListObjectsV2")
    proxy.deny(operation="HeadObject")
    with proxy_place.scope():
        shutil.copy(tmp_path / "up", proxy_place.url("d/a"))
    proxy.clear()
    assert proxy_place.read("d/a") == b"1"


@pytest.mark.skipif(not os.path.exists("/proc/version"), reason="needs /proc")
def test_a_file_that_is_longer_than_it_says_is_copied_whole(planted: Place) -> None:
    with planted.scope():
        shutil.copy("/proc/version", planted.url("v"))
    assert planted.read("v") == Path("/proc/version").read_bytes()


def test_a_link_is_followed(planted: Place, tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"1")
    (tmp_path / "link").symlink_to("real")
    with planted.scope():
        shutil.copy(tmp_path / "link", planted.url("l"))
    assert planted.read("l") == b"1"


def test_a_link_cannot_be_copied_as_a_link(planted: Place, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    with planted.scope(), pytest.raises(OSError, match="symbolic link"):
        shutil.copy(tmp_path / "link", planted.url("l"), follow_symlinks=False)
    assert harvest(planted) == {"a.txt": b"new"}


def test_a_file_is_copied_without_following_links_where_there_is_none(planted: Place, tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"1")
    with planted.scope():
        shutil.copy(tmp_path / "real", planted.url("l"), follow_symlinks=False)
        assert shutil.copy(planted.url("a.txt"), tmp_path / "down", follow_symlinks=False) == tmp_path / "down"
    assert planted.read("l") == b"1"


def test_a_directory_entry_is_a_source(planted: Place, tmp_path: Path) -> None:
    (tmp_path / "e").write_bytes(b"1")
    with planted.scope():
        for entry in os.scandir(tmp_path):
            assert shutil.copy(entry, planted.base) == planted.url("e")


def test_a_local_name_that_is_no_text_is_refused_on_a_store(planted: Place, tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff"
    Path(os.fsdecode(path)).write_bytes(b"1")
    with planted.scope(), pytest.raises(OSError, match="UTF-8"):
        shutil.copy(path, os.fsencode(planted.base))


@pytest.mark.parametrize("way", ["from", "to"])
def test_a_pipe_is_refused(way: str, planted: Place, tmp_path: Path) -> None:
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    with planted.scope(), pytest.raises(shutil.SpecialFileError):
        shutil.copy(*(pipe, planted.url("x")) if way == "from" else (planted.url("a.txt"), pipe))


# ---- onto a disk


def test_a_new_file_has_the_permissions_of_a_new_file(planted: Place, tmp_path: Path) -> None:
    with planted.scope():
        shutil.copy(planted.url("a.txt"), tmp_path / "copy")
    (tmp_path / "plain").touch()
    assert (tmp_path / "copy").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_an_existing_file_keeps_its_permissions(planted: Place, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_bytes(b"old")
    old.chmod(0o751)
    with planted.scope():
        shutil.copy(planted.url("a.txt"), old)
    assert (old.read_bytes(), stat.S_IMODE(old.stat().st_mode)) == (b"new", 0o751)


def test_a_link_stays_and_what_it_points_to_is_replaced(planted: Place, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "link").symlink_to("sub/real")
    with planted.scope():
        shutil.copy(planted.url("a.txt"), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "sub/real").read_bytes() == b"new"


def test_a_device_is_written_to_and_stays(planted: Place) -> None:
    with planted.scope():
        assert shutil.copy(planted.url("a.txt"), os.devnull) == os.devnull
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_the_old_file_is_there_until_the_new_one_is_whole(proxy: Proxy, proxy_place: Place, tmp_path: Path) -> None:
    plant(Place(proxy_place.base, "s3"), {"a": BIG})
    (tmp_path / "a").write_bytes(b"old")
    seen: list[bytes] = []
    proxy.before(lambda: seen.append((tmp_path / "a").read_bytes()), operation="GetObject")
    with proxy_place.scope():
        shutil.copy(proxy_place.url("a"), tmp_path)
    assert set(seen) == {b"old"}
    assert (tmp_path / "a").read_bytes() == BIG


@pytest.mark.parametrize("existed", [False, True])
def test_a_failed_download_leaves_everything_as_it_was(
    existed: bool, proxy: Proxy, proxy_place: Place, tmp_path: Path
) -> None:
    plant(Place(proxy_place.base, "s3"), {"a": BIG})
    if existed:
        (tmp_path / "a").write_bytes(b"old")
    proxy.deny(operation="GetObject", skip=1)
    with proxy_place.scope(), pytest.raises(PermissionError):
        shutil.copy(proxy_place.url("a"), tmp_path)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"] * existed


def test_ctrl_c_in_a_download_leaves_everything_as_it_was(s3_place: Place, tmp_path: Path) -> None:
    plant(s3_place, {"a": BIG})
    program = """
import os, shutil, signal, sys, time
from remoteio import remote_io
from tests.servers import Proxy
signal.signal(signal.SIGINT, signal.default_int_handler)
with Proxy(os.environ["AWS_ENDPOINT_URL"]) as proxy:
    proxy.before(lambda: (os.kill(os.getpid(), signal.SIGINT), time.sleep(2)), operation="GetObject", times=1)
    with remote_io(storage_options=proxy.storage_options):
        try:
            shutil.copy(sys.argv[1], sys.argv[2])
        except KeyboardInterrupt:
            print(os.listdir(sys.argv[2]))
"""
    command = [sys.executable, "-c", program, s3_place.url("a"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_read_only_file_is_not_replaced(planted: Place, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"old")
    (tmp_path / "a.txt").chmod(0o444)
    with planted.scope(), pytest.raises(PermissionError):
        shutil.copy(planted.url("a.txt"), tmp_path)
    assert (tmp_path / "a.txt").read_bytes() == b"old"

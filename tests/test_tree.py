"""The path functions on a store: what a local disk has no example of, and what they cost."""

from __future__ import annotations

import errno
import glob
import http.server
import os
import shutil
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remoteio import remote_io
from tests.conftest import Place
from tests.oracle import harvest, plant, plant_locally
from tests.proxy import Proxy
from tests.servers import Server


@pytest.fixture(params=["memory", "s3", "gcs"])
def store(request: pytest.FixtureRequest) -> Place:
    """An empty directory on each store where a directory is a prefix."""
    place: Place = request.getfixturevalue(f"{request.param}_place")
    return place


@pytest.fixture
def bucket(s3_server: Server) -> str:
    """The URL of an empty bucket."""
    name = f"empty-{uuid.uuid4().hex[:8]}"
    s3_server.make_bucket(name)
    return f"s3://{name}"


# ---- what exists


def test_a_name_that_is_file_and_directory_is_listed_once(gcs_place: Place) -> None:
    plant(gcs_place, {"d": b"file", "d/x": b"", "e": b""})
    with gcs_place.scope():
        assert sorted(os.listdir(gcs_place.base)) == ["d", "e"]


def test_a_name_that_is_file_and_directory_is_both(gcs_place: Place) -> None:
    plant(gcs_place, {"d": b"file", "d/x": b""})
    url = gcs_place.url("d")
    with gcs_place.scope():
        assert (os.path.exists(url), os.path.isdir(url), os.path.getsize(url), os.listdir(url)) == (
            True,
            True,
            4,
            ["x"],
        )


def test_remove_of_a_name_that_is_file_and_directory_removes_the_file(gcs_place: Place) -> None:
    plant(gcs_place, {"d": b"file", "d/x": b""})
    with gcs_place.scope():
        os.remove(gcs_place.url("d"))
    assert harvest(gcs_place) == {"d/x": b""}


def test_rmtree_of_a_name_that_is_file_and_directory_removes_what_is_below(gcs_place: Place) -> None:
    plant(gcs_place, {"d": b"file", "d/x": b""})
    with gcs_place.scope():
        shutil.rmtree(gcs_place.url("d"))
    assert harvest(gcs_place) == {"d": b"file"}


def test_what_is_below_a_name_that_is_file_and_directory_is_missing_not_below_a_file(gcs_place: Place) -> None:
    plant(gcs_place, {"d": b"file", "d/x": b""})
    with gcs_place.scope(), pytest.raises(FileNotFoundError):
        os.path.getsize(gcs_place.url("d/nope"))


def test_dots_are_resolved_by_the_spelling_alone(store: Place) -> None:
    plant(store, {"a": b"1"})
    with store.scope():
        assert os.path.exists(store.url("nope/../a"))


def test_keys_with_empty_and_dotted_segments_are_not_listed(moto_place: Place) -> None:
    plant(moto_place, {"d//x": b"", "d/./y": b"", "d/../z": b"", "d/a": b""})
    with moto_place.scope():
        assert os.listdir(moto_place.url("d")) == ["a"]


def test_a_key_with_an_empty_segment_is_reached_by_its_name(moto_place: Place) -> None:
    plant(moto_place, {"d//x": b"12"})
    url = moto_place.url("d//x")
    with moto_place.scope():
        assert (os.path.exists(url), os.path.exists(moto_place.url("d/x")), os.path.getsize(url)) == (True, False, 2)


def test_backslashes_and_long_segments_are_literal(moto_place: Place) -> None:
    name = "b\\s" + "x" * 300
    plant(moto_place, {name: b"12"})
    with moto_place.scope():
        assert os.listdir(moto_place.base) == [name]
        os.remove(moto_place.url(name))
        assert os.listdir(moto_place.base) == []


def test_a_marker_is_a_directory_and_no_entry(gcs_place: Place, gcs_server: Server) -> None:
    gcs_server.put(f"{gcs_place.base.partition('://')[2].partition('/')[2]}/d/", b"")
    url = gcs_place.url("d")
    with gcs_place.scope():
        assert (os.path.exists(url), os.path.isdir(url), os.listdir(url), os.path.getsize(url)) == (True, True, [], 0)
        assert os.listdir(gcs_place.base) == ["d"]
        with pytest.raises(IsADirectoryError):
            os.remove(url)


def test_a_marker_goes_with_its_tree(gcs_place: Place, gcs_server: Server) -> None:
    gcs_server.put(f"{gcs_place.key}/d/e/", b"")
    with gcs_place.scope():
        shutil.rmtree(gcs_place.url("d"))
        assert not os.path.exists(gcs_place.url("d"))


@pytest.mark.parametrize("name", ["s3", "gcs"])
def test_listdir_is_complete_past_a_thousand_files_and_directories(name: str, request: pytest.FixtureRequest) -> None:
    place: Place = request.getfixturevalue(f"{name}_place")
    expected = {f"f{n:04}" for n in range(1050)} | {f"p{n:04}" for n in range(1050)}
    server: Server = request.getfixturevalue(f"{name}_server")
    server.fill(f"{place.key}/f{n:04}" for n in range(1050))
    server.fill(f"{place.key}/p{n:04}/x" for n in range(1050))
    with place.scope():
        names = os.listdir(place.base)
    assert len(names) == len(expected)
    assert set(names) == expected


def test_a_bucket_is_a_directory(bucket: str) -> None:
    with remote_io():
        assert (os.path.exists(bucket), os.path.isdir(bucket), os.path.isdir(f"{bucket}/")) == (True, True, True)
        assert (os.listdir(bucket), os.path.getsize(bucket)) == ([], 0)


def test_the_root_of_a_store_lists_the_buckets(bucket: str) -> None:
    with remote_io():
        assert bucket.partition("://")[2] in os.listdir("s3://")


@pytest.mark.parametrize("name", ["listdir", "getsize", "remove", "rmtree"])
def test_a_missing_bucket_is_missing(name: str, s3_server: Server) -> None:
    with remote_io():
        calls: dict[str, Any] = {
            "listdir": os.listdir,
            "getsize": os.path.getsize,
            "remove": os.remove,
            "rmtree": shutil.rmtree,
        }
        with pytest.raises(FileNotFoundError):
            calls[name]("s3://no-such-bucket-here")


def test_an_answer_is_fresh(store: Place) -> None:
    url = store.url("d/x")
    with store.scope():
        assert not os.path.exists(url)
        plant(store, {"d/x": b"1", "d/y": b""})
        assert (os.path.getsize(url), sorted(os.listdir(store.url("d")))) == (1, ["x", "y"])
        plant(store, {"d/x": b"333"})
        store.fs().rm_file(store.url("d/y"))
        assert (os.path.getsize(url), os.listdir(store.url("d"))) == (3, ["x"])


class _Unsized(http.server.BaseHTTPRequestHandler):
    """Answers without a length."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"12345")

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def unsized_url() -> Iterator[str]:
    pytest.importorskip("aiohttp")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Unsized) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/file"
        server.shutdown()
        thread.join()


def test_a_size_that_is_not_told_is_counted(unsized_url: str) -> None:
    with remote_io():
        assert os.path.getsize(unsized_url) == 5


# ---- makedirs


def test_a_directory_goes_with_its_last_file(store: Place) -> None:
    plant(store, {"d/e/x": b""})
    with store.scope():
        os.remove(store.url("d/e/x"))
        if store.kind != "s3":  # which lists an emptied directory for a while
            assert not os.path.exists(store.url("d"))
        assert not os.path.exists(store.url("d/e/x"))


def test_a_made_directory_stays_without_files(store: Place) -> None:
    with store.scope():
        os.makedirs(store.url("d/e"))
        plant(store, {"d/e/x": b""})
        os.remove(store.url("d/e/x"))
        assert os.listdir(store.url("d/e")) == []
        assert os.listdir(store.url("d")) == ["e"]


def test_makedirs_writes_nothing(store: Place) -> None:
    with store.scope():
        os.makedirs(store.url("d/e"))
    assert harvest(store) == {}


def test_makedirs_writes_a_marker_where_the_scope_asks_for_it(gcs_place: Place) -> None:
    with gcs_place.scope(directory_markers=True):
        os.makedirs(gcs_place.url("d/e"))
    assert gcs_place.fs().isdir(gcs_place.url("d/e"))


def test_a_made_directory_is_known_in_later_scopes_until_it_is_removed(store: Place) -> None:
    with store.scope():
        os.makedirs(store.url("d/e/f"))
    with store.scope():
        assert os.path.isdir(store.url("d/e/f"))
        shutil.rmtree(store.url("d/e"))
        assert not os.path.exists(store.url("d/e/f"))
        assert os.listdir(store.url("d")) == []


def test_makedirs_never_makes_a_bucket(s3_server: Server) -> None:
    with remote_io():
        for url in ("s3://no-such-bucket-here", "s3://no-such-bucket-here/d"):
            with pytest.raises(FileNotFoundError):
                os.makedirs(url, exist_ok=True)
        assert "no-such-bucket-here" not in os.listdir("s3://")


def test_makedirs_of_a_bucket_finds_it_there(bucket: str) -> None:
    with remote_io():
        os.makedirs(bucket, exist_ok=True)
        with pytest.raises(FileExistsError):
            os.makedirs(bucket)


# ---- remove and rmtree


@pytest.mark.parametrize("name", ["remove", "rmtree"])
def test_a_directory_descriptor_is_refused(name: str, memory_place: Place) -> None:
    if name == "rmtree" and sys.version_info < (3, 11):
        pytest.skip("rmtree has dir_fd since Python 3.11")
    plant(memory_place, {"d/x": b""})
    with memory_place.scope(), pytest.raises(NotImplementedError, match="dir_fd"):
        if name == "remove":
            os.remove(memory_place.url("d/x"), dir_fd=0)
        else:
            shutil.rmtree(memory_place.url("d"), dir_fd=0)  # type: ignore[call-arg, unused-ignore]
    assert harvest(memory_place) == {"d/x": b""}


def test_rmtree_never_touches_what_merely_begins_alike(store: Place) -> None:
    plant(store, {"ab/x": b"", "ab.txt": b"", "abc/x": b"", "a/x": b""})
    with store.scope():
        shutil.rmtree(store.url("ab"))
    assert set(harvest(store)) == {"ab.txt", "abc/x", "a/x"}


def test_rmtree_removes_keys_with_empty_segments(moto_place: Place) -> None:
    plant(moto_place, {"d//x": b"", "d/y": b""})
    with moto_place.scope():
        shutil.rmtree(moto_place.url("d"))
    assert harvest(moto_place) == {}


def test_rmtree_is_complete_past_a_thousand_keys(s3_place: Place, s3_server: Server) -> None:
    plant(s3_place, {"e": b""})
    s3_server.fill(f"{s3_place.key}/d/{n % 7}/{n:04}" for n in range(1100))
    with s3_place.scope():
        shutil.rmtree(s3_place.url("d"))
    assert harvest(s3_place) == {"e": b""}


def test_rmtree_by_a_dot_removes_what_is_below_and_fails_as_on_a_disk(store: Place, tmp_path: Path) -> None:
    plant(store, {"d/x": b""})
    plant_locally(tmp_path, {"d/x": b""})
    for base in (store.base, tmp_path):
        with store.scope(), pytest.raises(OSError) as caught:
            shutil.rmtree(f"{base}/d/.")
        assert caught.value.errno == errno.EINVAL
    assert harvest(store) == {}


@pytest.mark.parametrize("ending", ["", "/", "/.", "/d/.."])
def test_rmtree_refuses_a_bucket(ending: str, bucket: str) -> None:
    with remote_io():
        Place(bucket, "s3").fs().pipe({f"{bucket}/d/x": b""})
        with pytest.raises(PermissionError, match="allow_bucket_delete"):
            shutil.rmtree(bucket + ending)
        shutil.rmtree(bucket + ending, ignore_errors=True)
        assert glob.glob(f"{bucket}/*/*") == [f"{bucket}/d/x"]


def test_rmtree_empties_a_bucket_that_it_may_empty_and_the_bucket_stays(bucket: str) -> None:
    with remote_io(allow_bucket_delete=True):
        Place(bucket, "s3").fs().pipe({f"{bucket}/d/x": b""})
        shutil.rmtree(bucket)
        assert os.path.isdir(bucket)
        assert glob.glob(f"{bucket}/**", recursive=True) == [f"{bucket}/"]


def test_rmtree_refuses_the_root_of_a_store(memory_place: Place) -> None:
    plant(memory_place, {"x": b""})
    with memory_place.scope(), pytest.raises(PermissionError, match="allow_bucket_delete"):
        shutil.rmtree("memory://")
    assert harvest(memory_place) == {"x": b""}


@pytest.fixture
def guarded(gcs_place: Place, gcs_proxy: Proxy) -> Place:
    """A place where one file may not be deleted."""
    plant(gcs_place, {"d/e/bad": b"", "d/e/good": b"", "d/other": b""})
    gcs_proxy.deny(method="DELETE", target="bad")
    return Place(gcs_place.base, "gcs", gcs_proxy.gcs_options)


def test_rmtree_goes_on_after_a_failure_and_tells_it(guarded: Place) -> None:
    told: list[tuple[Any, ...]] = []

    def note(function: Any, path: str, info: Any) -> None:
        told.append((function, path, info[0]))

    with guarded.scope():
        shutil.rmtree(guarded.url("d"), onerror=note)
    assert told == [
        (os.unlink, guarded.url("d/e/bad"), PermissionError),
        (os.rmdir, guarded.url("d/e"), OSError),
        (os.rmdir, guarded.url("d"), OSError),
    ]
    assert set(harvest(guarded)) == {"d/e/bad"}


def test_rmtree_raises_the_first_failure(guarded: Place) -> None:
    with guarded.scope(), pytest.raises(PermissionError) as caught:
        shutil.rmtree(guarded.url("d"))
    assert str(caught.value.filename).endswith("d/e/bad")


def test_rmtree_ignores_failures_if_told_to(guarded: Place) -> None:
    with guarded.scope():
        shutil.rmtree(guarded.url("d"), ignore_errors=True)
    assert set(harvest(guarded)) == {"d/e/bad"}


def test_rmtree_tells_a_listing_that_breaks_off(proxy: Proxy, proxy_place: Place, s3_server: Server) -> None:
    s3_server.fill(f"{proxy_place.key}/d/{n:04}" for n in range(1100))
    proxy.deny(operation="ListObjectsV2", target="continuation-token")
    with proxy_place.scope(), pytest.raises(PermissionError):
        shutil.rmtree(proxy_place.url("d"))


def test_a_file_above_that_may_not_be_looked_at_leaves_missing_missing(proxy: Proxy, proxy_place: Place) -> None:
    plant(Place(proxy_place.base, "s3"), {"a": b""})
    proxy.deny(operation="HeadObject", target=r"/a$")
    with proxy_place.scope(), pytest.raises(FileNotFoundError):
        os.listdir(proxy_place.url("a/b/c"))


def test_the_ancestors_are_looked_at_together(proxy: Proxy, proxy_place: Place) -> None:
    plant(Place(proxy_place.base, "s3"), {"a": b""})
    proxy.delay(0.3, operation="HeadObject")
    with proxy_place.scope(), proxy.counting() as requests, pytest.raises(NotADirectoryError):
        os.listdir(proxy_place.url("a/b/c/d/e/f"))
    _, *heads = [request.at for request in requests if request.operation == "HeadObject"]  # first the name itself
    assert len(heads) == 6
    assert max(heads) - min(heads) < 0.3


@pytest.mark.parametrize("how", ["rmtree", "rename", "replace"])
def test_no_name_stays_of_a_tree_that_is_gone(store: Place, how: str) -> None:
    """Nor in the listings of another process: some stores list prefixes that hold nothing any more."""
    for name in ("step-1/a", "step-1/deep/er/b", "step-2/c"):
        store.put(f"run/{name}", b"1")
    with store.scope(also="paths"):
        assert sorted(os.listdir(store.url("run"))) == ["step-1", "step-2"]
        if how == "rmtree":
            shutil.rmtree(store.url("run/step-1"))
        else:
            getattr(os, how)(store.url("run/step-1"), store.url("run/moved"))
    fs = store.fs()
    fs.invalidate_cache()
    left = sorted(path.rstrip("/").rpartition("/")[2] for path in fs.ls(store.url("run"), detail=False))
    assert left == (["step-2"] if how == "rmtree" else ["moved", "step-2"])

"""``glob.glob`` on a store: spelling, requests, failures. That the matches are Python's is in ``test_contract``."""

from __future__ import annotations

import concurrent.futures
import glob
import os
import sys
import uuid
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remoteio import remote_io
from remoteio._glob_tree import literal_start
from tests.conftest import Place
from tests.oracle import plant
from tests.proxy import Proxy, Request
from tests.servers import Server


@pytest.fixture
def planted(memory_place: Place) -> Place:
    plant(memory_place, {"a.txt": b"", "b.txt": b"", "d/x.txt": b"", "d/e/y.txt": b""})
    return memory_place


def _prefixes(requests: list[Request], place: Place) -> list[str]:
    """The prefixes that were listed, below the place."""
    start = place.base.partition("://")[2].partition("/")[2] + "/"
    return [request.query["prefix"].removeprefix(start) for request in requests if "prefix" in request.query]


# ---- spelling


@pytest.mark.parametrize(
    ("kind", "spelled"),
    [
        ("s3", "s3://{rest}"),
        ("s3", "s3a://{rest}"),
        ("s3", "S3://{rest}"),
        ("s3", "s3:/{rest}"),
        ("gcs", "gcs://{rest}"),
        ("gcs", "gs:/{rest}"),
        ("memory", "memory://{rest}"),
        ("memory", "memory:///{rest}"),
        ("memory", "memory:/{rest}"),
        ("memory", "memory://./{rest}"),
        ("memory", "memory://x/../{rest}"),
    ],
)
def test_results_are_spelled_as_the_pattern(kind: str, spelled: str, request: pytest.FixtureRequest) -> None:
    place: Place = request.getfixturevalue(f"{kind}_place")
    plant(place, {"d/x": b"", "d/e/y": b""})
    base = spelled.format(rest=place.base.partition("://")[2])
    with place.scope():
        assert sorted(glob.glob(f"{base}/*/*")) == [f"{base}/d/e", f"{base}/d/x"]
        assert sorted(glob.glob(f"{base}/d/**", recursive=True)) == [f"{base}/d/{n}" for n in ("", "e", "e/y", "x")]


def test_an_absolute_path_of_a_collapsed_url_is_found_and_kept(planted: Place) -> None:
    base = os.path.abspath(planted.base.replace("://", ":/"))
    with planted.scope():
        assert sorted(glob.glob(f"{base}/*.txt")) == [f"{base}/a.txt", f"{base}/b.txt"]


def test_results_of_the_root_are_spelled_as_the_root(planted: Place) -> None:
    name = planted.base.partition("://")[2]
    with planted.scope():
        assert planted.base in glob.glob("memory://*")
        assert glob.glob(f"memory://{name[:-1]}?") == [planted.base]
        assert glob.glob(f"memory:///{name[:-1]}?") == [f"memory:///{name}"]
        found = glob.glob("memory://**", recursive=True)
        assert found[0] == "memory://"
        assert planted.url("d/e/y.txt") in found


def test_magic_in_the_name_of_the_root_directory_means_itself(memory_place: Place) -> None:
    plant(memory_place, {"[d]*/x": b"", "d/y": b""})
    with memory_place.scope():
        assert glob.glob("*", root_dir=memory_place.url("[d]*")) == ["x"]


def test_an_absolute_local_pattern_does_not_begin_at_a_root_directory(planted: Place, tmp_path: Path) -> None:
    (tmp_path / "l").touch()
    with planted.scope():
        assert glob.glob(f"{tmp_path}/*", root_dir=planted.base) == [f"{tmp_path}/l"]


def test_a_url_as_pattern_does_not_begin_at_a_root_directory(planted: Place, tmp_path: Path) -> None:
    with planted.scope():
        assert glob.glob(planted.url("a*"), root_dir=tmp_path) == [planted.url("a.txt")]


@pytest.mark.parametrize("by_root", [False, True])
def test_a_directory_descriptor_is_refused(by_root: bool, planted: Place) -> None:
    with planted.scope(), pytest.raises(NotImplementedError, match="dir_fd"):
        if by_root:
            glob.glob("*", root_dir=planted.base, dir_fd=0)
        else:
            glob.glob(planted.url("*"), dir_fd=0)


def test_a_pattern_may_stand_in_the_name_of_a_bucket(s3_server: Server) -> None:
    stem = f"b-{uuid.uuid4().hex[:8]}"
    for name in (f"{stem}-1", f"{stem}-2"):
        s3_server.make_bucket(name)
        Place(f"s3://{name}", "s3").fs().pipe({f"s3://{name}/d/x": b""})
    with remote_io():
        assert sorted(glob.glob(f"s3://{stem}*/d/*")) == [f"s3://{stem}-1/d/x", f"s3://{stem}-2/d/x"]
        assert glob.glob(f"s3://{stem}-[2]/**/x", recursive=True) == [f"s3://{stem}-2/d/x"]
        assert {f"s3://{stem}-1", f"s3://{stem}-2/d/x"} <= set(glob.glob("s3://**", recursive=True))


def test_a_pattern_in_a_chain_is_looked_for_in_its_place(planted: Place, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("d/one.csv", "1")
        archive.writestr("d/two.txt", "2")
    chain = f"::file://{tmp_path}/a.zip"
    with planted.scope():
        assert glob.glob(f"zip://*/*.csv{chain}") == [f"zip://d/one.csv{chain}"]
        assert sorted(glob.glob(f"simplecache::{planted.url('*.txt')}")) == [
            f"simplecache::{planted.url('a.txt')}",
            f"simplecache::{planted.url('b.txt')}",
        ]


def test_an_archive_in_a_chain_that_changed_is_read_anew(tmp_path: Path) -> None:
    chain = f"::file://{tmp_path}/a.zip"
    with remote_io():
        for text in ("one", "another"):
            with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
                archive.writestr(f"d/{text}.csv", text)
            assert glob.glob(f"zip://d/*{chain}") == [f"zip://d/{text}.csv{chain}"]
            with open(f"zip://d/{text}.csv{chain}") as file:
                assert file.read() == text


# ---- keys that no disk has


def test_a_name_that_is_file_and_directory_is_found_once(gcs_place: Place) -> None:
    plant(gcs_place, {"d": b"", "d/x": b"", "e": b""})
    with gcs_place.scope():
        assert sorted(glob.glob(gcs_place.url("*"))) == [gcs_place.url("d"), gcs_place.url("e")]
        assert glob.glob(gcs_place.url("*/")) == [gcs_place.url("d/")]
        assert sorted(glob.glob(gcs_place.url("**/[dx]"), recursive=True)) == [gcs_place.url("d"), gcs_place.url("d/x")]


@pytest.mark.parametrize("pattern", ["*", "**", "d/*", "*/*"])
def test_empty_and_dotted_segments_are_passed_over(pattern: str, moto_place: Place) -> None:
    plant(moto_place, {"d//x": b"", "d/./y": b"", "/z": b"", "d/a": b""})
    expected = {"*": ["d"], "**": ["", "d", "d/a"], "d/*": ["d/a"], "*/*": ["d/a"]}[pattern]
    with moto_place.scope():
        found = glob.glob(moto_place.url(pattern), recursive=True)
    assert found == [moto_place.url(name) for name in expected]


def test_a_marker_is_a_directory_and_nothing_in_it(gcs_place: Place, gcs_server: Server) -> None:
    gcs_server.put(f"{gcs_place.base.partition('://')[2].partition('/')[2]}/d/m/", b"")
    with gcs_place.scope():
        assert glob.glob(gcs_place.url("d/*")) == [gcs_place.url("d/m")]
        assert glob.glob(gcs_place.url("**/"), recursive=True) == [gcs_place.url(name) for name in ("", "d/", "d/m/")]


def test_every_call_asks_anew(planted: Place) -> None:
    with planted.scope():
        before = glob.glob(planted.url("**/*.txt"), recursive=True)
        plant(planted, {"d/new.txt": b""})
        after = glob.glob(planted.url("**/*.txt"), recursive=True)
    assert set(after) - set(before) == {planted.url("d/new.txt")}


@pytest.mark.parametrize("kind", ["s3", "gcs"])
def test_the_order_is_the_same_every_time(kind: str, request: pytest.FixtureRequest) -> None:
    place: Place = request.getfixturevalue(f"{kind}_place")
    plant(place, {f"{n % 5}/{n}": b"" for n in range(50)})
    with place.scope():
        assert glob.glob(place.url("*/*")) == glob.glob(place.url("*/*"))


def test_threads_do_not_disturb_each_other(planted: Place) -> None:
    def find(pattern: str) -> list[str]:
        return sorted(glob.glob(planted.url(pattern), recursive=True))

    patterns = ["*.txt", "**/*.txt", "d/*", "nope/*"] * 25
    with planted.scope(), concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(find, patterns))
    assert found[:4] * 25 == found
    assert [len(one) for one in found[:4]] == [2, 4, 2, 0]


# ---- requests


@pytest.fixture(scope="module")
def wide_base(s3_server: Server) -> str:
    """A hundred directories of forty files each, on S3."""
    name = f"wide-{uuid.uuid4().hex[:8]}"
    s3_server.fill((f"{name}/d{n % 100:02}/f{n:04}.txt" for n in range(4000)), b"")
    return f"{s3_server.base}/{name}"


@pytest.fixture
def wide(wide_base: str, proxy: Proxy) -> Place:
    """The same through the proxy."""
    return Place(wide_base, "s3", proxy.storage_options)


Count = Callable[[str], int]


@pytest.fixture
def cost(proxy: Proxy, wide: Place) -> Count:
    """How many requests a pattern takes."""

    def count(pattern: str) -> int:
        with wide.scope(), proxy.counting() as requests:
            glob.glob(wide.url(pattern), recursive=True)
        return len(requests)

    return count


@pytest.mark.parametrize(
    ("pattern", "most"),
    [
        ("**", 5),
        ("**/*.txt", 5),
        ("*/*.txt", 6),
        ("*/f0001.txt", 6),
        ("*/nope", 6),
        ("*", 1),
        ("*/", 1),
        ("d0*/*.txt", 2),
        ("d0[12]/*.txt", 3),
        ("d01/*", 1),
        ("d01/f00*", 1),
        ("d01/f0001.txt", 1),
        ("[d]01/*", 2),
        ("nope/*/*", 1),
    ],
)
def test_a_pattern_takes_few_requests(pattern: str, most: int, cost: Count) -> None:
    assert cost(pattern) <= most


def test_a_walk_is_given_up_where_single_directories_are_cheaper(
    proxy: Proxy, proxy_place: Place, s3_server: Server
) -> None:
    start = proxy_place.base.removeprefix(f"{s3_server.base}/")
    s3_server.fill((f"{start}/d{n % 5}/s/f{n:05}" for n in range(6000)), b"")
    s3_server.fill((f"{start}/d{n}/x.txt" for n in range(5)), b"")
    with proxy_place.scope(), proxy.counting() as requests:
        found = glob.glob(proxy_place.url("*/*.txt"))
    assert sorted(found) == [proxy_place.url(f"d{n}/x.txt") for n in range(5)]
    assert len(requests) <= 10  # one by one it is 6


def test_a_walk_that_is_denied_is_done_without(proxy: Proxy, wide: Place) -> None:
    proxy.deny(operation="ListObjectsV2", target="^(?!.*delimiter)")
    with wide.scope():
        assert len(glob.glob(wide.url("*/*.txt"))) == 4000


@pytest.mark.parametrize(
    ("pattern", "listed"),
    [
        ("part-0*.txt", {"part-0"}),
        ("d/part-[0-9]*/*", {"d/part-"}),
        ("d/[[]x]*", {"d/[x]"}),
        ("a[*]b/c?", {"a*b"}),
        ("d/e/**", {"d/e/"}),
    ],
)
def test_listing_begins_with_what_is_literal(pattern: str, listed: set[str], proxy: Proxy, proxy_place: Place) -> None:
    with proxy_place.scope(), proxy.counting() as requests:
        assert glob.glob(proxy_place.url(pattern)) == []
    assert set(_prefixes(requests, proxy_place)) == listed


@pytest.mark.parametrize(
    ("part", "start"),
    [("abc", "abc"), ("a*", "a"), ("a?b", "a"), ("[ab]c", ""), ("[[]x]y*", "[x]y"), ("a[!]b", "a"), ("\udcff*", "")],
)
def test_the_literal_start_of_a_segment(part: str, start: str) -> None:
    assert literal_start(part) == start


# ---- failures


@pytest.mark.parametrize("pattern", ["*", "*/x", "**/x", "d/x", "d/"])
def test_a_denied_store_is_told(pattern: str, proxy: Proxy, proxy_place: Place) -> None:
    proxy.deny()
    with proxy_place.scope(), pytest.raises(PermissionError):
        glob.glob(proxy_place.url(pattern), recursive=True)


def test_a_failure_in_the_middle_is_told(proxy: Proxy, proxy_place: Place, s3_place: Place) -> None:
    plant(s3_place, {f"d{n}/x": b"" for n in range(3)})
    proxy.deny(operation="ListObjectsV2", skip=2)
    with proxy_place.scope(), pytest.raises(PermissionError):
        glob.glob(proxy_place.url("*/*"))


def test_an_unreachable_store_is_told() -> None:
    pytest.importorskip("s3fs")
    options = {"s3": {"key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:9"}}
    with remote_io(storage_options=options), pytest.raises(OSError, match="127.0.0.1|refused"):
        glob.glob("s3://bucket/*")


@pytest.mark.parametrize("pattern", ["*", "d/*", "**", "x", "x/"])
def test_in_a_missing_bucket_nothing_is_found(pattern: str, s3_server: Server) -> None:
    with remote_io():
        found = glob.glob(f"s3://no-such-bucket-here/{pattern}")
    assert found == []


def test_a_local_pattern_is_answered_by_the_original(planted: Place, tmp_path: Path) -> None:
    (tmp_path / "l").touch()
    with planted.scope():
        assert glob.glob(str(tmp_path / "*")) == [str(tmp_path / "l")]
        assert glob.glob("*", root_dir=tmp_path) == ["l"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="include_hidden came with Python 3.11")
def test_hidden_directories_are_walked_only_if_asked_for(memory_place: Place) -> None:
    plant(memory_place, {f".h{n}/x": b"" for n in range(5)})
    with memory_place.scope():
        assert glob.glob(memory_place.url("*/x")) == []
        options: dict[str, Any] = {"include_hidden": True}
        assert len(glob.glob(memory_place.url("*/x"), **options)) == 5

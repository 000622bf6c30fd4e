"""How many requests each answer costs on S3, counted by a proxy in front of a real server."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Callable

import pytest

from tests.conftest import Place
from tests.proxy import Proxy
from tests.servers import Server


def cost(proxy: Proxy, place: Place, call: Callable[[], object]) -> list[str]:
    """The operations of a call, once the store has been opened."""
    with place.scope():
        os.path.exists(place.url("warm-up"))
        with proxy.counting() as requests:
            call()
    return [request.operation for request in requests]


@pytest.mark.parametrize("name", ["d/file", "d", "missing", "d/", "missing/deep/er"])
def test_a_look_costs_two_at_most(name: str, proxy: Proxy, proxy_place: Place) -> None:
    proxy_place.put("d/file", b"x")
    assert len(cost(proxy, proxy_place, lambda: os.path.exists(proxy_place.url(name)))) <= 2
    assert len(cost(proxy, proxy_place, lambda: os.path.isdir(proxy_place.url(name)))) <= 2


@pytest.mark.parametrize("name", ["d/file", "d"])
def test_a_size_costs_two_at_most(name: str, proxy: Proxy, proxy_place: Place) -> None:
    proxy_place.put("d/file", b"x")
    assert len(cost(proxy, proxy_place, lambda: os.path.getsize(proxy_place.url(name)))) <= 2


def fill(server: Server, place: Place, names: list[str]) -> None:
    """Write many small files below a place."""
    below = place.base.partition("://")[2].partition("/")[2]
    server.fill(f"{below}/{name}" for name in names)


def test_a_directory_of_2500_names_costs_three(proxy: Proxy, proxy_place: Place, s3_server: Server) -> None:
    names = [f"{n:04d}" for n in range(2500)]
    fill(s3_server, proxy_place, [f"d/{name}" for name in names])
    found: list[str] = []
    costs = cost(proxy, proxy_place, lambda: found.extend(os.listdir(proxy_place.url("d"))))
    assert sorted(found) == names
    assert costs == ["ListObjectsV2"] * 3


def test_reading_a_small_file_costs_two_at_most(proxy: Proxy, proxy_place: Place) -> None:
    proxy_place.put("a", b"x")

    def read() -> None:
        with open(proxy_place.url("a")) as file:
            assert file.read() == "x"

    assert len(cost(proxy, proxy_place, read)) <= 2


def test_writing_costs_one_listing_at_most_and_the_upload(proxy: Proxy, proxy_place: Place) -> None:
    def write() -> None:
        with open(proxy_place.url("a"), "w") as file:
            file.write("x")

    assert cost(proxy, proxy_place, write) in (["ListObjectsV2", "PutObject"], ["PutObject"])


def test_makedirs_of_an_existing_directory_costs_one(proxy: Proxy, proxy_place: Place) -> None:
    proxy_place.put("d/file", b"x")
    assert len(cost(proxy, proxy_place, lambda: os.makedirs(proxy_place.url("d"), exist_ok=True))) == 1


def test_removing_costs_two(proxy: Proxy, proxy_place: Place) -> None:
    proxy_place.put("a", b"x")
    costs = cost(proxy, proxy_place, lambda: os.remove(proxy_place.url("a")))
    assert len(costs) <= 2
    assert costs[-1] == "DeleteObject"


def test_copying_costs_four_at_most_and_no_bytes_come_here(proxy: Proxy, proxy_place: Place) -> None:
    proxy_place.put("a", b"x")
    costs = cost(proxy, proxy_place, lambda: shutil.copy(proxy_place.url("a"), proxy_place.url("b")))
    assert len(costs) <= 4
    assert "CopyObject" in costs
    assert "GetObject" not in costs


def test_glob_lists_below_the_literal_stem_only(proxy: Proxy, proxy_place: Place) -> None:
    proxy_place.put("a/b/c/x.txt", b"x")
    proxy_place.put("other/y.txt", b"x")
    with proxy_place.scope(), proxy.counting() as requests:
        found = glob.glob(proxy_place.url("a/b/*/*.txt"))
    assert found == [proxy_place.url("a/b/c/x.txt")]
    stem = proxy_place.base.partition("://")[2].partition("/")[2] + "/a/b/"
    assert all(request.query["prefix"].startswith(stem) for request in requests if "prefix" in request.query)


@pytest.mark.slow
def test_a_tree_of_ten_thousand_keys(proxy: Proxy, proxy_place: Place, s3_server: Server) -> None:
    names = [f"tree/{n % 100:02d}/{n:05d}.txt" for n in range(10_000)]
    fill(s3_server, proxy_place, names)
    found: list[str] = []
    costs = cost(proxy, proxy_place, lambda: found.extend(glob.glob(proxy_place.url("tree/**/*.txt"), recursive=True)))
    assert sorted(found) == sorted(map(proxy_place.url, names))
    assert len(costs) <= 12
    costs = cost(proxy, proxy_place, lambda: shutil.rmtree(proxy_place.url("tree")))
    assert proxy_place.files() == {}
    assert len(costs) <= 25

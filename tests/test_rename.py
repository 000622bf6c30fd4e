"""``os.rename``, ``os.replace`` and what stands on them: the old or the new, whole, and never neither."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import remoteio
from tests.conftest import Place
from tests.oracle import Oracle, told
from tests.proxy import Proxy


@pytest.fixture
def oracle(store: Place, tmp_path: Path) -> Oracle:
    local = tmp_path / "oracle"
    local.mkdir()
    return Oracle(store, local)


def _renamed(function: Callable[..., None], source: str, target: str) -> Callable[[str], Any]:
    def program(base: str) -> Any:
        os.mkdir(f"{base}/void")
        try:
            function(f"{base}/{source}", f"{base}/{target}")
        except OSError as error:
            names = [str(name).replace(base, "<base>") for name in (error.filename, error.filename2)]
            return type(error).__name__, error.errno, names
        return os.path.exists(f"{base}/{source}"), os.path.isdir(f"{base}/{target}")

    return program


SOURCES = "a.txt empty d d/e void nope a.txt/ a.txt/x d/ br[1] br[1]/q.txt".split()
TARGETS = "new d/new a.txt ab.txt d dd d/e d/e/in void new/ a.txt/ a.txt/x d/x.txt/y void/ br[1]".split()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", SOURCES)
def test_rename(oracle: Oracle, source: str, target: str) -> None:
    oracle.agrees(_renamed(lambda *paths: os.rename(*paths), source, target), also="paths")


@pytest.mark.parametrize("target", ["new", "a.txt", "d", "void"])
@pytest.mark.parametrize("source", ["a.txt", "d", "nope"])
def test_replace(oracle: Oracle, source: str, target: str) -> None:
    oracle.agrees(_renamed(lambda *paths: os.replace(*paths), source, target), also="paths")


def test_parents_are_not_needed(memory_place: Place) -> None:
    memory_place.put("a", b"x")
    with memory_place.scope(also="paths"):
        os.rename(memory_place.url("a"), memory_place.url("p/q/b"))
    assert memory_place.files() == {"p/q/b": b"x"}


def test_empty_directories_come_along(oracle: Oracle) -> None:
    def program(base: str) -> Any:
        os.makedirs(f"{base}/d/hollow/er")
        os.rename(f"{base}/d", f"{base}/moved")
        left = os.path.exists(f"{base}/d")
        return os.path.isdir(f"{base}/moved/hollow/er"), left, sorted(os.listdir(f"{base}/moved"))

    oracle.agrees(program, also="paths")


def test_between_two_places_it_is_another_device(memory_place: Place, file_place: Place, tmp_path: Path) -> None:
    memory_place.put("a", b"x")
    (tmp_path / "l").write_bytes(b"l")
    pairs: list[tuple[str | Path, str]] = [
        (memory_place.url("a"), file_place.url("a")),
        (memory_place.url("a"), str(tmp_path / "a")),
        (tmp_path / "l", memory_place.url("l")),
    ]
    with remoteio.remote_io(also="paths"):
        for source, target in pairs:
            with pytest.raises(OSError) as caught:
                os.rename(source, target)
            assert caught.value.errno == errno.EXDEV
            assert caught.value.filename2 == target
    assert memory_place.files() == {"a": b"x"}


def test_a_bucket_keeps_its_name(s3_place: Place) -> None:
    bucket = s3_place.base.rpartition("/")[0]
    with s3_place.scope(also="paths"), pytest.raises(OSError) as caught:
        os.rename(bucket, f"{bucket}-2")
    assert caught.value.errno == errno.EBUSY


def test_directory_descriptors_are_refused(memory_place: Place) -> None:
    with memory_place.scope(also="paths"), pytest.raises(NotImplementedError):
        os.rename(memory_place.url("a"), memory_place.url("b"), src_dir_fd=0)


# ---- what it costs, and what a failure leaves


def test_write_then_replace_costs_one_copy_on_the_server(proxy: Proxy, proxy_place: Place) -> None:
    proxy_place.put("model.pt", b"old")
    with proxy_place.scope(also="paths"):
        os.path.exists(proxy_place.base)
        with proxy.counting() as requests:
            with open(proxy_place.url("model.pt.tmp"), "wb") as file:
                file.write(b"new")
            os.replace(proxy_place.url("model.pt.tmp"), proxy_place.url("model.pt"))
    costs = [request.operation for request in requests]
    assert costs.count("CopyObject") == 1
    assert costs.count("PutObject") == 1
    assert costs.count("GetObject") == 0
    assert len(costs) <= 7
    assert Place(proxy_place.base, "s3").files() == {"model.pt": b"new"}


@pytest.mark.parametrize("operation", ["CopyObject", "DeleteObject"])
def test_a_failed_replace_leaves_both_whole(proxy: Proxy, proxy_place: Place, operation: str) -> None:
    proxy_place.put("model.pt", b"old")
    proxy_place.put("tmp", b"new")
    proxy.deny(operation=operation)
    with proxy_place.scope(also="paths"), pytest.raises(PermissionError) as caught:
        os.replace(proxy_place.url("tmp"), proxy_place.url("model.pt"))
    assert caught.value.filename == proxy_place.url("tmp")
    assert caught.value.filename2 == proxy_place.url("model.pt")
    files = Place(proxy_place.base, "s3").files()
    assert files["tmp"] == b"new"
    assert files["model.pt"] == (b"old" if operation == "CopyObject" else b"new")


def test_a_copy_that_is_not_there_is_noticed(proxy: Proxy, proxy_place: Place) -> None:
    proxy_place.put("a", b"12345")
    # The store says yes, and somebody puts something else there at once.
    proxy.before(lambda: Place(proxy_place.base, "s3").put("b", b"oth"), operation="HeadObject", target="/b")
    with proxy_place.scope(also="paths"), pytest.raises(OSError, match="nothing was removed"):
        os.rename(proxy_place.url("a"), proxy_place.url("b"))
    assert Place(proxy_place.base, "s3").files()["a"] == b"12345"


def test_a_directory_is_moved_whole_or_not_at_all(proxy: Proxy, proxy_place: Place) -> None:
    names = [f"d/{n}" for n in range(5)]
    for name in names:
        proxy_place.put(name, name.encode())
    proxy.deny(operation="CopyObject", target="/3")
    with proxy_place.scope(also="paths"), pytest.raises(PermissionError, match="nothing was moved"):
        os.rename(proxy_place.url("d"), proxy_place.url("e"))
    assert Place(proxy_place.base, "s3").files() == {name: name.encode() for name in names}


def test_a_failed_removal_names_what_was_moved(proxy: Proxy, proxy_place: Place) -> None:
    for name in ("d/a", "d/b"):
        proxy_place.put(name, b"x")
    proxy.deny(operation="DeleteObjects")
    with proxy_place.scope(also="paths"), pytest.raises(OSError, match="at the old one too: a, b") as caught:
        os.rename(proxy_place.url("d"), proxy_place.url("e"))
    assert caught.value.filename2 == proxy_place.url("e")
    assert sorted(Place(proxy_place.base, "s3").files()) == ["d/a", "d/b", "e/a", "e/b"]


def test_a_directory_of_many_files_is_verified_by_its_listing(proxy: Proxy, proxy_place: Place) -> None:
    for n in range(20):
        proxy_place.put(f"d/{n}", b"x")
    with proxy_place.scope(also="paths"):
        os.path.exists(proxy_place.base)
        with proxy.counting() as requests:
            os.rename(proxy_place.url("d"), proxy_place.url("e"))
    costs = [request.operation for request in requests]
    assert costs.count("CopyObject") == 20
    assert len(costs) <= 28
    assert len(Place(proxy_place.base, "s3").files()) == 20


def test_renames_of_files_reach_the_original(file_place: Place) -> None:
    file_place.put("a", b"x")
    with file_place.scope(also="paths"):
        os.rename(file_place.url("a"), file_place.url("b"))
        outcome = told(lambda base: os.rename(f"{base}/a", f"{base}/c"), file_place.base)
    assert file_place.files() == {"b": b"x"}
    assert outcome == ("raised", "FileNotFoundError", 2, "<base>/a")


def test_a_store_that_renames_in_one_step_does(tmp_path: Path) -> None:
    from fsspec.implementations.local import LocalFileSystem

    from remoteio._store_generic import GenericStore

    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a").write_bytes(b"x")
    assert GenericStore("sftp", LocalFileSystem).move(str(tmp_path / "d"), str(tmp_path / "e"))
    assert (tmp_path / "e" / "a").read_bytes() == b"x"


def test_an_object_store_has_no_such_step(tmp_path: Path) -> None:
    from fsspec.implementations.local import LocalFileSystem

    from remoteio._store_generic import GenericStore

    assert not GenericStore("abfs", LocalFileSystem).move(str(tmp_path / "a"), str(tmp_path / "b"))

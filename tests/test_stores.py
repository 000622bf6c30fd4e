"""The stores themselves: one suite for memory, file, S3 and GCS, and what each has of its own."""

from __future__ import annotations

import errno
import gc
import glob
import io
import os
import shutil
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import remoteio
from remoteio import _stack, _store_s3, _stores, _transfer
from remoteio._settings import Settings
from remoteio.errors import MissingPackageError, ObjectChangedError

MIB = 2**20


def at(place: Any, name: str, **settings: Any) -> _stores.Location:
    url = _stores.parse(place.url(name) if name else place.base)
    assert url is not None
    return _stores.resolve(url, Settings(storage_options=(place.options,), **settings))


def write(location: _stores.Location, data: bytes, **keywords: Any) -> None:
    location.store.write(location.key, io.BytesIO(data), len(data), **keywords)


@pytest.fixture(params=["memory", "file", "s3", "gcs", "moto", "rclone"])
def place(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(f"{request.param}_place")


@pytest.fixture(params=["memory", "s3", "gcs", "moto", "rclone"])
def objects(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(f"{request.param}_place")


ODD = "odd ?*[x]#%20+{y}&=1,žluť日本😀"


@pytest.mark.parametrize("size", [0, 1, 100_000, 16 * MIB + 1])
def test_what_is_written_is_read(place: Any, size: int) -> None:
    location = at(place, "f.bin")
    data = os.urandom(size)
    write(location, data)
    info = location.store.head(location.key)
    assert info is not None and info.size == size
    assert location.store.read(location.key, info=info) == data


def test_a_multipart_upload_of_odd_parts_is_whole(s3_place: Any) -> None:
    location = at(s3_place, "parts.bin")
    data = os.urandom(37 * MIB + 5)
    write(location, data)
    assert s3_place.read("parts.bin") == data


def test_keys_are_literal(place: Any) -> None:
    location = at(place, ODD)
    write(location, b"odd")
    assert location.store.read(location.key) == b"odd"
    folder = at(place, "")
    assert [info.key for info in folder.store.scan(folder.key)] == [location.key]
    location.store.delete(location.key)
    assert location.store.head(location.key) is None


def test_a_key_that_looks_versioned_is_literal(moto_place: Any) -> None:
    location = at(moto_place, "a?versionId=1")
    write(location, b"x")
    folder = at(moto_place, "")
    assert [info.key for info in folder.store.scan(folder.key)] == [location.key]


def test_a_range_is_that_range(place: Any) -> None:
    location = at(place, "f")
    write(location, bytes(range(256)))
    info = location.store.head(location.key)
    assert location.store.read(location.key, 10, 20, info=info) == bytes(range(10, 20))
    assert location.store.read(location.key, 250, 300, info=info) == bytes(range(250, 256))
    assert location.store.read(location.key, 300, 400, info=info) == b""


def test_a_replaced_object_is_not_read(place: Any) -> None:
    location = at(place, "f")
    write(location, b"old" * 100)
    info = location.store.head(location.key)
    write(location, b"new" * 100)
    with pytest.raises(ObjectChangedError) as raised:
        location.store.read(location.key, 5, 10, info=info)
    assert raised.value.errno == errno.ESTALE
    assert raised.value.filename == location.url.text


def test_a_missing_key_has_no_head_and_no_bytes(place: Any) -> None:
    location = at(place, "nope")
    assert location.store.head(location.key) is None
    with pytest.raises(FileNotFoundError) as raised:
        location.store.read(location.key)
    assert (raised.value.errno, raised.value.filename) == (errno.ENOENT, location.url.text)


@pytest.mark.parametrize("size", [3, 17 * MIB])
def test_an_exclusive_write_never_replaces(place: Any, size: int) -> None:
    location = at(place, "x")
    write(location, b"first" + bytes(size), exclusive=True)
    with pytest.raises(FileExistsError) as raised:
        write(location, b"later" + bytes(size), exclusive=True)
    assert raised.value.errno == errno.EEXIST
    assert location.store.read(location.key, 0, 5) == b"first"


def test_a_source_that_is_too_short_publishes_nothing(place: Any) -> None:
    location = at(place, "short")
    with pytest.raises(OSError, match="bytes"):
        location.store.write(location.key, io.BytesIO(bytes(19_000_000)), 20_000_000)
    assert location.store.head(location.key) is None


def test_a_directory_is_what_has_something_below(place: Any) -> None:
    if place.kind == "file":
        os.makedirs(at(place, "d/e").key)
    write(at(place, "d/e/f"), b"x")
    for name, answer in {
        "d": True,
        "d/e": True,
        "d/e/f": False,
        "d/": True,
        "": True,
        "D": False,
        "d/e/": True,
    }.items():
        location = at(place, name)
        assert location.store.is_prefix(location.key) is answer, name


def test_half_a_name_is_no_directory(objects: Any) -> None:
    write(at(objects, "abc/x"), b"x")
    location = at(objects, "ab")
    assert not location.store.is_prefix(location.key)


def test_scan_gives_children_once_and_walk_gives_all(objects: Any) -> None:
    for name in ["a", "d/x", "d/y", "d/e/z", "dd/x"]:
        write(at(objects, name), name.encode())
    folder = at(objects, "")
    start = len(folder.key) + 1
    children = sorted((info.key[start:], info.is_dir, info.size) for info in folder.store.scan(folder.key))
    assert children == [("a", False, 1), ("d", True, 0), ("dd", True, 0)]
    everything = {info.key[start:] for info in folder.store.walk(folder.key) if not info.is_dir}
    assert everything == {"a", "d/x", "d/y", "d/e/z", "dd/x"}
    below = at(objects, "d")
    assert {info.key[start:] for info in below.store.walk(below.key)} == {"d/x", "d/y", "d/e/z"}


def test_markers_are_directories(s3_place: Any) -> None:
    location = at(s3_place, "m")
    location.store.make_directory(location.key, marker=True)
    location.store.forget_directories(location.key)
    assert location.store.is_prefix(location.key)
    assert list(location.store.scan(location.key)) == []
    assert [(info.key, info.is_dir) for info in location.store.walk(location.key)] == [(f"{location.key}/", True)]


def test_made_directories_exist_until_forgotten(objects: Any) -> None:
    location, parent, folder = at(objects, "new/deep"), at(objects, "new"), at(objects, "")
    location.store.make_directory(location.key)
    assert location.store.is_prefix(location.key) and parent.store.is_prefix(parent.key)
    assert [info.key for info in folder.store.scan(folder.key)] == [parent.key]
    parent.store.forget_directories(parent.key)
    assert not location.store.is_prefix(location.key)


def test_more_than_one_page_is_listed_whole(s3_place: Any, s3_server: Any) -> None:
    s3_server.fill(f"{s3_place.key}/many/{n:04}" for n in range(1500))
    s3_server.fill(f"{s3_place.key}/dirs/{n:04}/x" for n in range(1100))
    many, dirs = at(s3_place, "many"), at(s3_place, "dirs")
    assert len({info.key for info in many.store.scan(many.key)}) == 1500
    assert len([info for info in dirs.store.scan(dirs.key) if info.is_dir]) == 1100


def test_copy_is_whole(place: Any) -> None:
    source, target = at(place, "s"), at(place, "t?*")
    data = os.urandom(20 * MIB)
    write(source, data)
    info = source.store.head(source.key)
    assert info is not None
    source.store.copy(source.key, target.key, info)
    assert target.store.read(target.key) == data


@pytest.mark.parametrize("kind", ["memory", "s3"])  # moto and the emulator of GCS take no such condition
def test_a_source_that_was_replaced_is_not_copied(kind: str, request: pytest.FixtureRequest) -> None:
    place = request.getfixturevalue(f"{kind}_place")
    source, target = at(place, "s"), at(place, "t")
    write(source, b"old")
    info = source.store.head(source.key)
    assert info is not None
    write(source, b"newer")
    with pytest.raises(ObjectChangedError):
        source.store.copy(source.key, target.key, info)
    assert target.store.head(target.key) is None


def test_append_on_the_server_keeps_the_old_bytes(s3_place: Any) -> None:
    location = at(s3_place, "log")
    old = os.urandom(12 * MIB)
    write(location, old)
    info = location.store.head(location.key)
    assert info is not None
    assert location.store.append(location.key, info, io.BytesIO(b"tail"), 4)
    assert s3_place.read("log") == old + b"tail"


def test_delete_many_deletes_exactly_these(objects: Any) -> None:
    names = [f"k{n}" for n in range(30)] + ["a?c", "abc"]
    for name in names:
        write(at(objects, name), b"x")
    keys = [at(objects, name).key for name in names if name != "abc"]
    assert list(at(objects, "").store.delete_many(keys)) == []
    assert set(objects.files()) == {"abc"}


@pytest.mark.parametrize("kind", ["s3", "gcs"])
def test_a_missing_bucket_is_never_made(kind: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(f"{kind}_place")
    scheme = {"s3": "s3", "gcs": "gs"}[kind]
    url = _stores.parse(f"{scheme}://no-such-bucket-anywhere/a/b")
    assert url is not None
    location = _stores.resolve(url, Settings(storage_options=({"gs": {"token": "anon"}},)))
    with pytest.raises(FileNotFoundError):
        write(location, b"x")
    with pytest.raises(FileNotFoundError):
        location.store.make_directory(location.key)
    assert location.store.head(location.key) is None
    assert not location.store.is_prefix(location.key)
    assert not location.store.is_prefix("no-such-bucket-anywhere")


def test_a_directory_asked_for_again_stays_without_its_last_file(objects: Any) -> None:
    write(at(objects, "d/x"), b"x")
    with objects.scope():
        os.makedirs(objects.url("d"), exist_ok=True)
        os.remove(objects.url("d/x"))
        assert os.path.isdir(objects.url("d"))


# ---- resolving


def test_null_bytes_and_surrogates_are_refused() -> None:
    for text, error in [("memory://a\0b", ValueError), ("memory://a\udcff", OSError)]:
        url = _stores.parse(text)
        assert url is not None
        with pytest.raises(error):
            _stores.resolve(url)


def test_the_longest_prefix_of_the_innermost_scope_decides() -> None:
    inner = {"s3": {"who": "scheme"}, "s3://b": {"who": "bucket"}, "s3://b/deep": {"who": "deep"}}
    outer = {"s3://b/deep/er": {"who": "outer"}, "gcs": {"who": "gs"}}
    settings = Settings(storage_options=(inner, outer))

    def who(text: str) -> Any:
        url = _stores.parse(text)
        assert url is not None
        return _stores.options_for(url, settings).get("who")

    expected = {
        "s3://b/deep/er/x": "deep",
        "s3://b/deeper": "bucket",
        "s3a://b/deep": "deep",
        "s3://bb/x": "scheme",
        "gs://x/y": "gs",
        "memory://b": None,
    }
    assert {text: who(text) for text in expected} == expected


def test_two_endpoints_never_share_a_store(s3_server: Any) -> None:
    url = _stores.parse("s3://b/k")
    assert url is not None
    one = _stores.resolve(url, Settings(storage_options=({"s3": {"endpoint_url": "http://127.0.0.1:1"}},)))
    two = _stores.resolve(url, Settings(storage_options=({"s3": {"endpoint_url": "http://127.0.0.1:2"}},)))
    assert one.store is not two.store
    assert not one.store.same_store(two.store)
    again = _stores.resolve(url, Settings(storage_options=({"s3": {"endpoint_url": "http://127.0.0.1:1"}},)))
    assert again.store is one.store


def test_the_stores_used_last_are_kept_and_the_others_let_go(
    proxy_place: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A program may come with a new token every hour."""
    monkeypatch.setattr(_stores, "STORES_KEPT", 2)
    url, table = proxy_place.url("a"), proxy_place.options["s3"]
    proxy_place.put("a", b"0123456789" * 1000)
    used = []
    readers = []
    for number in range(5):
        with remoteio.remote_io(storage_options={"s3": {**table, "default_block_size": MIB + number}}):
            reader = open(url, "rb", buffering=0)  # noqa: SIM115
            readers.append(reader)
            assert reader.read(4) == b"0123"
            parsed = _stores.parse(url)
            assert parsed is not None
            location = _stores.resolve(parsed, _stack.current())
            _transfer.upload([(_written(tmp_path / "up"), location.child("b"))])
            used.append((weakref.ref(location.store), weakref.ref(location.store.fs)))
    assert len(_stores._CACHE) == 2
    assert [reader.read(4) for reader in readers] == [b"4567"] * 5
    for reader in readers:
        reader.close()
    del reader, readers, location
    end = time.monotonic() + 60
    wanted = [(False, False)] * 3 + [(True, True)] * 2
    while (left := [(store() is not None, fs() is not None) for store, fs in used]) != wanted:
        assert time.monotonic() < end, left
        time.sleep(0.1)  # the threads of obstore let go of what they held in their own time
        gc.collect()


def _written(path: Path) -> str:
    path.write_bytes(b"content")
    return str(path)


def test_another_environment_is_another_store(monkeypatch: pytest.MonkeyPatch) -> None:
    url = _stores.parse("s3://b/k")
    assert url is not None
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    one = _stores.resolve(url).store
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:2")
    assert _stores.resolve(url).store is not one


def test_a_missing_package_names_the_extra() -> None:
    error = _stores._missing("s3a", ImportError("no s3fs", name="s3fs"))
    assert isinstance(error, MissingPackageError) and isinstance(error, ImportError)
    assert "remoteio[s3]" in str(error)


def test_dots_are_resolved_and_never_climb_out_of_the_bucket() -> None:
    def key(text: str) -> str:
        url = _stores.parse(text)
        assert url is not None
        return _stores.resolve(url).key

    expected = {
        "s3://b/a/../c": "b/c",
        "s3://b/../../c": "b/c",
        "s3://b/./a//c//": "b/a//c",
        "s3:///b/k": "b/k",
        "memory://../x/.": "x",
        "memory:///x": "x",
        "file:///a/b/": "/a/b",
    }
    assert {text: key(text) for text in expected} == expected


# ---- what goes wrong


@pytest.fixture
def refused() -> Iterator[_stores.Location]:
    url = _stores.parse("s3://b/k")
    assert url is not None
    options = {"s3": {"endpoint_url": "http://127.0.0.1:9", "key": "AKIDSECRET", "secret": "sesame-open"}}
    yield _stores.resolve(url, Settings(storage_options=(options,)))


def test_a_dead_endpoint_is_a_connection_error(refused: _stores.Location) -> None:
    with pytest.raises(ConnectionError) as raised:
        refused.store.head(refused.key)
    assert raised.value.errno in (errno.ECONNREFUSED, errno.EHOSTUNREACH)
    assert raised.value.filename == "s3://b/k"
    with pytest.raises(ConnectionError):
        refused.store.is_prefix("b")


def test_no_secret_is_shown(refused: _stores.Location) -> None:
    import traceback

    with pytest.raises(OSError) as raised:
        refused.store.head(refused.key)
    shown = "".join(traceback.format_exception(raised.value)) + repr(raised.value) + repr(refused)
    assert "sesame" not in shown and "AKIDSECRET" not in shown


def test_wrong_credentials_are_a_permission_error(s3_place: Any) -> None:
    url = _stores.parse(s3_place.url("x"))
    assert url is not None
    settings = Settings(storage_options=({"s3": {"key": "nobody", "secret": "wrong"}},))
    location = _stores.resolve(url, settings)
    for ask in (location.store.head, location.store.is_prefix, location.store.read):
        with pytest.raises(PermissionError):
            ask(location.key)


def test_a_denied_head_of_a_missing_key_asks_a_listing(proxy: Any, s3_place: Any) -> None:
    proxy_options = Settings(storage_options=(proxy.storage_options,))
    url = _stores.parse(s3_place.url("nope"))
    assert url is not None
    location = _stores.resolve(url, proxy_options)
    proxy.deny(method="HEAD")
    assert location.store.head(location.key) is None


def test_denied_and_missing_that_cannot_be_told_apart_say_so(proxy: Any, s3_place: Any) -> None:
    url = _stores.parse(s3_place.url("nope"))
    assert url is not None
    location = _stores.resolve(url, Settings(storage_options=(proxy.storage_options,)))
    proxy.deny()
    with pytest.raises(PermissionError, match="cannot be told apart"):
        location.store.head(location.key)


# ---- what only large objects, other servers and unlucky moments bring


@pytest.mark.parametrize("kind", ["s3", "moto"])
def test_an_object_too_large_for_one_copy_is_copied_by_parts(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = request.getfixturevalue(f"{kind}_place")
    monkeypatch.setattr(_store_s3, "MAX_COPY", 8 * MIB)
    monkeypatch.setattr(_store_s3, "COPY_PART", 6 * MIB)
    source, target = at(place, "s"), at(place, "t?*")
    data = os.urandom(22 * MIB + 5)
    write(source, data)
    info = source.store.head(source.key)
    assert info is not None
    source.store.copy(source.key, target.key, info)
    assert target.store.read(target.key) == data


@pytest.mark.parametrize(("status", "code"), [(501, "NotImplemented"), (400, "InvalidRequest")])
def test_a_store_without_multi_object_delete_is_asked_for_each(
    proxy: Any, s3_place: Any, status: int, code: str
) -> None:
    for name in ("d/a", "d/b", "e"):
        s3_place.put(name, b"x")
    proxy.answer(status, code, "no such operation here", operation="DeleteObjects")
    with remoteio.remote_io(storage_options=proxy.storage_options):
        shutil.rmtree(s3_place.url("d"))
    assert set(s3_place.files()) == {"e"}
    assert proxy.tally["DeleteObject"] >= 2


def test_keys_that_may_not_be_deleted_one_by_one_are_each_told(proxy: Any, s3_place: Any) -> None:
    for name in ("d/a", "d/b"):
        s3_place.put(name, b"x")
    proxy.answer(501, "NotImplemented", "no such operation here", operation="DeleteObjects")
    proxy.deny(operation="DeleteObject")
    told: list[tuple[str, type[BaseException]]] = []
    with remoteio.remote_io(storage_options=proxy.storage_options):
        shutil.rmtree(s3_place.url("d"), onerror=lambda function, path, info: told.append((str(path), info[0])))
    assert (s3_place.url("d/a"), PermissionError) in told
    assert (s3_place.url("d/b"), PermissionError) in told
    assert set(s3_place.files()) == {"d/a", "d/b"}


def test_a_denied_multi_object_delete_is_told(proxy: Any, s3_place: Any) -> None:
    s3_place.put("d/a", b"x")
    proxy.deny(operation="DeleteObjects")
    with remoteio.remote_io(storage_options=proxy.storage_options), pytest.raises(PermissionError):
        shutil.rmtree(s3_place.url("d"))
    assert set(s3_place.files()) == {"d/a"}


@pytest.mark.parametrize("kind", ["s3", "gcs", "moto"])
def test_the_buckets_are_the_directories_of_the_root(kind: str, request: pytest.FixtureRequest) -> None:
    place = request.getfixturevalue(f"{kind}_place")
    scheme, _, rest = place.base.partition("://")
    bucket = rest.partition("/")[0]
    options = {scheme: next(iter(place.options.values()))} if place.options else None
    with remoteio.remote_io(storage_options=options):
        assert bucket in os.listdir(f"{scheme}://")
        assert f"{scheme}://{bucket}" in glob.glob(f"{scheme}://*")
        assert os.path.isdir(f"{scheme}://{bucket}")


@pytest.mark.parametrize("kind", ["s3", "gcs"])
def test_an_object_replaced_before_it_is_fetched_is_not_fetched(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    location = at(request.getfixturevalue(f"{kind}_place"), "f")
    write(location, b"old")
    info = location.store.head(location.key)
    assert info is not None
    write(location, b"new")
    for engine in ("fsspec", None):
        with pytest.raises(ObjectChangedError):
            _transfer.download([(location, info, str(tmp_path / "f"))], engine=engine, progress=False)
    assert os.listdir(tmp_path) == []


def test_an_object_of_gcs_that_is_gone_says_so_when_it_is_fetched(gcs_place: Any, tmp_path: Path) -> None:
    location = at(gcs_place, "f")
    write(location, b"old")
    info = location.store.head(location.key)
    assert info is not None
    location.store.delete(location.key)
    with pytest.raises(FileNotFoundError) as caught:
        _transfer.download([(location, info, str(tmp_path / "f"))], engine="fsspec", progress=False)
    assert caught.value.filename == gcs_place.url("f")
    assert os.listdir(tmp_path) == []


def test_a_resumable_upload_whose_source_breaks_publishes_nothing(gcs_place: Any) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() >= 40 * MIB:
                raise OSError(errno.EIO, "the disk is broken")
            return super().read(size)

    location = at(gcs_place, "f")
    size = 80 * MIB
    with pytest.raises(OSError, match="the disk is broken"):
        location.store.write(location.key, Broken(bytes(size)), size)
    assert location.store.head(location.key) is None


@pytest.mark.parametrize("size", [3, 9 * MIB])
def test_a_store_without_ranges_is_streamed(disk_place: Any, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    data = os.urandom(size)
    url = disk_place.put("f", data)
    with disk_place.scope():
        assert os.path.exists(url)
        monkeypatch.setattr(at(disk_place, "f").store, "can_range", False)
        with open(url, "rb") as file:
            assert file.read(2) == data[:2]
            assert file.read() == data[2:]
        with open(url, "r+b") as file:
            file.seek(0, os.SEEK_END)
            file.write(b"more")
    assert disk_place.read("f") == data + b"more"


def test_a_local_store_lists_and_removes_trees(file_place: Any) -> None:
    root = at(file_place, "")
    for name in ("a/x", "a/b/y"):
        file_place.put(name, b"x")
    os.symlink("/", f"{root.key}/a/link")
    assert sorted(info.key.removeprefix(f"{root.key}/") for info in root.store.walk(root.key)) == [
        "a/",
        "a/b/",
        "a/b/y",
        "a/link",
        "a/x",
    ]
    assert list(root.store.walk(f"{root.key}/nothing")) == []
    failed = dict(root.store.delete_many([f"{root.key}/a/x", f"{root.key}/a/b/", f"{root.key}/a/nothing"]))
    assert {key.removeprefix(f"{root.key}/"): error.errno for key, error in failed.items()} == {
        "a/b/": errno.ENOTEMPTY,
        "a/nothing": errno.ENOENT,
    }
    root.store.forget_directories(f"{root.key}/a")
    assert os.listdir(root.key) == []
    with pytest.raises(FileNotFoundError):
        root.store.forget_directories(f"{root.key}/a")


def test_a_local_copy_is_made_beside_and_moved(file_place: Any) -> None:
    source, target = at(file_place, "s"), at(file_place, "t")
    write(source, b"data")
    info = source.store.head(source.key)
    assert info is not None
    source.store.copy(source.key, target.key, info)
    assert file_place.files() == {"s": b"data", "t": b"data"}
    assert not target.store.append(target.key, info, io.BytesIO(b"x"), 1)
    with pytest.raises(FileNotFoundError):
        source.store.copy(f"{source.key}-nothing", target.key, info)
    assert file_place.files() == {"s": b"data", "t": b"data"}
    os.chmod(os.path.dirname(target.key), 0o700)
    with pytest.raises(NotADirectoryError):
        write(at(file_place, "s/below"), b"x")
    with pytest.raises(OSError, match="s"):
        source.store.make_directory(f"{source.key}/below")
    with pytest.raises(IsADirectoryError):
        source.store.delete(os.path.dirname(source.key))
    source.store.delete(f"{source.key}-nothing")

"""Writing: everything a local file can do, published whole at the end or not at all."""

# ruff: noqa: SIM115, SIM117 - how and when a file is closed is what these programs are about

from __future__ import annotations

import contextlib
import errno
import gc
import io
import os
import random
import threading
from typing import Any

import pytest

from remoteio import _local_copy, _spool, remote_io
from remoteio.errors import ObjectChangedError
from tests.conftest import Place
from tests.proxy import Proxy

MIB = 2**20


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.fixture
def descriptors() -> Any:
    """Fails a test that leaves a temporary file open."""

    def nameless() -> int:
        links = []
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                links.append(os.readlink(f"/proc/self/fd/{number}"))
        return sum(link.endswith("(deleted)") for link in links)

    before = nameless()
    yield
    gc.collect()
    assert nameless() <= before


# ---- whole or not at all


@pytest.mark.parametrize("mode", ["wb", "ab", "r+b", "w+b"])
@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, SystemExit])
def test_an_exception_leaves_the_old_object(mode: str, error: type[BaseException], remote: Place) -> None:
    url = remote.put("f", b"old")
    with remote.scope(), pytest.raises(error), open(url, mode) as file:
        file.write(b"new")
        file.flush()
        raise error
    assert remote.files() == {"f": b"old"}


def test_an_exception_leaves_nothing_where_nothing_was(remote: Place) -> None:
    with remote.scope(), pytest.raises(KeyError), open(remote.url("f"), "x") as file:
        file.write("new")
        raise KeyError
    assert remote.files() == {}


@pytest.mark.parametrize("size", [0, 1, _spool.MEMORY_LIMIT, _spool.MEMORY_LIMIT + 1, 3 * _spool.MEMORY_LIMIT])
def test_what_was_written_is_what_is_there(size: int, remote: Place) -> None:
    data = content(size)
    with remote.scope(), open(remote.url("f"), "wb") as file:
        for start in range(0, size, 700_000):
            file.write(data[start : start + 700_000])
    assert remote.read("f") == data


def test_nothing_is_there_before_the_close(remote: Place) -> None:
    with remote.scope():
        file = open(remote.url("f"), "w")
        file.write("x" * 100_000)
        file.flush()
        assert remote.files() == {}
        file.close()
        file.close()
    assert list(remote.files()) == ["f"]


def test_opening_and_closing_makes_an_empty_file(remote: Place) -> None:
    with remote.scope():
        for name, mode in ("w", "w"), ("a", "a"), ("x", "x"), ("ap", "a+"):
            open(remote.url(name), mode).close()
    assert remote.files() == dict.fromkeys(["w", "a", "x", "ap"], b"")


def test_an_exclusive_file_that_appears_meanwhile_is_kept(remote: Place) -> None:
    with remote.scope():
        file = open(remote.url("f"), "x")
        file.write("mine")
        remote.put("f", b"theirs")
        with pytest.raises(FileExistsError):
            file.close()
        assert file.closed
    assert remote.read("f") == b"theirs"


def test_one_writers_failure_is_its_own(memory_place: Place) -> None:
    with memory_place.scope(), open(memory_place.url("good"), "w") as good:
        with contextlib.suppress(KeyError), open(memory_place.url("bad"), "w") as bad:
            good.write("good")
            bad.write("bad")
            raise KeyError
    assert memory_place.files() == {"good": b"good"}


def test_a_publication_that_fails_closes_and_keeps_the_old(proxy: Proxy, proxy_place: Place, descriptors: Any) -> None:
    url = proxy_place.put("f", b"old")
    with proxy_place.scope():
        file = open(url, "wb")
        file.write(bytes(9 * MIB))
        proxy.deny(method="PUT")
        proxy.deny(method="POST")
        with pytest.raises(PermissionError):
            file.close()
        assert file.closed
        file.close()
        proxy.clear()
        del file
    assert proxy_place.read("f") == b"old"


# ---- a full disk


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("caught", [False, True])
def test_a_full_disk_under_the_spool_publishes_nothing(
    caught: bool, memory_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = memory_place.put("f", b"old")
    monkeypatch.setattr(_spool, "MEMORY_LIMIT", 0)
    monkeypatch.setattr(_local_copy, "temporary", lambda: io.FileIO("/dev/full", "r+"))
    with memory_place.scope(), pytest.raises(OSError, match="No space left"), open(url, "wb", 0) as file:
        if caught:  # whoever goes on after it is told at the end
            with contextlib.suppress(OSError):
                file.write(b"new")
        else:
            file.write(b"new")
    assert memory_place.read("f") == b"old"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("mode", ["w", "wb"])
def test_a_flush_that_fails_in_close_publishes_nothing(
    mode: str, memory_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = memory_place.put("f", b"old")
    with memory_place.scope():
        file: Any = open(url, mode)
        file.write(b"new" if "b" in mode else "new")
        monkeypatch.setattr(_spool, "MEMORY_LIMIT", 0)
        monkeypatch.setattr(_local_copy, "temporary", lambda: io.FileIO("/dev/full", "r+"))
        with pytest.raises(OSError, match="No space left"):
            file.close()
        assert file.closed
    assert memory_place.read("f") == b"old"


# ---- a file like any other


def test_a_descriptor_is_a_real_one(remote: Place) -> None:
    with remote.scope(), open(remote.url("f"), "w+b") as file:
        file.write(b"one")
        file.flush()
        os.write(file.fileno(), b"two")
        assert file.seek(0) == 0
        assert file.read() == b"onetwo"
        os.fsync(file.fileno())
    assert remote.read("f") == b"onetwo"


def test_a_descriptor_of_an_appending_handle_appends(memory_place: Place) -> None:
    url = memory_place.put("f", b"old")
    with memory_place.scope(), open(url, "ab", 0) as file:
        descriptor = file.fileno()
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, b"new")
        file.seek(0)
        file.write(b"er")
    assert memory_place.read("f") == b"oldnewer"


def test_temporary_files_go_with_the_handle(memory_place: Place, descriptors: Any) -> None:
    with memory_place.scope():
        for error in (None, KeyError):
            with contextlib.suppress(KeyError), open(memory_place.url("f"), "wb") as file:
                file.write(bytes(9 * MIB))
                if error:
                    raise error


def test_update_without_a_change_publishes_nothing(proxy: Proxy, proxy_place: Place) -> None:
    url = proxy_place.put("f", b"old")
    with proxy_place.scope(), proxy.counting() as requests:
        with open(url, "r+") as file:
            assert file.read() == "old"
        open(url, "a").close()
    assert "PutObject" not in [request.operation for request in requests]


def test_an_object_changed_by_another_is_not_undone_by_an_update(remote: Place) -> None:
    url = remote.put("f", b"old")
    with remote.scope(), pytest.raises(ObjectChangedError), open(url, "r+b") as file:
        file.write(b"M")
        remote.put("f", b"theirs")
    assert remote.read("f") == b"theirs"


# ---- appending


@pytest.mark.parametrize("size", [3, 6 * MIB, 9 * MIB])
def test_appending(size: int, remote: Place) -> None:
    old, new = content(size), content(100_000, 2)
    url = remote.put("f", old)
    with remote.scope(), open(url, "ab") as file:
        assert file.tell() == size
        file.write(new)
        assert file.tell() == size + len(new)
    assert remote.read("f") == old + new


def test_appending_to_a_large_object_moves_only_what_is_new(proxy: Proxy, proxy_place: Place) -> None:
    old = content(20 * MIB)
    url = proxy_place.put("f", old)
    with proxy_place.scope():
        with proxy.counting() as requests, open(url, "ab") as file:
            file.write(b"tail")
        assert "GetObject" not in [request.operation for request in requests]
        assert "UploadPartCopy" in [request.operation for request in requests]
    assert proxy_place.read("f") == old + b"tail"


def test_appending_and_reading_back_the_old(remote: Place) -> None:
    old = content(9 * MIB)
    url = remote.put("f", old)
    with remote.scope(), open(url, "a+b") as file:
        file.write(b"tail")
        file.seek(-6, os.SEEK_END)
        assert file.read() == old[-2:] + b"tail"
        file.seek(0)
        file.write(b"more")
    assert remote.read("f") == old + b"tailmore"


@pytest.mark.parametrize("size", [3, 9 * MIB])
@pytest.mark.parametrize("looked", [False, True])
def test_two_that_append_lose_nothing(size: int, looked: bool, remote: Place) -> None:
    old = bytes(size)
    url = remote.put("f", old)
    with remote.scope(), open(url, "a+b") as one, open(url, "ab") as two:
        if looked:
            one.seek(0)
            one.read(1)
        one.write(b"one")
        two.write(b"two")
    assert remote.read("f") == old + b"twoone"


def test_a_log_deleted_meanwhile_starts_anew(memory_place: Place) -> None:
    url = memory_place.put("f", b"old")
    with memory_place.scope(), open(url, "a") as file:
        os.remove(url)
        file.write("new")
    assert memory_place.read("f") == b"new"


# ---- publishing what there is so far


def test_flush_publishes_at_most_so_often(remote: Place) -> None:
    url = remote.url("f.log")
    with remote.scope(flush_interval_s=3600), open(url, "w") as file:
        file.write("one\n")
        file.flush()
        assert remote.read("f.log") == b"one\n"
        file.write("two\n")
        file.flush()
        assert remote.read("f.log") == b"one\n"
    assert remote.read("f.log") == b"one\ntwo\n"


@pytest.mark.parametrize("mode", ["w", "a", "x", "r+"])
def test_flush_may_publish_every_time(mode: str, remote: Place) -> None:
    url = remote.url("f.log")
    if mode == "r+":
        remote.put("f.log", b"")
    with remote.scope(flush_interval_s=0):
        with contextlib.suppress(KeyError), open(url, mode, buffering=1) as file:
            file.write("one\n")
            assert remote.read("f.log") == b"one\n"
            file.write("two\n")
            assert remote.read("f.log") == b"one\ntwo\n"
            file.write("three")
            raise KeyError
        assert remote.read("f.log") == b"one\ntwo\n"


def test_flush_of_an_appended_log_keeps_what_others_append(remote: Place) -> None:
    url = remote.put("f.log", b"old\n")
    with remote.scope(flush_interval_s=0):
        one, two = open(url, "a"), open(url, "a")
        for number in range(3):
            one.write(f"one {number}\n")
            one.flush()
            two.write(f"two {number}\n")
            two.flush()
        one.close()
        two.close()
    assert remote.read("f.log") == b"old\none 0\ntwo 0\none 1\ntwo 1\none 2\ntwo 2\n"


def test_flush_publishes_nothing_unless_the_scope_says_so(memory_place: Place) -> None:
    with memory_place.scope(), open(memory_place.url("f"), "w") as file:
        file.write("x")
        file.flush()
        assert memory_place.files() == {}


# ---- threads


def test_two_threads_write_into_one_handle(memory_place: Place) -> None:
    with memory_place.scope(), open(memory_place.url("f"), "ab", 0) as file:

        def write(letter: bytes) -> None:
            for _ in range(500):
                file.write(letter * 10)

        threads = [threading.Thread(target=write, args=(letter,)) for letter in (b"a", b"b")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    data = memory_place.read("f")
    assert len(data) == 10_000
    assert {data[start : start + 10] for start in range(0, 10_000, 10)} == {b"a" * 10, b"b" * 10}


def test_a_handle_outlives_its_scope(memory_place: Place) -> None:
    with remote_io():
        file = open(memory_place.url("f"), "w")
    file.write("late")
    file.close()
    assert memory_place.read("f") == b"late"


@pytest.mark.parametrize("place", ["memory_place", "s3_place"])
def test_what_was_added_in_update_mode_is_not_put_behind_somebody_elses_file(
    place: str, request: pytest.FixtureRequest
) -> None:
    where: Place = request.getfixturevalue(place)
    where.put("f", b"one")
    with where.scope():
        file = open(where.url("f"), "r+")
        file.read()
        file.write("two")
        where.put("f", b"other")
        with pytest.raises(ObjectChangedError):
            file.close()
    assert where.read("f") == b"other"


# ---- edges


def test_an_empty_write_and_a_long_truncation(remote: Place) -> None:
    with remote.scope(), open(remote.url("f"), "wb", 0) as file:
        assert file.write(b"") == 0
        assert file.truncate(_spool.MEMORY_LIMIT + 5) == _spool.MEMORY_LIMIT + 5
        assert file.seek(0, os.SEEK_END) == _spool.MEMORY_LIMIT + 5
    assert remote.read("f") == bytes(_spool.MEMORY_LIMIT + 5)


def test_a_disk_that_fills_up_while_the_old_bytes_are_fetched(
    memory_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = memory_place.put("f", bytes(_spool.MEMORY_LIMIT + 1))
    with memory_place.scope():
        file = open(url, "r+b", 0)
        monkeypatch.setattr(_local_copy, "temporary", lambda: io.FileIO("/dev/full", "r+"))
        with pytest.raises(OSError) as caught:
            file.read(1)
        assert caught.value.errno == errno.ENOSPC
        monkeypatch.undo()
        assert file.read(1) == b"\0"
        file.close()
    assert memory_place.read("f") == bytes(_spool.MEMORY_LIMIT + 1)


def test_a_writer_that_is_interrupted_publishes_nothing(memory_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(io.BytesIO):
        def write(self, data: Any) -> int:
            raise KeyboardInterrupt

    memory_place.put("f", b"old")
    with memory_place.scope():
        file = open(memory_place.url("f"), "wb", 0)
        file._take(Interrupted())  # type: ignore[attr-defined]
        with pytest.raises(KeyboardInterrupt):
            file.write(b"new")
        with pytest.raises(OSError, match="nothing was published"):
            file.close()
    assert memory_place.read("f") == b"old"


@pytest.mark.parametrize("old", [None, b"old\n"])
def test_two_handles_that_append_keep_each_others_lines(remote: Place, old: bytes | None) -> None:
    url = remote.url("log") if old is None else remote.put("log", old)
    with remote.scope():
        handles = [open(url, "a") for _ in range(3)]
        for number, handle in enumerate(handles):
            handle.write(f"{number}\n")
        for handle in handles:
            handle.close()
    assert remote.read("log") == (old or b"") + b"0\n1\n2\n"


@pytest.mark.parametrize("old", [None, b"old\n"])
def test_threads_that_append_keep_each_others_lines(remote: Place, old: bytes | None) -> None:
    url = remote.url("log") if old is None else remote.put("log", old)

    def append(number: int) -> None:
        for line in range(3):
            with open(url, "a") as file:
                file.write(f"{number}.{line}\n")

    with remote.scope():
        threads = [threading.Thread(target=append, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    lines = remote.read("log").removeprefix(old or b"").decode().split()
    assert sorted(lines) == [f"{number}.{line}" for number in range(4) for line in range(3)]


def test_an_append_of_another_process_in_the_last_moment_is_kept(
    s3_place: Place, proxy_place: Place, proxy: Any
) -> None:
    """The store compares: a look before the write would come too early."""
    s3_place.put("log", b"old\n")
    proxy.before(lambda: s3_place.put("log", b"old\ntheirs\n"), operation="PutObject", times=1)
    with proxy_place.scope(), open(proxy_place.url("log"), "a") as file:
        file.write("mine\n")
    assert s3_place.read("log") == b"old\ntheirs\nmine\n"


def test_an_update_is_not_published_over_what_came_in_the_last_moment(
    s3_place: Place, proxy_place: Place, proxy: Any
) -> None:
    s3_place.put("a", b"old")
    proxy.before(lambda: s3_place.put("a", b"theirs"), operation="PutObject", times=1)
    with pytest.raises(OSError, match="replaced"), proxy_place.scope(), open(proxy_place.url("a"), "r+b") as file:
        file.write(b"new")
    assert s3_place.read("a") == b"theirs"


def test_an_update_whose_answer_is_lost_is_published(s3_place: Place, proxy_place: Place, proxy: Any) -> None:
    s3_place.put("a", b"old")
    proxy.lose_response(operation="PutObject", times=1)
    with proxy_place.scope(), open(proxy_place.url("a"), "r+b") as file:
        file.write(b"new")
    assert s3_place.read("a") == b"new"


@pytest.mark.parametrize("old", [b"", b"old\n", bytes(9 * 2**20)])
@pytest.mark.parametrize("mode", ["ab", "r+b"])
def test_what_was_appended_is_there_once_though_the_answer_was_lost(
    s3_place: Place, proxy_place: Place, proxy: Any, old: bytes, mode: str
) -> None:
    if old or mode == "r+b":
        s3_place.put("log", old)
    for operation in ("PutObject", "CompleteMultipartUpload"):
        proxy.lose_response(operation=operation, times=1)
    with proxy_place.scope(), open(proxy_place.url("log"), mode) as file:
        file.seek(0, os.SEEK_END)
        file.write(b"new\n")
    assert s3_place.read("log") == old + b"new\n"

"""Reading by ranges: how much is asked for, what is kept, and that versions are never mixed."""

from __future__ import annotations

import contextlib
import http.server
import io
import os
import random
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoteio import _counters, remote_io
from remoteio.errors import ObjectChangedError
from tests.conftest import Place
from tests.proxy import Proxy

MIB = 2**20


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def fetched(scheme: str) -> int:
    return _counters.snapshot().get(("open", scheme), _counters.Counts()).bytes_read


@pytest.mark.parametrize("size", [0, 1, 256 * 1024, MIB, MIB + 1, 9 * MIB + 7])
def test_whole_files(size: int, remote: Place) -> None:
    data = content(size)
    url = remote.put("f", data)
    with remote.scope():
        with open(url, "rb") as file:
            assert file.read() == data
            assert file.read() == b""
        with open(url, "rb", 0) as file:
            assert file.readall() == data


@pytest.mark.parametrize("step", [1000, 64 * 1024, 3 * MIB, 20 * MIB])
def test_pieces_in_a_row(step: int, remote: Place) -> None:
    data = content(7 * MIB + 11)
    with remote.scope(), open(remote.put("f", data), "rb") as file:
        pieces = []
        while piece := file.read(step):
            pieces.append(piece)
    assert b"".join(pieces) == data


def test_random_places(remote: Place) -> None:
    data = content(5 * MIB)
    choose = random.Random(3)
    with remote.scope(), open(remote.put("f", data), "rb") as file:
        for _ in range(60):
            start, size = choose.randrange(len(data) + 10), choose.choice([0, 1, 100, 70_000, 600_000])
            if choose.random() < 0.3:
                start = file.tell()
            file.seek(start)
            assert file.read(size) == data[start : start + size]
            assert file.tell() == start + len(data[start : start + size])


def test_an_unbuffered_read_gives_all_that_was_asked_for(memory_place: Place) -> None:
    data = content(3 * MIB)
    with memory_place.scope(), open(memory_place.put("f", data), "rb", 0) as file:
        assert file.read(10) == data[:10]
        assert file.read(2 * MIB) == data[10 : 10 + 2 * MIB]


def test_a_sequential_run_costs_few_requests(proxy: Proxy, proxy_place: Place) -> None:
    data = content(24 * MIB)
    url = proxy_place.put("f", data)
    with proxy_place.scope(), proxy.counting() as requests, open(url, "rb") as file:
        assert b"".join(iter(lambda: file.read(100_000), b"")) == data
    assert len(requests) <= 12


def test_a_sequential_run_is_fetched_ahead_in_parallel(proxy: Proxy, proxy_place: Place) -> None:
    url = proxy_place.put("f", content(56 * MIB))
    with proxy_place.scope(), open(url, "rb") as file:
        file.read(MIB)
        proxy.reset()
        proxy.delay(0.5)
        file.read(40 * MIB)
        times = [request.at for request in proxy.requests]
        assert sum(when - times[0] < 0.3 for when in times) >= 3


def test_a_look_here_and_there_fetches_little(memory_place: Place) -> None:
    url = memory_place.put("f", bytes(64 * MIB))
    before = fetched("memory")
    with memory_place.scope(), open(url, "rb") as file:
        for place in range(0, 64 * MIB, 8 * MIB):
            file.seek(place)
            file.read(10)
    assert fetched("memory") - before <= 8 * 256 * 1024


def test_reading_everything_takes_its_size_once_and_a_few_blocks(memory_place: Place) -> None:
    url = memory_place.put("f", bytes(128 * MIB))
    with memory_place.scope(), open(url, "rb") as file:
        tracemalloc.start()
        try:
            data = file.read()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert len(data) == 128 * MIB
    assert peak < (128 + 48) * MIB


def test_going_through_lines_keeps_a_few_blocks(memory_place: Place) -> None:
    line = b"x" * 65535 + b"\n"
    url = memory_place.put("f", line * 2048)
    with memory_place.scope(), open(url) as file:
        tracemalloc.start()
        try:
            count = sum(1 for _ in file)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert count == 2048
    assert peak < 56 * MIB


def test_an_object_replaced_while_it_is_read_is_never_mixed(remote: Place) -> None:
    if remote.kind == "file":
        pytest.skip("a local file that is written in place changes under every reader")
    old, new = b"o" * (6 * MIB), b"n" * (6 * MIB)
    url = remote.put("f", old)
    with remote.scope(), open(url, "rb") as file:
        first = file.read(10)
        remote.put("f", new)
        try:
            assert first + file.read() == old
        except ObjectChangedError as error:
            assert isinstance(error, OSError)
            assert error.filename == url


def test_an_object_deleted_while_it_is_read(s3_place: Place) -> None:
    url = s3_place.put("f", bytes(6 * MIB))
    with s3_place.scope(), open(url, "rb") as file:
        file.read(10)
        os.remove(url)
        with pytest.raises(FileNotFoundError):
            file.read()


def test_a_failed_read_can_be_tried_again(proxy: Proxy, proxy_place: Place) -> None:
    data = content(6 * MIB)
    url = proxy_place.put("f", data)
    with proxy_place.scope(), open(url, "rb") as file:
        assert file.read(300_000) == data[:300_000]
        proxy.deny()
        with pytest.raises(PermissionError):
            file.read()
        proxy.clear()
        file.seek(300_000)
        assert file.read() == data[300_000:]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_reads_on_where_the_parent_was(s3_place: Place) -> None:
    data = content(24 * MIB)
    with s3_place.scope(), open(s3_place.put("f", data), "rb") as file:
        assert file.read(2 * MIB) == data[: 2 * MIB]  # others are on their way now
        child = os.fork()
        if not child:
            os._exit(0 if file.read() == data[2 * MIB :] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert file.read() == data[2 * MIB :]


def test_two_threads_share_a_handle(memory_place: Place) -> None:
    url = memory_place.put("f", bytes(range(256)) * 4096)
    wrong: list[int] = []

    def look(seed: int) -> None:
        choose = random.Random(seed)
        for _ in range(200):
            with lock:
                file.seek(start := choose.randrange(MIB - 10))
                got = file.read(1)
            if got[0] != start % 256:
                wrong.append(start)

    lock = threading.Lock()
    with memory_place.scope(), open(url, "rb") as file:
        threads = [threading.Thread(target=look, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_text_over_a_reader(memory_place: Place) -> None:
    with memory_place.scope(), open(memory_place.put("f", "žluť\n" * 1000), "rb") as raw:
        assert io.TextIOWrapper(raw, encoding="utf-8").readlines() == ["žluť\n"] * 1000


# ---- what has no size, or no ranges


class Unsized(http.server.BaseHTTPRequestHandler):
    """Answers without a length, and knows no ranges."""

    body = content(3 * MIB)

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(self.body)

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def unsized() -> Iterator[str]:
    pytest.importorskip("aiohttp")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Unsized) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/f"
        server.shutdown()
        thread.join()


def test_a_file_without_a_size_is_streamed(unsized: str) -> None:
    with remote_io(), open(unsized, "rb") as file:
        assert file.read(10) == Unsized.body[:10]
        assert file.read() == Unsized.body[10:]


def test_a_file_without_a_size_can_be_sought(unsized: str) -> None:
    with remote_io(), open(unsized, "rb") as file:
        assert file.seek(-7, os.SEEK_END) == len(Unsized.body) - 7
        assert file.read() == Unsized.body[-7:]
        file.seek(5)
        assert file.read(5) == Unsized.body[5:10]


# ---- the raw layer


def test_the_raw_layer_refuses_what_a_local_one_refuses(remote: Place, tmp_path: Path) -> None:
    remote.put("f", b"0123456789")
    (tmp_path / "f").write_bytes(b"0123456789")

    def program(path: str) -> list[object]:
        said: list[object] = []
        with open(path, "rb", 0) as file:
            for act in (
                lambda: file.seek(2**63),
                lambda: file.seek(3, os.SEEK_DATA),
                lambda: file.seek(3, os.SEEK_HOLE),
                lambda: file.seek(30, os.SEEK_DATA),
                lambda: file.seek(-1),
                lambda: file.seek(0, 99),
                lambda: file.readinto(b"read-only"),  # type: ignore[arg-type]
                lambda: file.readinto(3),  # type: ignore[arg-type]
                lambda: file.write(b"x"),
                lambda: file.truncate(1),
                lambda: (file.seek(10), file.read(), file.read(1)),
            ):
                try:
                    said.append(act())
                except Exception as error:
                    said.append(
                        (type(error).__name__.replace("UnsupportedOperation", "OSError"), getattr(error, "errno", None))
                    )
        said.append(file.closed)
        return said

    with remote.scope():
        assert program(remote.url("f")) == program(str(tmp_path / "f"))


def test_a_closed_raw_layer_shows_no_name(remote: Place) -> None:
    remote.put("f", b"x")
    with remote.scope():
        for mode in ("rb", "wb"):
            file = open(remote.url("f"), mode, 0)  # noqa: SIM115
            file.close()
            assert repr(file).endswith("[closed]>")
        with open(remote.url("f"), "wb", 0) as file, pytest.raises(OSError):
            file.readall()  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [1000, 3 * MIB, 20 * MIB])
@pytest.mark.parametrize("count", [-1, 10, 18 * MIB])
def test_a_file_replaced_before_its_first_byte_was_read_is_the_new_one(s3_place: Place, size: int, count: int) -> None:
    url = s3_place.put("f", b"o" * size)
    with s3_place.scope(), open(url, "rb") as file:
        file.seek(4)
        s3_place.put("f", b"new content")
        assert file.read(count) == b"content"
        assert file.tell() == 11


def test_a_file_whose_size_was_told_is_never_another(s3_place: Place) -> None:
    url = s3_place.put("f", b"old")
    with s3_place.scope(), open(url, "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(0)
        s3_place.put("f", b"new content")
        with pytest.raises(ObjectChangedError):
            file.read()

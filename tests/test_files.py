"""``open``: every argument, mode and error as the built-in's on a local file."""

# ruff: noqa: SIM115 - how and when a file is closed is what these programs are about

from __future__ import annotations

import contextlib
import copy
import gzip
import io
import os
import pickle
import subprocess
import sys
import tarfile
import textwrap
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest

import remoteio
from remoteio import _counters, _settings, _stores
from remoteio.errors import NoDescriptorError
from tests import file_programs
from tests.conftest import Place
from tests.oracle import plant, plant_locally, told
from tests.proxy import Proxy

hypothesis = pytest.importorskip("hypothesis")

# ---- against the built-in


@hypothesis.settings(max_examples=1000, deadline=None)
@hypothesis.given(seed=hypothesis.strategies.integers(0, 2**40))
def test_random_programs_say_what_they_say_on_a_disk(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    import fsspec

    from remoteio import remote_io

    mode, keywords, before, steps = file_programs.draw(seed)
    folder = tmp_path_factory.mktemp("local", numbered=True)
    store = fsspec.filesystem("memory").store
    store.pop("/programs/f", None)
    if before is not None:
        (folder / "f").write_bytes(before)
        fsspec.filesystem("memory").pipe_file("/programs/f", before)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        here = file_programs.run(f"{folder}/f", str(folder), mode, keywords, steps)
        with remote_io():
            there = file_programs.run("memory://programs/f", "memory://programs", mode, keywords, steps)
    assert there == here
    left = (folder / "f").read_bytes() if (folder / "f").exists() else None
    if here[0][0] == "open":
        left = before  # the built-in may have emptied the file before it looked at the rest
    assert (store["/programs/f"].getvalue() if "/programs/f" in store else None) == left


PATHS = "f f/ d d/ new new/ f/deeper f/deep/er . f/. d/. new/. d/x d/new d/../f ./f d// .new deep/er/new".split()
MODES = "r w a x r+ w+ a+ x+ rb wb".split()


def test_what_is_in_the_way_is_told_as_on_a_disk(remote: Place, tmp_path: Path) -> None:
    cases = {f"{number}-{mode}": (mode, path) for mode in MODES for number, path in enumerate(PATHS)}
    tree = {f"{case}/{name}": name.encode() for case in cases for name in ("f", "d/x")}
    plant(remote, tree)
    plant_locally(tmp_path, tree)
    here, there = {}, {}
    with remote.scope():
        for case, (mode, path) in cases.items():
            if path.startswith("deep/") and remote.kind != "file" and "r" not in mode:
                continue  # parents are not needed on a store
            opened = lambda base: open(f"{base}/{path}", mode).close()  # noqa: B023, E731
            here[mode, path] = told(opened, f"{tmp_path}/{case}")
            there[mode, path] = told(opened, remote.url(case))
    assert there == here


def test_parents_are_not_needed_on_a_store(memory_place: Place) -> None:
    with memory_place.scope(), open(memory_place.url("deep/er/new"), "w") as file:
        file.write("x")
    assert memory_place.files() == {"deep/er/new": b"x"}


def test_a_refused_open_leaves_the_file_as_it_was(memory_place: Place) -> None:
    url = memory_place.put("f", b"old")
    with memory_place.scope():
        for keywords, error in (
            ({"encoding": "no-such-codec"}, LookupError),
            ({"newline": "x"}, ValueError),
            ({"buffering": 0}, ValueError),
        ):
            with pytest.raises(error):
                open(url, "w", **keywords)
    assert memory_place.read("f") == b"old"


def test_an_opener_is_refused(memory_place: Place) -> None:
    with memory_place.scope(), pytest.raises(ValueError, match="opener"):
        open(memory_place.put("f", b""), opener=os.open)


def test_closefd_must_be_true(memory_place: Place) -> None:
    with memory_place.scope(), pytest.raises(ValueError, match="closefd=False"):
        open(memory_place.put("f", b""), closefd=False)


def test_a_null_byte_is_a_value_error(memory_place: Place) -> None:
    with memory_place.scope(), pytest.raises(ValueError, match="null byte"):
        open(memory_place.url("a\0b"))


@pytest.mark.parametrize("mode", ["r", "w", "a", "x", "rb", "r+b"])
def test_a_bucket_that_is_missing(mode: str, s3_place: Place) -> None:
    with s3_place.scope():
        for url in ("s3://no-such-bucket-here/a", "s3://no-such-bucket-here/a/b/c"):
            with pytest.raises(FileNotFoundError) as caught:
                open(url, mode)
            assert caught.value.filename == url


@pytest.mark.parametrize(
    ("mode", "error"), [("r", IsADirectoryError), ("w", IsADirectoryError), ("x", FileExistsError)]
)
def test_a_bucket_is_a_directory(mode: str, error: type[OSError], s3_place: Place) -> None:
    with s3_place.scope(), pytest.raises(error):
        open(s3_place.base.rpartition("/")[0], mode)


# ---- what a handle looks like


class Wrapped:
    def __init__(self, path: Any) -> None:
        self.path = path

    def __fspath__(self) -> Any:
        return self.path


@pytest.mark.parametrize("spell", [str, os.fsencode, Wrapped])
@pytest.mark.parametrize("mode", ["r", "w", "rb", "wb", "r+b"])
def test_the_name_is_what_was_given(spell: Any, mode: str, remote: Place) -> None:
    given = spell(remote.put("f", b""))
    with remote.scope(), open(given, mode) as file:
        assert file.name == os.fspath(given)


def test_the_repr_shows_no_credentials(memory_place: Place) -> None:
    url = memory_place.url("f?token=SECRETWORD")
    with memory_place.scope():
        for mode, buffering in (("w", -1), ("r", -1), ("rb", 0), ("wb", 0), ("r+b", -1)):
            with open(url, mode, buffering) as file:
                assert file.name == url
                assert "SECRETWORD" not in repr(file)


@pytest.mark.parametrize("mode", ["r", "rb", "w", "wb", "r+b"])
@pytest.mark.parametrize("buffering", [-1, 0])
def test_a_handle_cannot_be_pickled_or_copied(mode: str, buffering: int, memory_place: Place) -> None:
    if not buffering and "b" not in mode:
        pytest.skip("no such handle")
    with memory_place.scope(), open(memory_place.put("f", b""), mode, buffering) as file:
        for function in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError):
                function(file)


def test_a_reader_refuses_its_descriptor_and_names_the_way_out(memory_place: Place) -> None:
    with memory_place.scope(), open(memory_place.put("f", b"x"), "rb") as file:
        with pytest.raises(NoDescriptorError, match="staged_local"):
            file.fileno()
        with pytest.raises(io.UnsupportedOperation):
            file.fileno()


@pytest.mark.parametrize("ranged", [True, False])
def test_a_reader_under_the_torch_table_has_a_descriptor_and_both_share_the_position(
    ranged: bool, disk_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(3 * 2**20)
    url = disk_place.put("f", data)
    if not ranged:
        monkeypatch.setattr("remoteio._files.RangedReader", None)  # so that it cannot be the one
    with disk_place.scope(also="torch"):
        location = _stores.resolve(_stores.parse(url), _settings.current())  # type: ignore[arg-type]
        location.store.can_range = ranged
        file = open(url, "rb", 0)
        assert file.read(10) == data[:10]
        file.seek(2**20)
        descriptor = file.fileno()
        assert descriptor == file.fileno()
        assert os.fstat(descriptor).st_size == len(data)
        assert os.read(descriptor, 100) == data[2**20 : 2**20 + 100]
        assert file.tell() == 2**20 + 100
        assert file.read(5) == data[2**20 + 100 : 2**20 + 105]
        assert file.seek(-7, os.SEEK_END) == len(data) - 7
        assert file.read() == data[-7:]
        assert file.read() == b""
        file.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_a_descriptor_for_reading_costs_no_bytes_before_it_is_asked_for(memory_place: Place) -> None:
    url = memory_place.put("f", b"x" * 3 * 2**20)
    with remoteio.remote_io(also="torch"):
        before = _counters.snapshot().get(("open", "memory"), _counters.Counts()).bytes_read
        with open(url, "rb") as file:
            file.read(1)
        read = _counters.snapshot()["open", "memory"].bytes_read - before
    assert 0 < read < 2**20


def test_a_file_url_has_a_descriptor_for_reading(file_place: Place) -> None:
    with file_place.scope(), open(file_place.put("f", b"abc"), "rb") as file:
        assert os.pread(file.fileno(), 10, 0) == b"abc"


def test_a_device_is_written_to_not_replaced() -> None:
    from remoteio import remote_io

    with remote_io(), open("file:///dev/null", "w") as file:
        file.write("x")
    assert not os.path.isfile("/dev/null")


# ---- warnings at the caller's line


def test_line_buffering_of_bytes_warns_at_the_callers_line(memory_place: Place) -> None:
    with memory_place.scope(), pytest.warns(RuntimeWarning, match="line buffering") as caught:
        open(memory_place.put("f", b""), "rb", 1).close()
    assert caught[0].filename == __file__


def test_an_encoding_warning_names_the_callers_line(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            from remoteio import remote_io
            with remote_io():
                open("memory://warn/f", "w").close()
                open("memory://warn/f", encoding="locale").close()
            """
        )
    )
    done = subprocess.run([sys.executable, "-X", "warn_default_encoding", program], capture_output=True, text=True)
    assert done.stderr.count("EncodingWarning") == 1
    assert f"{program}:4: EncodingWarning" in done.stderr


@pytest.mark.parametrize("mode", ["r", "rb", "w", "r+b"])
def test_a_dropped_handle_warns_at_the_line_that_dropped_it(mode: str, memory_place: Place) -> None:
    url = memory_place.put("f", b"x")
    with memory_place.scope(), pytest.warns(ResourceWarning, match="unclosed file") as caught:
        file = open(url, mode)
        del file
    assert caught[0].filename == __file__


# ---- what stands on open


@pytest.mark.parametrize("kind", ["gzip", "bz2", "lzma"])
def test_compressed_files(kind: str, remote: Place) -> None:
    module = pytest.importorskip(kind)
    url = remote.url("f")
    with remote.scope():
        with module.open(url, "wt") as file:
            file.write("hello" * 1000)
        with pytest.raises(KeyError), module.open(url, "wt") as file:
            file.write("half")
            raise KeyError
        with module.open(url, "ab") as file:
            file.write(b"more")
        with module.open(url, "rt") as file:
            assert file.read() == "hello" * 1000 + "more"


def test_zip_files(remote: Place) -> None:
    url = remote.url("f.zip")
    with remote.scope():
        with zipfile.ZipFile(url, "w") as archive:
            archive.writestr("a", "A" * 1000)
        with zipfile.ZipFile(url, "a") as archive:
            archive.writestr("b", "B")
        for mode in ("w", "a"):
            with pytest.raises(KeyError), zipfile.ZipFile(url, mode) as archive:
                archive.writestr("c", "C")
                raise KeyError
        with zipfile.ZipFile(url) as archive:
            assert archive.namelist() == ["a", "b"]
            assert archive.testzip() is None


@pytest.mark.parametrize("packing", ["", "gz"])
def test_tar_files(packing: str, remote: Place) -> None:
    url = remote.url("f.tar")
    entry = tarfile.TarInfo("x")
    entry.size = 5
    with remote.scope():
        with tarfile.open(url, f"w:{packing}") as archive:  # type: ignore[call-overload]
            archive.addfile(entry, io.BytesIO(b"hello"))
        with pytest.raises(KeyError), tarfile.open(url, f"w:{packing}") as archive:  # type: ignore[call-overload]
            raise KeyError
        with tarfile.open(url) as archive:
            assert archive.extractfile("x").read() == b"hello"  # type: ignore[union-attr]


def test_numpy_files(remote: Place) -> None:
    np = pytest.importorskip("numpy")
    array = np.arange(100_000.0)
    with remote.scope():
        with open(remote.url("a.npy"), "wb") as file:
            np.save(file, array)
        assert (np.load(remote.url("a.npy")) == array).all()
        np.savez(remote.url("a.npz"), array=array)
        with np.load(remote.url("a.npz")) as found:
            assert (found["array"] == array).all()
        with open(remote.url("raw"), "wb") as file:
            file.write(b"head")
            array.tofile(file)
            file.write(b"tail")
        with open(remote.url("raw"), "rb") as file:
            assert file.read() == b"head" + array.tobytes() + b"tail"


def test_a_log_file_goes_on_where_it_was(remote: Place) -> None:
    import logging

    logger = logging.Logger("x")
    with remote.scope():
        for word in ("one", "two"):
            handler = logging.FileHandler(remote.url("x.log"))
            logger.addHandler(handler)
            logger.warning(word)
            handler.close()
            logger.removeHandler(handler)
    assert remote.read("x.log") == b"one\ntwo\n"


# ---- what it costs


def test_a_write_into_a_large_directory_costs_two_listings(proxy: Proxy, proxy_place: Place) -> None:
    plant(Place(proxy_place.base, "s3"), {f"d/{number:04d}": b"" for number in range(1001)})
    with proxy_place.scope():
        os.path.exists(proxy_place.url("warm-up"))
        with proxy.counting() as requests, open(proxy_place.url("d/new"), "w"):
            pass
    assert [request.operation for request in requests] == ["ListObjectsV2", "ListObjectsV2", "PutObject"]


def test_small_reads_cost_one_range(proxy: Proxy, proxy_place: Place) -> None:
    url = proxy_place.put("f", bytes(1000))
    with proxy_place.scope(), proxy.counting() as requests, open(url, "rb") as file:
        for place in (0, 900, 10, 500):
            file.seek(place)
            file.read(7)
    assert [request.operation for request in requests] == ["HeadObject", "GetObject"]


def test_an_empty_object_is_not_fetched(proxy: Proxy, proxy_place: Place) -> None:
    url = proxy_place.put("f", b"")
    with proxy_place.scope(), proxy.counting() as requests, open(url, "rb") as file:
        assert file.read() == b""
    assert [request.operation for request in requests] == ["HeadObject"]


def test_opening_to_append_reads_nothing(proxy: Proxy, proxy_place: Place) -> None:
    url = proxy_place.put("f", b"one")
    with proxy_place.scope():
        with proxy.counting() as requests:
            open(url, "a").close()
            with contextlib.suppress(KeyError), open(url, "r+") as file:
                file.write("x")
                raise KeyError
        assert {request.operation for request in requests} == {"HeadObject", "GetObject"}
        assert proxy_place.read("f") == b"one"


def test_gzip_left_open_is_closed_through(tmp_path: Path) -> None:
    program = f"""
import gzip
from remoteio import remote_io
remote_io().__enter__()
file = gzip.open("{tmp_path.as_uri()}/f.gz", "wt")
file.write("new")
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True)
    assert gzip.decompress((tmp_path / "f.gz").read_bytes()) == b"new"

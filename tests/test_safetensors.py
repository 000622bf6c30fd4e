"""safetensors on URLs: equal files, equal tensors, equal errors, and no more bytes than are asked for."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")  # an extra that not everyone who runs the tests has
pytest.importorskip("safetensors")  # the same extra
import numpy as np  # noqa: E402
import safetensors  # noqa: E402
import safetensors.numpy  # noqa: E402
import safetensors.torch  # noqa: E402

from remoteio import safetensors as remote_safetensors  # noqa: E402
from tests import servers  # noqa: E402
from tests.conftest import Place  # noqa: E402


def tensors() -> dict[str, Any]:
    """One of each kind, in no order."""
    made = {
        f"of {name}": torch.arange(24).reshape(4, 6).to(getattr(torch, name))
        for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
    }
    made |= {"none": torch.empty(0, 3), "one": torch.tensor(5.0), "complex": torch.ones(3, dtype=torch.complex64)}
    made |= {"f8": torch.ones(8, 4).to(torch.float8_e4m3fn), "f8x": torch.ones(3).to(torch.float8_e5m2)}
    return made


@pytest.fixture
def scope(store: Place) -> Iterator[None]:
    with store.scope(also="torch"):
        yield


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other)) and one.dtype == other.dtype
    return one.dtype == other.dtype and one.shape == other.shape and bool(torch.equal(one, other))


@pytest.fixture
def both(store: Place, tmp_path: Path) -> tuple[str, str]:
    """The path and the URL of the same file."""
    path = tmp_path / "all.safetensors"
    safetensors.torch.save_file(tensors(), path, metadata={"format": "pt"})
    return str(path), store.put("all.safetensors", path.read_bytes())


# ---- whole files


def test_save_file_writes_the_bytes_of_the_local_call(store: Place, scope: None, tmp_path: Path) -> None:
    safetensors.torch.save_file(tensors(), tmp_path / "a.safetensors", metadata={"a": "b"})
    safetensors.torch.save_file(tensors(), store.url("a.safetensors"), metadata={"a": "b"})
    assert store.files() == {"a.safetensors": (tmp_path / "a.safetensors").read_bytes()}


def test_load_file_gives_what_was_saved(scope: None, both: tuple[str, str]) -> None:
    path, url = both
    loaded = safetensors.torch.load_file(url)
    assert list(loaded) == list(safetensors.torch.load_file(path))
    assert same(loaded, tensors())


def test_load_file_takes_a_device(scope: None, both: tuple[str, str]) -> None:
    assert {tensor.device.type for tensor in safetensors.torch.load_file(both[1], device="cpu").values()} == {"cpu"}


def test_loaded_tensors_have_memory_of_their_own(scope: None, both: tuple[str, str]) -> None:
    loaded = safetensors.torch.load_file(both[1])
    before = loaded["of float64"].clone()
    loaded["of float32"].add_(1)
    assert torch.equal(loaded["of float64"], before)
    assert loaded["of float32"].untyped_storage().nbytes() == 96


def test_numpy_arrays(store: Place, scope: None, tmp_path: Path) -> None:
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.ones(3, dtype=np.int8), "c": np.zeros((0, 2))}
    safetensors.numpy.save_file(arrays, tmp_path / "n.safetensors")
    safetensors.numpy.save_file(arrays, store.url("n.safetensors"))
    assert store.read("n.safetensors") == (tmp_path / "n.safetensors").read_bytes()
    assert same(safetensors.numpy.load_file(store.url("n.safetensors")), arrays)


def test_save_model_and_load_model(store: Place, scope: None) -> None:
    class Tied(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.one = torch.nn.Linear(3, 3)
            self.two = torch.nn.Linear(3, 3)
            self.two.weight = self.one.weight

    model, other = Tied(), Tied()
    safetensors.torch.save_model(model, store.url("m.safetensors"))
    assert safetensors.torch.load_model(other, store.url("m.safetensors")) == (set(), [])
    assert torch.equal(other.two.weight, model.one.weight)
    with pytest.raises(RuntimeError, match="Missing key"):
        safetensors.torch.load_model(torch.nn.Sequential(Tied()), store.url("m.safetensors"))


def test_save_that_fails_publishes_nothing(store: Place, scope: None) -> None:
    shared = torch.ones(3)
    with pytest.raises(RuntimeError, match="share memory"):
        safetensors.torch.save_file({"a": shared, "b": shared}, store.url("a.safetensors"))
    assert store.files() == {}


@pytest.mark.parametrize("size", [3, 400])
def test_large_files_come_by_several_ranges(store: Place, scope: None, size: int) -> None:
    many = {f"t{number:03}": torch.randn(size * 37, 256) for number in range(1200 // size)}
    store.put("a.safetensors", safetensors.torch.save(many))
    assert same(safetensors.torch.load_file(store.url("a.safetensors")), many)


def test_plain_functions_need_no_scope(store: Place, tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    for place in (store.url("a"), str(tmp_path / "a"), (tmp_path / "b").as_uri()):
        remote_safetensors.save_file(tensors(), place, {"a": "b"})
        assert same(remote_safetensors.load_file(place), tensors())
        with remote_safetensors.safe_open(place, "pt") as file:
            assert file.metadata() == {"a": "b"}
        remote_safetensors.save_model(model, place)
        assert remote_safetensors.load_model(torch.nn.Linear(2, 2), place) == (set(), [])
        remote_safetensors.numpy.save_file({"n": np.ones(3)}, place)
        assert same(remote_safetensors.numpy.load_file(place), {"n": np.ones(3)})


# ---- lazily


def test_safe_open_answers_as_for_a_local_file(scope: None, both: tuple[str, str]) -> None:
    path, url = both
    with safetensors.safe_open(path, "pt") as local, safetensors.safe_open(url, "pt") as remote:
        assert remote.keys() == local.keys()
        assert remote.offset_keys() == local.offset_keys()
        assert remote.metadata() == local.metadata() == {"format": "pt"}
        for name in local.keys():  # noqa: SIM118 - it is no dictionary
            assert same(remote.get_tensor(name), local.get_tensor(name))
            assert remote.get_slice(name).get_shape() == local.get_slice(name).get_shape()
            assert remote.get_slice(name).get_dtype() == local.get_slice(name).get_dtype()
        assert same(remote.get_tensors(), local.get_tensors())


SLICES: list[Any] = [
    0, -1, 3, 4, -5, True, None, ..., slice(None), slice(1, 3), slice(1, 9), slice(3, 1), slice(-2, None),
    slice(None, -1), slice(None, None, 2), slice(1, 4, 2), slice(None, None, -1), slice(2, 2), (0, 0), (0, 0, 0),
    (slice(None), 0), (..., 0), (1, slice(0, 6, 2)), (slice(1, 3), slice(2, 4)), (slice(1, 3), 6),
    (slice(None), slice(-2, None)), (), "x", 1.5, (slice(1, 2), None), np.int64(1), (None, 1),
]  # fmt: skip


def outcome(file: Any, name: str, index: Any) -> Any:
    """The tensor, or what was raised."""
    try:
        return file.get_slice(name)[index]
    except BaseException as error:  # panics of Rust are BaseExceptions
        return type(error), str(error)


@pytest.mark.parametrize("framework", ["pt", "np"])
@pytest.mark.parametrize("name", ["of float32", "of int8", "none", "one", "f8"])
def test_slices_are_those_of_a_local_file(memory_place: Place, tmp_path: Path, name: str, framework: str) -> None:
    path = tmp_path / "all.safetensors"
    safetensors.torch.save_file(tensors(), path)
    url = memory_place.put("all.safetensors", path.read_bytes())
    with memory_place.scope(also="torch"):
        local, remote = (safetensors.safe_open(place, framework) for place in (str(path), url))
        for index in SLICES:
            here, there = outcome(local, name, index), outcome(remote, name, index)
            assert type(here) is type(there), (index, here, there)
            if isinstance(here, tuple):
                assert here == there, index
            else:
                assert same(here, there), index


@pytest.mark.parametrize("framework", ["pt", "np"])
def test_errors_are_those_of_a_local_file(scope: None, both: tuple[str, str], framework: str) -> None:
    for ask in (
        lambda file: file.get_tensor("nothing"),
        lambda file: file.get_slice("nothing"),
        lambda file: file.get_tensor(3),
    ):
        told = []
        for place in both:
            with safetensors.safe_open(place, framework) as file, pytest.raises(Exception) as caught:
                ask(file)
            told.append((caught.type, str(caught.value)))
        assert told[0] == told[1]
    with safetensors.safe_open(both[1], framework) as file:
        pass
    with pytest.raises(safetensors.SafetensorError, match="File is closed"):
        file.get_tensor("one")


@pytest.mark.parametrize(
    "content",
    [b"", b"1234567", (10).to_bytes(8, "little") + b"{", (2**60).to_bytes(8, "little") + b"{}",
     b"\x02" + bytes(7) + b"[]", (2).to_bytes(8, "little") + b"{}" + b"left over",
     (lambda text: len(text).to_bytes(8, "little") + text)(
         json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode())],
)  # fmt: skip
def test_broken_files_raise_what_a_local_one_raises(store: Place, scope: None, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    told = []
    for place in (str(tmp_path / "a"), store.put("a", content)):
        with pytest.raises(safetensors.SafetensorError) as caught:
            safetensors.safe_open(place, "pt")
        told.append(str(caught.value))
    assert told[0] == told[1]


def test_unknown_framework_and_device_are_refused(scope: None, both: tuple[str, str]) -> None:
    with pytest.raises(safetensors.SafetensorError, match="framework xx is invalid"):
        safetensors.safe_open(both[1], "xx")
    with pytest.raises(safetensors.SafetensorError, match="device nowhere is invalid"):
        safetensors.safe_open(both[1], "pt", "nowhere")


def test_open_of_nothing_says_so(store: Place, scope: None) -> None:
    store.put("d/f", "x")
    with pytest.raises(FileNotFoundError) as caught:
        safetensors.safe_open(store.url("missing"), "pt")
    assert caught.value.filename == store.url("missing")
    with pytest.raises(IsADirectoryError):
        safetensors.safe_open(store.url("d"), "pt")


def test_what_is_opened_counts_as_a_safe_open(scope: None, both: tuple[str, str]) -> None:
    for place in both:
        assert isinstance(safetensors.safe_open(place, "pt"), safetensors.safe_open)
    assert not isinstance("x", safetensors.safe_open)
    assert repr(safetensors.safe_open) == "<class 'builtins.safe_open'>"


# ---- what is fetched


@pytest.fixture
def large(proxy_place: Place) -> tuple[str, dict[str, Any]]:
    """A file of 400 tensors of 64 KiB, reached by the counting proxy."""
    many = {f"t{number:03}": torch.randn(64, 256) for number in range(400)}
    return proxy_place.put("a.safetensors", safetensors.torch.save(many)), many


def fetched(proxy: servers.Proxy) -> int:
    """Bytes that were asked for by ranges."""
    total = 0
    for request in proxy.requests:
        first, _, last = request.headers.get("range", "bytes=0--1").removeprefix("bytes=").partition("-")
        total += int(last) - int(first) + 1
    return total


def test_one_tensor_costs_its_own_bytes_and_the_header(
    proxy_place: Place, proxy: servers.Proxy, large: tuple[str, dict[str, Any]]
) -> None:
    url, many = large
    with proxy_place.scope(also="torch"), safetensors.safe_open(url, "pt") as file:
        assert torch.equal(file.get_tensor("t200"), many["t200"])
    assert fetched(proxy) <= 65536 + 65536
    assert fetched(proxy) < 0.02 * 400 * 65536
    assert len([request for request in proxy.requests if request.operation == "GetObject"]) == 2


@pytest.mark.parametrize("framework", ["pt", "np"])
def test_a_slice_of_rows_costs_these_rows(
    proxy_place: Place, proxy: servers.Proxy, large: tuple[str, dict[str, Any]], framework: str
) -> None:
    url, many = large
    with proxy_place.scope(also="torch"), safetensors.safe_open(url, framework) as file:
        before = fetched(proxy)
        assert np.array_equal(np.asarray(file.get_slice("t100")[10:20]), many["t100"][10:20].numpy())
        assert np.array_equal(np.asarray(file.get_slice("t300")[5, 3:7]), many["t300"][5, 3:7].numpy())
    assert fetched(proxy) - before == 11 * 1024


def test_neighbours_are_fetched_together(
    proxy_place: Place, proxy: servers.Proxy, large: tuple[str, dict[str, Any]]
) -> None:
    url, many = large
    with proxy_place.scope(also="torch"), safetensors.safe_open(url, "pt") as file:
        for name in file.offset_keys():
            assert torch.equal(file.get_tensor(name), many[name])
    assert proxy.tally["GetObject"] < 20
    assert fetched(proxy) < 1.1 * 400 * 65536


def test_threads_share_an_open_file(store: Place, scope: None) -> None:
    many = {f"t{number:03}": torch.randn(200, 256) for number in range(100)}
    store.put("a.safetensors", safetensors.torch.save(many))
    with safetensors.safe_open(store.url("a.safetensors"), "pt") as file, ThreadPoolExecutor(8) as pool:
        loaded = dict(zip(many, pool.map(file.get_tensor, many), strict=True))
        sliced = list(pool.map(lambda name: file.get_slice(name)[50:60], many))
    assert same(loaded, many)
    assert all(torch.equal(one, many[name][50:60]) for one, name in zip(sliced, many, strict=True))
    assert threading.active_count() < 50


@pytest.mark.parametrize("framework", ["pt", "np"])
def test_a_store_without_ranges_is_streamed(
    disk_place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, framework: str
) -> None:
    from remoteio import _settings, _stores

    tensors = {"a": torch.arange(500_000.0), "b": torch.ones(3, 2)}
    safetensors.torch.save_file(tensors, tmp_path / "x.safetensors")
    url = disk_place.put("x.safetensors", (tmp_path / "x.safetensors").read_bytes())
    with disk_place.scope(also="torch"):
        location = _stores.resolve(_stores.parse(url), _settings.current())  # type: ignore[arg-type]
        monkeypatch.setattr(location.store, "can_range", False)
        with safetensors.safe_open(url, framework) as file:
            for name, tensor in tensors.items():
                assert torch.equal(torch.as_tensor(file.get_tensor(name)), tensor)
        if framework == "pt":
            assert torch.equal(safetensors.torch.load_file(url)["a"], tensors["a"])

"""Torch's own functions on URLs: the files that the local calls write, and what the local calls give."""

from __future__ import annotations

import io
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")  # an extra that not everyone who runs the tests has
import safetensors.torch  # noqa: E402

import remoteio  # noqa: E402
from remoteio import torch as remote_torch  # noqa: E402
from tests import servers  # noqa: E402
from tests.conftest import Place  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.jit's own


@pytest.fixture
def scope(store: Place) -> Iterator[None]:
    with store.scope(also="torch"):
        yield


STATE = {"w": torch.arange(12.0).reshape(3, 4), "n": [1, {"b": torch.ones(5, dtype=torch.bfloat16)}], "text": "x"}


def same(one: Any, other: Any) -> bool:
    """Whether two objects are equal, tensors in them too."""
    if isinstance(one, torch.Tensor):
        return bool(torch.equal(one, other)) and one.dtype == other.dtype
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


# ---- save


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name", ["model.pt", "été.pt", "no suffix", "a?b[1]*.pt"])
def test_save_writes_the_bytes_of_the_local_call(
    store: Place, scope: None, tmp_path: Path, name: str, zipped: bool
) -> None:
    torch.save(STATE, str(tmp_path / name), _use_new_zipfile_serialization=zipped)
    torch.save(STATE, store.url(name), _use_new_zipfile_serialization=zipped)
    assert store.read(name) == (tmp_path / name).read_bytes()


def test_save_takes_pickle_module_and_protocol(store: Place, scope: None) -> None:
    torch.save(STATE, store.url("a.pt"), pickle, 4)
    assert same(torch.load(store.url("a.pt"), pickle_module=pickle, weights_only=False), STATE)


def test_save_that_fails_publishes_nothing(store: Place, scope: None) -> None:
    store.put("a.pt", "old")
    with pytest.raises((AttributeError, pickle.PicklingError, TypeError)):
        torch.save({"w": torch.ones(3), "f": lambda: None}, store.url("a.pt"))
    assert store.files() == {"a.pt": b"old"}


def test_save_leaves_no_temporary_file(store: Place, scope: None, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    torch.save(STATE, store.url("a.pt"))
    with pytest.raises((AttributeError, pickle.PicklingError, TypeError)):
        torch.save(lambda: None, store.url("b.pt"))
    assert os.listdir(tmp_path) == []


def test_save_to_a_directory_says_so(store: Place, scope: None) -> None:
    store.put("d/f", "x")
    with pytest.raises(IsADirectoryError) as caught:
        torch.save(STATE, store.url("d"))
    assert caught.value.filename == store.url("d")


def test_upload_that_is_denied_raises_and_keeps_the_old(proxy_place: Place, proxy: servers.Proxy) -> None:
    proxy_place.put("a.pt", "old")
    with proxy_place.scope(also="torch"):
        proxy.deny(operation="PutObject")
        with pytest.raises(PermissionError):
            torch.save(STATE, proxy_place.url("a.pt"))
        proxy.clear()
    assert proxy_place.read("a.pt") == b"old"


# ---- load


@pytest.mark.parametrize("weights_only", [True, False, None])
@pytest.mark.parametrize("zipped", [True, False])
def test_load_gives_what_was_saved(store: Place, scope: None, zipped: bool, weights_only: bool | None) -> None:
    torch.save(STATE, store.url("a.pt"), _use_new_zipfile_serialization=zipped)
    assert same(torch.load(store.url("a.pt"), weights_only=weights_only), STATE)


@pytest.mark.parametrize("zipped", [True, False])
def test_load_of_a_large_file_is_by_several_ranges(store: Place, scope: None, zipped: bool) -> None:
    state = {f"w{number}": torch.randn(number * 300_000 + 1) for number in range(6)}
    torch.save(state, store.url("a.pt"), _use_new_zipfile_serialization=zipped)
    assert same(torch.load(store.url("a.pt")), state)


def test_load_in_another_order_than_saved(store: Place, scope: None, tmp_path: Path) -> None:
    state = {f"w{number}": torch.randn(700_000) for number in range(8)}
    torch.save(state, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as archive, zipfile.ZipFile(tmp_path / "b.pt", "w") as other:
        for info in reversed(archive.infolist()):
            other.writestr(info.filename, archive.read(info))
    store.put("b.pt", (tmp_path / "b.pt").read_bytes())
    assert same(torch.load(store.url("b.pt")), state)


def test_load_refuses_what_weights_only_refuses(store: Place, scope: None) -> None:
    torch.save({"p": Path("x")}, store.url("a.pt"))
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        torch.load(store.url("a.pt"), weights_only=True)


@pytest.mark.parametrize("device", ["cpu", torch.device("meta"), {"cpu": "meta"}])
def test_load_takes_map_location(store: Place, scope: None, device: Any) -> None:
    torch.save(STATE, store.url("a.pt"))
    wanted = "cpu" if device == "cpu" else "meta"
    assert torch.load(store.url("a.pt"), map_location=device)["w"].device.type == wanted
    assert torch.load(store.url("a.pt"), lambda storage, place: storage)["w"].device.type == "cpu"


def test_load_maps_a_staged_file(store: Place, scope: None) -> None:
    torch.save(STATE, store.url("a.pt"))
    loaded = torch.load(store.url("a.pt"), mmap=True)
    assert same(loaded, STATE)
    loaded["w"].add_(1)  # private to this process, and still readable after the staged file has gone
    assert same(torch.load(store.url("a.pt"), mmap=True), STATE)


def test_load_of_nothing_says_so(store: Place, scope: None) -> None:
    for options in ({}, {"mmap": True}):
        with pytest.raises(FileNotFoundError) as caught:
            torch.load(store.url("missing.pt"), **options)
        assert caught.value.filename == store.url("missing.pt")


@pytest.mark.parametrize("content", [b"", b"no archive at all", b"PK\x03\x04" + bytes(3_000_000)])
def test_load_of_what_is_no_checkpoint_raises_what_the_local_call_raises(
    store: Place, scope: None, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "a.pt").write_bytes(content)
    store.put("a.pt", content)
    with pytest.raises(Exception) as local:
        torch.load(tmp_path / "a.pt")
    with pytest.raises(local.type):
        torch.load(store.url("a.pt"))


def test_load_of_a_safetensors_file(store: Place, scope: None) -> None:
    native = pytest.importorskip("safetensors.torch")
    store.put("a.safetensors", native.save({"w": torch.ones(3)}))
    assert same(torch.load(store.url("a.safetensors")), {"w": torch.ones(3)})
    with pytest.raises(RuntimeError, match="dict map_location"):
        torch.load(store.url("a.safetensors"), map_location={"cpu": "cpu"})


def test_load_of_another_version_in_the_middle_is_an_error(proxy_place: Place, proxy: servers.Proxy) -> None:
    url = proxy_place.url("a.pt")
    with proxy_place.scope(also="torch"):
        torch.save({"w": torch.randn(8_000_000)}, url)
        changed = io.BytesIO()
        torch.save({"w": torch.zeros(8_000_000)}, changed)
        later = changed.getvalue()

        def replace(request: Any) -> None:
            if "bytes=0-" in request.headers.get("range", ""):
                proxy_place.put("a.pt", later)

        proxy.before(replace, operation="GetObject")
        with pytest.raises(OSError):
            torch.load(url)


def test_memory_is_the_checkpoint_and_little_more(store: Place, tmp_path: Path) -> None:
    if store.kind == "memory":
        pytest.skip("there the store itself is in this process's memory")
    torch.save({f"w{number}": torch.ones(2**20) for number in range(64)}, tmp_path / "a.pt")
    store.fs().put_file(str(tmp_path / "a.pt"), store.url("a.pt"))
    program = (
        "import torch, remoteio, sys\n"
        "def peak():\n"
        "    return next(int(l.split()[1]) for l in open('/proc/self/status') if l.startswith('VmHWM'))\n"
        "with remoteio.remote_io(also='torch'):\n"
        f"    torch.load({store.url('a.pt')!r}, map_location='meta')\n"
        "    before = peak()\n"
        f"    kept = torch.load({store.url('a.pt')!r})\n"
        "print(peak() - before)\n"
    )
    if not os.path.exists("/proc/self/status"):
        pytest.skip("peak memory is read from /proc")
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert int(told.stdout) < (256 + 64) * 1024


# ---- staged


class Model(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).relu()


def test_jit_save_and_load(store: Place, scope: None, tmp_path: Path) -> None:
    model = torch.jit.script(Model())
    torch.jit.save(model, store.url("m.pt"), _extra_files={"note.txt": b"hello"})
    torch.jit.save(model, tmp_path / "m.pt", _extra_files={"note.txt": b"hello"})
    with zipfile.ZipFile(io.BytesIO(store.read("m.pt"))) as ours, zipfile.ZipFile(tmp_path / "m.pt") as theirs:
        assert ours.namelist() == theirs.namelist()
    extra = {"note.txt": ""}
    loaded = torch.jit.load(store.url("m.pt"), _extra_files=extra)
    assert extra["note.txt"] in (b"hello", "hello")
    x = torch.randn(4, 3)
    assert torch.equal(loaded(x), model(x))


def test_script_module_and_function_save_themselves(store: Place, scope: None) -> None:
    model = torch.jit.script(Model())
    model.save(store.url("m.pt"))
    assert torch.equal(torch.jit.load(store.url("m.pt"))(torch.ones(1, 3)), model(torch.ones(1, 3)))

    double = torch.jit.trace(lambda x: x * 2, torch.ones(1))
    double.save(store.url("f.pt"))
    assert torch.jit.load(store.url("f.pt"))(torch.ones(1)) == 2


def test_load_of_a_scripted_model_says_what_the_local_call_says(store: Place, scope: None) -> None:
    torch.jit.script(Model()).save(store.url("m.pt"))
    with pytest.warns(UserWarning, match="looks like a TorchScript archive"):
        loaded = torch.load(store.url("m.pt"), weights_only=False)
    assert loaded(torch.ones(1, 3)).shape == (1, 2)


def test_jit_load_of_nothing_says_so(store: Place, scope: None) -> None:
    with pytest.raises(FileNotFoundError):
        torch.jit.load(store.url("missing.pt"))
    store.put("d/f", "x")
    with pytest.raises(IsADirectoryError):
        torch.jit.load(store.url("d"))


def test_export_save_and_load(store: Place, scope: None) -> None:
    model, x = Model(), torch.randn(4, 3)
    torch.export.save(torch.export.export(model, (x,)), store.url("m.pt2"), extra_files={"note.txt": "hello"})
    extra = {"note.txt": ""}
    loaded = torch.export.load(store.url("m.pt2"), extra_files=extra)
    assert extra["note.txt"] in (b"hello", "hello")
    assert torch.equal(loaded.module()(x), model(x))


@pytest.mark.slow
@pytest.mark.timeout(900)  # a C++ compiler at work
def test_aot_inductor_package(memory_place: Place, tmp_path: Path) -> None:
    with memory_place.scope(also="torch"):
        model, x = Model(), torch.randn(4, 3)
        with torch.no_grad():
            url = memory_place.url("m.pt2")
            assert torch._inductor.aoti_compile_and_package(torch.export.export(model, (x,)), package_path=url) == url
            loaded = torch._inductor.aoti_load_package(url)
            assert torch.allclose(loaded(x), model(x))
    with torch.no_grad():  # the plain functions, on a URL and on a path
        for place in (memory_place.url("n.pt2"), str(tmp_path / "n.pt2")):
            exported = torch.export.export(model, (x,))
            assert remote_torch.inductor.aoti_compile_and_package(exported, package_path=place) == place
            assert torch.allclose(remote_torch.inductor.aoti_load_package(place)(x), model(x))
    with memory_place.scope(), pytest.raises(IsADirectoryError):
        remote_torch.inductor.aoti_compile_and_package(exported, package_path=memory_place.base)


def test_pt2_archives(store: Place, scope: None) -> None:
    from torch.export.pt2_archive._package import load_pt2, package_pt2

    model, x = Model(), torch.randn(4, 3)
    url = store.url("m.pt2")
    assert package_pt2(url, exported_programs={"model": torch.export.export(model, (x,))}) == url
    loaded = load_pt2(url).exported_programs["model"].module()
    assert torch.equal(loaded(x), model(x))


# ---- the plain functions


def test_plain_functions_need_no_scope(store: Place, tmp_path: Path) -> None:
    for place in (store.url("a.pt"), str(tmp_path / "a.pt"), (tmp_path / "b.pt").as_uri(), tmp_path / "c.pt"):
        remote_torch.save(STATE, place)
        assert same(remote_torch.load(place, weights_only=True), STATE)
        assert same(remote_torch.load(place, mmap=True), STATE)
    assert os.path.exists(tmp_path / "b.pt")
    buffer = io.BytesIO()
    remote_torch.save(STATE, buffer)
    buffer.seek(0)
    assert same(remote_torch.load(buffer), STATE)


def test_plain_staged_functions_need_no_scope(store: Place) -> None:
    model, x = Model(), torch.randn(4, 3)
    remote_torch.jit.save(torch.jit.script(model), store.url("m.pt"))
    assert torch.equal(remote_torch.jit.load(store.url("m.pt"))(x), model(x))
    remote_torch.export.save(torch.export.export(model, (x,)), store.url("m.pt2"))
    assert torch.equal(remote_torch.export.load(store.url("m.pt2")).module()(x), model(x))


# ---- the table


def local_and_remote(call: Any, local: str, url: str) -> tuple[Exception, Exception]:
    """What a call raises for a local path and for a URL."""
    raised = []
    for path in (local, url):
        with pytest.raises(Exception) as caught:
            call(path)
        raised.append(caught.value)
    return raised[0], raised[1]


MISSING = {
    "load": lambda path: torch.load(path),
    "load mapped": lambda path: torch.load(path, mmap=True),
    "jit.load": lambda path: torch.jit.load(path),
    "export.load": lambda path: torch.export.load(path),
    "PackageImporter": lambda path: torch.package.PackageImporter(path),
    "aoti_load_package": lambda path: torch._inductor.aoti_load_package(path),
}


@pytest.mark.parametrize("name", MISSING)
def test_what_is_raised_for_nothing_is_what_the_local_call_raises(
    store: Place, scope: None, tmp_path: Path, name: str
) -> None:
    local, remote = local_and_remote(MISSING[name], str(tmp_path / "a.pt2"), store.url("a.pt2"))
    assert isinstance(remote, type(local))
    assert isinstance(remote, FileNotFoundError)
    assert remote.filename == store.url("a.pt2")
    assert type(pickle.loads(pickle.dumps(remote))) is FileNotFoundError


SAVES = {
    "save": lambda path: torch.save(1, path),
    "jit.save": lambda path: torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), path),
    "ScriptModule.save": lambda path: torch.jit.script(torch.nn.Linear(1, 1)).save(path),
    "PackageExporter": lambda path: torch.package.PackageExporter(path).close(),
    "save_file": lambda path: safetensors.torch.save_file({"a": torch.ones(1)}, path),
}


@pytest.mark.parametrize("name", SAVES)
def test_what_is_raised_for_a_directory_is_what_the_local_call_raises(
    store: Place, scope: None, tmp_path: Path, name: str
) -> None:
    (tmp_path / "d").mkdir()
    store.put("d/x", b"")
    local, remote = local_and_remote(SAVES[name], str(tmp_path / "d"), store.url("d"))
    assert isinstance(remote, type(local))
    assert isinstance(remote, IsADirectoryError)


def test_torch_is_untouched_without_also(memory_place: Place) -> None:
    before = torch.save, torch.load, torch.jit.load
    with memory_place.scope():
        assert (torch.save, torch.load, torch.jit.load) == before
    with memory_place.scope(also="torch"):
        assert torch.save is not before[0]
        assert torch.serialization.save is torch.save
    assert (torch.save, torch.load, torch.jit.load) == before


def test_a_scope_without_the_table_is_native_within_one_that_has_it(memory_place: Place) -> None:
    with memory_place.scope(also="torch"), remoteio.native_io(), pytest.raises((RuntimeError, OSError)):
        torch.save(STATE, memory_place.url("a.pt"))


def test_status_tells_which_function_answered(memory_place: Place) -> None:
    with memory_place.scope(also="torch"):
        torch.save(STATE, memory_place.url("a.pt"))
        counts = remoteio.status().counts
        assert counts["torch.save", "memory"].bytes_written >= len(memory_place.read("a.pt"))
        assert "torch.save" in str(remoteio.status())


def test_torch_imported_inside_a_scope_is_covered_and_set_back() -> None:
    program = (
        "import sys, remoteio\n"
        "with remoteio.remote_io(also='torch'):\n"
        "    assert 'torch' not in sys.modules\n"
        "    import torch, torch.package\n"
        "    torch.save([1], 'memory://d/a.pt')\n"
        "    assert torch.load('memory://d/a.pt') == [1]\n"
        "from remoteio import _dispatch, _late\n"
        "left = [(m, n) for m, o in list(sys.modules.items()) for n, v in list(vars(o).items())\n"
        "        if _dispatch.original_of(v) is not None]\n"
        "assert not left, left\n"
        "assert _late._finder not in sys.meta_path\n"
        "assert '__init__' in vars(torch.package.PackageExporter) \n"
        "assert _dispatch.original_of(torch.package.PackageExporter.__init__) is None\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("size", [3, 600_000])
def test_load_of_the_first_format_an_archive_of_tar(store: Place, scope: None, tmp_path: Path, size: int) -> None:
    """As ``torch.load``'s own reader of it takes it: storages, tensors and what refers to them."""
    values = torch.arange(float(size))
    storages, tensors, pickled = io.BytesIO(), io.BytesIO(), io.BytesIO()
    for record in (1, (0, "cpu", torch.FloatStorage)):
        pickle.dump(record, storages, 2)
    storages.write(struct.pack("<q", size) + values.numpy().tobytes())
    pickle.dump([], storages, 2)
    for record in (1, (0, 0, torch.FloatTensor)):
        pickle.dump(record, tensors, 2)
    tensors.write(struct.pack("<i4xqqq", 1, size, 1, 0))

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            return 0 if isinstance(obj, torch.Tensor) else None

    Pickler(pickled, 2).dump({"w": values})
    path = tmp_path / "old.pt"
    with tarfile.open(path, "w:") as archive:
        for name, content in (("storages", storages), ("tensors", tensors), ("pickle", pickled)):
            member = tarfile.TarInfo(name)
            member.size = len(content.getvalue())
            archive.addfile(member, io.BytesIO(content.getvalue()))
    url = store.put("old.pt", path.read_bytes())
    assert torch.equal(torch.load(url, weights_only=False)["w"], torch.load(path, weights_only=False)["w"])
    with pytest.raises(RuntimeError, match="legacy .tar format"):
        torch.load(url)


def test_load_while_others_replace_the_file_gives_the_old_or_the_new(s3_place: Place) -> None:
    url, ended = s3_place.url("m.pt"), threading.Event()
    with s3_place.scope(also="all"):
        torch.save({"w": torch.ones(400_000)}, url)

        def replace() -> None:
            for number in range(12):
                torch.save({"w": torch.full((400_000,), float(number))}, f"{url}.tmp")
                os.replace(f"{url}.tmp", url)
            ended.set()

        replacing = threading.Thread(target=replace)
        replacing.start()
        while not ended.is_set():
            assert torch.load(url)["w"].unique().numel() == 1
        replacing.join()


@pytest.mark.parametrize("size", [3_000, 3_000_000])
@pytest.mark.parametrize("kept", [0, 100, 0.5, 0.9])
def test_a_file_that_was_cut_is_refused_as_on_a_disk(
    memory_place: Place, tmp_path: Path, size: int, kept: float
) -> None:
    torch.save({"a": torch.ones(size)}, tmp_path / "whole.pt")
    data = (tmp_path / "whole.pt").read_bytes()
    cut = data[: int(kept) if kept >= 100 else int(len(data) * kept)]
    (tmp_path / "cut.pt").write_bytes(cut)
    url = memory_place.put("cut.pt", cut)
    raised = []
    for path in (str(tmp_path / "cut.pt"), url):
        with memory_place.scope(also="torch"), pytest.raises(Exception) as caught:
            torch.load(path, weights_only=False)
        raised.append(type(caught.value))
    assert issubclass(raised[1], raised[0])

"""torch.package on URLs: the how-tos of its documentation, against the same done on a local path."""

from __future__ import annotations

import gc
import importlib
import importlib.resources
import os
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")  # an extra that not everyone who runs the tests has
from torch.package import EmptyMatchError, PackageExporter, PackageImporter, PackagingError  # noqa: E402

from remoteio import torch as remote_torch  # noqa: E402
from tests.conftest import Place  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch's own

SOURCES = {
    "shop/__init__.py": "",
    "shop/models.py": (
        "import torch\nfrom shop import helpers\n\n\nclass Net(torch.nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.layer = torch.nn.Linear(2, 2)\n\n"
        "    def forward(self, x):\n        return helpers.double(self.layer(x))\n"
    ),
    "shop/helpers.py": "def double(x):\n    return x * 2\n",
    "shop/reduced.py": (
        "class Counted:\n    def __init__(self, value):\n        self.value = value\n\n"
        "    def __reduce_package__(self, exporter):\n"
        "        name = f'counted-{exporter.get_unique_id()}'\n"
        "        exporter.save_text('counted', name, self.value)\n        return unpickle, (name,)\n\n\n"
        "def unpickle(importer, name):\n    return Counted('read ' + importer.load_text('counted', name))\n"
    ),
    "shop/inside.py": "INSIDE = '__torch_package__' in globals()\n",
}


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: Any) -> Iterator[Any]:
    """A package of Python modules to export."""
    root = tmp_path / "sources"
    for name, text in SOURCES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(root))
    yield importlib.import_module("shop.models")
    for name in [name for name in sys.modules if name == "shop" or name.startswith("shop.")]:
        del sys.modules[name]


@pytest.fixture
def scope(store: Place) -> Iterator[None]:
    with store.scope(also="torch"):
        yield


@pytest.fixture
def places(store: Place, tmp_path: Path) -> tuple[str, str]:
    """A path and a URL to export to."""
    (tmp_path / "local").mkdir()
    return str(tmp_path / "local" / "p.pt"), store.url("p.pt")


def content(store: Place, places: tuple[str, str]) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """What is in both archives, that one identity apart which torch draws anew for each."""
    found = []
    for path in (places[0], os.path.join(os.path.dirname(places[0]), "copy.pt")):
        if path != places[0]:
            Path(path).write_bytes(store.read("p.pt"))
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            names = [name for name in archive.namelist() if not name.endswith("serialization_id")]
            found.append({name: archive.read(name) for name in names})
    return found[0], found[1]


def export(place: str, shop: Any, model: Any) -> None:
    with PackageExporter(place) as exporter:
        exporter.intern("shop.**")
        exporter.extern("torch.**")
        exporter.save_pickle("model", "model.pkl", model)
        exporter.save_text("config", "words.txt", "hello")
        exporter.save_binary("config", "raw.bin", b"\0\1")
        exporter.save_source_string("made.up", "VALUE = 7\n")
        exporter.save_module("shop.inside")


def test_archives_hold_equal_bytes(store: Place, scope: None, shop: Any, places: tuple[str, str]) -> None:
    torch.manual_seed(0)
    model = shop.Net()
    for place in places:
        export(place, shop, model)
    here, there = content(store, places)
    assert here == there
    assert len(Path(places[0]).read_bytes()) == len(store.read("p.pt"))


def test_what_was_saved_is_loaded(store: Place, scope: None, shop: Any, places: tuple[str, str]) -> None:
    model, x = shop.Net(), torch.randn(3, 2)
    export(places[1], shop, model)
    importer = PackageImporter(places[1])
    loaded = importer.load_pickle("model", "model.pkl")
    assert torch.equal(loaded(x), model(x))
    assert importer.load_text("config", "words.txt") == "hello"
    assert importer.load_binary("config", "raw.bin") == b"\0\1"
    assert importer.import_module("made.up").VALUE == 7
    assert importer.filename == places[1]
    assert torch.package.is_from_package(loaded)
    assert not torch.package.is_from_package(model)
    assert importer.import_module("shop.inside").INSIDE
    importlib.import_module("shop.inside")
    assert not sys.modules["shop.inside"].INSIDE


def test_an_importer_reads_on_after_its_staged_copy_was_left(
    store: Place, scope: None, shop: Any, places: tuple[str, str]
) -> None:
    export(places[1], shop, shop.Net())
    importer = PackageImporter(places[1])
    gc.collect()
    store.fs().rm_file(places[1])
    assert importer.load_pickle("model", "model.pkl") is not None


def test_file_structure_and_has_file(store: Place, scope: None, shop: Any, places: tuple[str, str]) -> None:
    for place in places:
        export(place, shop, shop.Net())
    local, remote = map(PackageImporter, places)
    for options in ({}, {"include": "**/*.txt"}, {"include": ["**/*.py", "**/*.bin"], "exclude": "shop/**"}):
        one, other = local.file_structure(**options), remote.file_structure(**options)
        assert str(one).partition("\n")[2] == str(other).partition("\n")[2]
        assert one.has_file("config/words.txt") == other.has_file("config/words.txt")
    assert remote.file_structure().has_file("config/words.txt")
    assert not remote.file_structure(exclude="**/words.txt").has_file("config/words.txt")


def test_dependencies_are_told(store: Place, scope: None, shop: Any, places: tuple[str, str]) -> None:
    def paths_of(exporter: Any) -> str:
        try:
            return str(exporter.all_paths("shop.models", "shop.helpers"))
        except ValueError as error:  # torch 2.13 has it broken
            return str(error)

    told = []
    for place in places:
        with PackageExporter(place) as exporter:
            exporter.intern("shop.**")
            exporter.extern("torch.**")
            exporter.save_pickle("model", "model.pkl", shop.Net())
            assert "shop.models" in exporter.get_rdeps("shop.helpers")
            told.append((paths_of(exporter), exporter.dependency_graph_string()))
    assert told[0] == told[1]
    assert "shop.helpers" in told[1][1]


def test_resources_of_a_package(store: Place, scope: None, places: tuple[str, str]) -> None:
    with PackageExporter(places[1]) as exporter:
        exporter.save_source_string("kit", "", is_package=True)
        exporter.save_text("kit", "words.txt", "hello")
    importer = PackageImporter(places[1])
    reader = importer.get_resource_reader("kit")
    assert list(reader.contents()) and reader.is_resource("words.txt")
    assert reader.open_resource("words.txt").read() == b"hello"
    assert importlib.resources.read_text(importer.import_module("kit"), "words.txt") == "hello"


def test_reduce_package(store: Place, scope: None, shop: Any, places: tuple[str, str]) -> None:
    reduced = importlib.import_module("shop.reduced")
    with PackageExporter(places[1]) as exporter:
        exporter.intern("shop.**")
        exporter.save_pickle("counted", "one.pkl", reduced.Counted("this"))
    assert PackageImporter(places[1]).load_pickle("counted", "one.pkl").value == "read this"


def test_exporting_again_what_was_imported(store: Place, scope: None, shop: Any, places: tuple[str, str]) -> None:
    model, x = shop.Net(), torch.randn(3, 2)
    export(places[1], shop, model)
    importer = PackageImporter(places[1])
    loaded = importer.load_pickle("model", "model.pkl")
    again = store.url("again.pt")
    with PackageExporter(again, importer=(importer, torch.package.sys_importer)) as exporter:
        exporter.intern("shop.**")
        exporter.extern("torch.**")
        exporter.save_pickle("model", "model.pkl", loaded)
    assert torch.equal(PackageImporter(again).load_pickle("model", "model.pkl")(x), model(x))


def test_scripted_model_in_a_package(store: Place, scope: None, places: tuple[str, str], monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.package.package_exporter, "_gate_torchscript_serialization", False)
    scripted, x = torch.jit.script(torch.nn.Linear(2, 2)), torch.randn(3, 2)
    with PackageExporter(places[1]) as exporter:
        exporter.save_pickle("res", "model.pkl", scripted)
        exporter.save_pickle("res", "mixed.pkl", [scripted, torch.ones(2)])
    importer = PackageImporter(places[1])
    assert torch.equal(importer.load_pickle("res", "model.pkl")(x), scripted(x))
    assert torch.equal(importer.load_pickle("res", "mixed.pkl", map_location="cpu")[1], torch.ones(2))


def test_extern_mock_and_deny(store: Place, scope: None, shop: Any, places: tuple[str, str]) -> None:
    with PackageExporter(places[1]) as exporter:
        exporter.mock("shop.helpers")
        exporter.intern("shop.**")
        exporter.extern("torch.**")
        exporter.save_pickle("model", "model.pkl", shop.Net())
    with pytest.raises(NotImplementedError, match="mocked out"):
        PackageImporter(places[1]).load_pickle("model", "model.pkl")(torch.ones(1, 2))
    with pytest.raises(ImportError, match="has been disallowed"):
        PackageImporter(places[1], module_allowed=lambda name: False)

    def refused(place: str) -> None:
        with PackageExporter(place) as exporter:
            exporter.deny("shop.helpers")
            exporter.intern("shop.**")
            exporter.extern("torch.**")
            exporter.save_pickle("model", "model.pkl", shop.Net())

    before = store.read("p.pt")
    with pytest.raises(PackagingError, match="denied"):
        refused(places[1])
    assert store.read("p.pt") == before


def test_a_pattern_that_matches_nothing_publishes_nothing(store: Place, scope: None, places: tuple[str, str]) -> None:
    exporter = PackageExporter(places[1])
    exporter.extern("nothing.like.it", allow_empty=False)
    exporter.save_text("a", "b", "c")
    with pytest.raises(EmptyMatchError):
        exporter.close()
    assert store.files() == {}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_exporter_that_raises_publishes_nothing(
    store: Place, scope: None, places: tuple[str, str], error: type[BaseException], tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    with pytest.raises(error), PackageExporter(places[1]) as exporter:
        exporter.save_text("a", "b", "c")
        raise error
    finally_closed = PackageExporter(places[1])
    try:
        finally_closed.save_text("a", "b", "c")
        raise ValueError
    except ValueError:
        with pytest.warns(RuntimeWarning, match="was not published"):
            finally_closed.close()
    assert store.files() == {}
    del exporter, finally_closed
    gc.collect()
    assert os.listdir(tmp_path / "temporary") == []


def test_unzipped_archive_is_a_directory_to_import_from(
    store: Place, scope: None, shop: Any, places: tuple[str, str], tmp_path: Path
) -> None:
    export(places[1], shop, "no tensors: torch itself reads none from a directory")
    (tmp_path / "zip").write_bytes(store.read("p.pt"))
    with zipfile.ZipFile(tmp_path / "zip") as archive:
        for name in archive.namelist():
            store.put(f"tree/{name.partition('/')[2]}", archive.read(name))
    importer = PackageImporter(store.url("tree"))
    assert importer.load_text("config", "words.txt") == "hello"
    assert importer.load_pickle("model", "model.pkl").startswith("no tensors")
    assert importer.import_module("made.up").VALUE == 7


def test_import_of_nothing_says_so(store: Place, scope: None) -> None:
    with pytest.raises(FileNotFoundError):
        PackageImporter(store.url("missing.pt"))


def test_isinstance_and_subclasses_hold(store: Place, scope: None, places: tuple[str, str]) -> None:
    class Mine(PackageExporter):  # type: ignore[misc]
        closed = 0

        def close(self) -> None:
            self.closed += 1
            super().close()

    with Mine(places[1]) as exporter:
        exporter.save_text("a", "b", "c")
    assert exporter.closed == 1
    importer = PackageImporter(places[1])
    assert isinstance(importer, torch.package.PackageImporter)
    assert importer.load_text("a", "b") == "c"


def test_plain_functions_need_no_scope(store: Place, places: tuple[str, str]) -> None:
    for place in places:
        with remote_torch.package.PackageExporter(place) as exporter:
            exporter.save_text("a", "b", "c")
        assert remote_torch.package.PackageImporter(place).load_text("a", "b") == "c"

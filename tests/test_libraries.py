"""Libraries on URLs, as their users call them: one row per call. What worked makes the README's table.

The models are tiny and made from their configurations here; nothing is downloaded.
"""

from __future__ import annotations

import importlib
import io
import json
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Place

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # the libraries' own
    pytest.mark.timeout(240),
]

# The rows: the library, what is done with it, and what brings it in: a word of `also=`, or nothing.
ROWS: list[tuple[str, str, str | None, Callable[[Place, Path], None]]] = []


def row(library: str, call: str, also: str | None = None) -> Callable[[Any], Any]:
    """A row of the table: a function of a place and a local folder, run in a scope."""

    def add(function: Callable[[Place, Path], None]) -> Callable[[Place, Path], None]:
        ROWS.append((library, call, also, function))
        return function

    return add


# ---- through open()


@row("numpy", "save, load")
def numpy_save(place: Place, folder: Path) -> None:
    array = np.arange(12.0).reshape(3, 4)
    with open(place.url("a.npy"), "wb") as file:
        np.save(file, array)
    np.save(folder / "a.npy", array)
    assert place.read("a.npy") == (folder / "a.npy").read_bytes()
    with open(place.url("a.npy"), "rb") as file:
        assert np.array_equal(np.load(file), array)
    np.save(place.url("b.npy"), array)
    assert np.array_equal(np.load(place.url("b.npy")), array)


@row("numpy", "savez, load of an archive")
def numpy_savez(place: Place, folder: Path) -> None:
    np.savez(place.url("a.npz"), a=np.ones(3), b=np.zeros(2))
    with np.load(place.url("a.npz")) as loaded:
        assert sorted(loaded) == ["a", "b"]
        assert loaded["a"].sum() == 3


@row("numpy", 'tofile on "wb", fromfile on "r+b"')
def numpy_tofile(place: Place, folder: Path) -> None:
    with open(place.url("a.bin"), "wb") as file:
        np.arange(5).tofile(file)
    with open(place.url("a.bin"), "r+b") as file:
        assert np.array_equal(np.fromfile(file, dtype=int), np.arange(5))


@row("numpy", 'fromfile and memmap on "rb"', "torch")
def numpy_fromfile(place: Place, folder: Path) -> None:
    place.put("a.bin", np.arange(500_000).tobytes())
    with open(place.url("a.bin"), "rb") as file:
        file.seek(8)
        assert np.array_equal(np.fromfile(file, dtype=np.int64, count=3), [1, 2, 3])
        assert np.array_equal(np.fromfile(file, dtype=np.int64), np.arange(4, 500_000))
        mapped = np.memmap(file, dtype=np.int64, mode="r")
    assert np.array_equal(mapped, np.arange(500_000))


@row("numpy", 'memmap on an open "r+b" file, until that is closed')
def numpy_memmap(place: Place, folder: Path) -> None:
    place.put("a.bin", np.arange(5).tobytes())
    with open(place.url("a.bin"), "r+b") as file:
        mapped = np.memmap(file, dtype=int, mode="r+", shape=(5,))
        mapped[0] = 7
        mapped.flush()
        del mapped
    assert np.frombuffer(place.read("a.bin"), dtype=int)[0] == 7


@pytest.mark.parametrize("mode", ["r+", "w+"])
def test_numpy_may_not_change_what_it_maps_by_its_name(memory_place: Place, mode: Any) -> None:
    """It closes the file at once: what is written to the map would be lost."""
    with memory_place.scope(also="all"):
        np.save(memory_place.url("a.npy"), np.arange(5))
        with pytest.raises(OSError, match="staged_local"):
            np.memmap(memory_place.url("a.bin"), dtype=int, mode=mode, shape=(5,))
        with pytest.raises(OSError, match="staged_local"):
            np.lib.format.open_memmap(memory_place.url("b.npy"), mode="w+", shape=(5,))
        with pytest.raises(OSError, match="staged_local"):
            np.load(memory_place.url("a.npy"), mmap_mode="r+")
        assert np.array_equal(np.load(memory_place.url("a.npy"), mmap_mode="r"), np.arange(5))
    assert sorted(memory_place.files()) == ["a.npy"]


def test_a_map_that_outlives_its_file_is_told(memory_place: Place) -> None:
    url = memory_place.put("a.bin", bytes(8))
    with memory_place.scope(), pytest.warns(RuntimeWarning, match="still mapped"), open(url, "r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
        mapped[:2] = b"ab"
    assert memory_place.read("a.bin") == b"ab" + bytes(6)
    mapped.close()


@row("h5py", "File on an open file")
def h5py_file(place: Place, folder: Path) -> None:
    import h5py

    with open(place.url("a.h5"), "w+b") as raw, h5py.File(raw, "w") as file:
        file["a"] = np.arange(1000)
    with open(place.url("a.h5"), "rb") as raw, h5py.File(raw, "r") as file:
        assert np.array_equal(file["a"][10:20], np.arange(10, 20))


@row("pillow", "Image.save, Image.open")
def pillow_image(place: Place, folder: Path) -> None:
    from PIL import Image

    Image.new("RGB", (4, 3), (1, 2, 3)).save(place.url("a.png"))
    with Image.open(place.url("a.png")) as image:
        assert image.getpixel((0, 0)) == (1, 2, 3)


@row("pandas", "to_csv, read_csv on open files")
def pandas_csv(place: Place, folder: Path) -> None:
    import pandas as pd

    table = pd.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    with open(place.url("a.csv"), "w", newline="") as file:
        table.to_csv(file, index=False)
    with open(place.url("a.csv")) as file:
        assert pd.read_csv(file).equals(table)


@row("pandas", "to_csv, read_parquet by URL")
def pandas_url(place: Place, folder: Path) -> None:
    import pandas as pd

    table = pd.DataFrame({"a": [1, 2]})
    table.to_csv(place.url("a.csv"), index=False)
    table.to_parquet(place.url("a.parquet"))
    assert pd.read_csv(place.url("a.csv")).equals(table)
    assert pd.read_parquet(place.url("a.parquet")).equals(table)


@row("pyarrow", "parquet on open files")
def pyarrow_parquet(place: Place, folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"a": list(range(1000)), "b": ["x"] * 1000})
    with open(place.url("a.parquet"), "wb") as file:
        pq.write_table(table, file)
    with open(place.url("a.parquet"), "rb") as file:
        assert pq.read_table(file, columns=["a"]).column("a").to_pylist() == list(range(1000))


# ---- what speaks URLs by itself


@row("torch.distributed.checkpoint", "save, load by checkpoint_id")
def dcp_checkpoint(place: Place, folder: Path) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    state = {"w": torch.arange(6.0)}
    dcp.save(state, checkpoint_id=place.url("c"))
    loaded = {"w": torch.zeros(6)}
    dcp.load(loaded, checkpoint_id=place.url("c"))
    assert torch.equal(loaded["w"], state["w"])


@row("tensorboard", "SummaryWriter by URL")
def tensorboard_writer(place: Place, folder: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(place.url("logs"))
    writer.add_scalar("loss", 0.5, 1)
    writer.close()
    (name,) = [name for name in place.files() if name.startswith("logs/")]
    assert b"loss" in place.read(name)


@row("lightning", "Trainer with a checkpoint directory by URL", "torch")
def lightning_trainer(place: Place, folder: Path) -> None:
    import torch
    from lightning import LightningModule, Trainer

    class Module(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, number: int) -> Any:
            return self.layer(batch[0]).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 2)))
    options = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    Trainer(max_epochs=1, default_root_dir=place.url("run"), **options).fit(Module(), data)
    (name,) = [name for name in place.files() if name.endswith(".ckpt")]
    Trainer(max_epochs=2, default_root_dir=place.url("run"), **options).fit(Module(), data, ckpt_path=place.url(name))


# ---- with also="torch"


def state_dict() -> dict[str, Any]:
    torch = importlib.import_module("torch")
    return {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(300_000)}


def equal_dicts(one: dict[str, Any], other: dict[str, Any]) -> bool:
    torch = importlib.import_module("torch")
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@row("torch", "save, load; mmap=True and the legacy format too", "torch")
def torch_save(place: Place, folder: Path) -> None:
    import torch

    torch.save(state_dict(), place.url("a.pt"))
    torch.save(state_dict(), folder / "a.pt")
    assert place.read("a.pt") == (folder / "a.pt").read_bytes()
    for keywords in ({}, {"mmap": True}, {"weights_only": False}, {"map_location": "cpu"}):
        assert equal_dicts(torch.load(place.url("a.pt"), **keywords), state_dict())
    torch.save(state_dict(), place.url("b.pt"), _use_new_zipfile_serialization=False)
    assert equal_dicts(torch.load(place.url("b.pt")), state_dict())


@row("torch", "jit.save, jit.load, ScriptModule.save, with _extra_files", "torch")
def torch_jit(place: Place, folder: Path) -> None:
    import torch

    module = torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2))
    torch.jit.save(module, place.url("a.pt"), _extra_files={"note": b"x"})
    module.save(place.url("b.pt"))
    extra = {"note": ""}
    for url in (place.url("a.pt"), place.url("b.pt")):
        loaded = torch.jit.load(url, _extra_files=extra if url.endswith("a.pt") else None)
        assert torch.equal(loaded(torch.ones(1, 2)), module(torch.ones(1, 2)))
    assert extra == {"note": b"x"}


@row("torch", "export.save, export.load", "torch")
def torch_export(place: Place, folder: Path) -> None:
    import torch

    x = torch.ones(1, 2)
    model = torch.nn.Linear(2, 2)
    torch.export.save(torch.export.export(model, (x,)), place.url("a.pt2"))
    assert torch.equal(torch.export.load(place.url("a.pt2")).module()(x), model(x))


@row("torch", "package.PackageExporter, package.PackageImporter", "torch")
def torch_package(place: Place, folder: Path) -> None:
    from torch.package import PackageExporter, PackageImporter

    for target in (place.url("a.pt"), str(folder / "a.pt")):
        with PackageExporter(target) as exporter:
            exporter.save_source_string("model", "def answer():\n    return 42\n")
            exporter.save_text("notes", "a.txt", "x")
            exporter.save_pickle("data", "a.pkl", [1, 2])
    assert place.read("a.pt") == (folder / "a.pt").read_bytes()
    importer = PackageImporter(place.url("a.pt"))
    assert importer.import_module("model").answer() == 42
    assert importer.load_text("notes", "a.txt") == "x"
    assert importer.load_pickle("data", "a.pkl") == [1, 2]


@row("safetensors", "torch.save_file, torch.load_file", "torch")
def safetensors_file(place: Place, folder: Path) -> None:
    from safetensors import torch as st

    st.save_file(state_dict(), place.url("a.safetensors"), {"made": "here"})
    st.save_file(state_dict(), folder / "a.safetensors", {"made": "here"})
    assert place.read("a.safetensors") == (folder / "a.safetensors").read_bytes()
    assert equal_dicts(st.load_file(place.url("a.safetensors")), state_dict())


@row("safetensors", "torch.save_model, torch.load_model", "torch")
def safetensors_model(place: Place, folder: Path) -> None:
    import torch
    from safetensors import torch as st

    model, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    st.save_model(model, place.url("a.safetensors"))
    assert st.load_model(other, place.url("a.safetensors")) == (set(), [])
    assert equal_dicts(model.state_dict(), other.state_dict())


@row("safetensors", "numpy.save_file, numpy.load_file", "torch")
def safetensors_numpy(place: Place, folder: Path) -> None:
    from safetensors import numpy as st

    st.save_file({"w": np.arange(6.0)}, place.url("a.safetensors"))
    assert np.array_equal(st.load_file(place.url("a.safetensors"))["w"], np.arange(6.0))


@row("safetensors", "safe_open: keys, metadata, get_tensor, get_slice, offset_keys", "torch")
def safetensors_open(place: Place, folder: Path) -> None:
    import torch
    from safetensors import safe_open
    from safetensors import torch as st

    st.save_file(state_dict(), place.url("a.safetensors"), {"made": "here"})
    with safe_open(place.url("a.safetensors"), "pt") as file:
        assert sorted(file.keys()) == sorted(file.offset_keys()) == ["b", "w"]
        assert file.metadata() == {"made": "here"}
        assert torch.equal(file.get_tensor("w"), state_dict()["w"])
        assert torch.equal(file.get_slice("b")[10:12], torch.ones(2))


# ---- with also="all"


def tiny_bert() -> Any:
    transformers = importlib.import_module("transformers")
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
    )
    return transformers.BertForSequenceClassification(config)


def words() -> Any:
    """A fast tokenizer of five words."""
    transformers = importlib.import_module("transformers")
    tokenizers = importlib.import_module("tokenizers")
    vocabulary = {word: number for number, word in enumerate(["[UNK]", "[PAD]", "hello", "world", "again"])}
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="[UNK]", pad_token="[PAD]")


def equal_states(one: Any, other: Any) -> bool:
    torch = importlib.import_module("torch")
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


@row("transformers", "save_pretrained, from_pretrained of a model", "all")
def transformers_model(place: Place, folder: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    model = tiny_bert()
    model.save_pretrained(place.url("m"))
    model.save_pretrained(folder / "m")
    assert place.read("m/model.safetensors") == (folder / "m/model.safetensors").read_bytes()
    assert equal_states(AutoModelForSequenceClassification.from_pretrained(place.url("m")), model)


@row("transformers", "save_pretrained, from_pretrained in shards", "all")
def transformers_shards(place: Place, folder: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    model = tiny_bert()
    model.save_pretrained(place.url("m"), max_shard_size="5KB")
    assert json.loads(place.read("m/model.safetensors.index.json"))["weight_map"]
    assert equal_states(AutoModelForSequenceClassification.from_pretrained(place.url("m")), model)


@row("transformers", "save_pretrained, from_pretrained of a tokenizer", "all")
def transformers_tokenizer(place: Place, folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    tokenizer = words()
    tokenizer.save_pretrained(place.url("t"))
    loaded = PreTrainedTokenizerFast.from_pretrained(place.url("t"))
    assert loaded("hello world")["input_ids"] == tokenizer("hello world")["input_ids"]


@row("transformers", "Trainer: checkpoints, rotation, resuming", "all")
def transformers_trainer(place: Place, folder: Path) -> None:
    import torch
    from transformers import Trainer, TrainingArguments

    data = [{"input_ids": torch.tensor([2, 3, 4]), "labels": torch.tensor(number % 2)} for number in range(8)]

    def arguments(steps: int) -> Any:
        return TrainingArguments(
            output_dir=place.url("run"), max_steps=steps, save_steps=2, save_total_limit=2, report_to=[],
            per_device_train_batch_size=2, use_cpu=True, disable_tqdm=True, logging_steps=1,
        )  # fmt: skip

    Trainer(tiny_bert(), arguments(6), train_dataset=data).train()
    kept = {name.split("/")[1] for name in place.files() if name.startswith("run/checkpoint-")}
    assert kept == {"checkpoint-4", "checkpoint-6"}
    trainer = Trainer(tiny_bert(), arguments(8), train_dataset=data)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 8
    trainer.save_model(place.url("final"))
    assert "final/model.safetensors" in place.files()


@row("accelerate", "save_state, load_state", "all")
def accelerate_state(place: Place, folder: Path) -> None:
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(2, 2)
    model, _ = accelerator.prepare(model, torch.optim.Adam(model.parameters()))
    accelerator.save_state(place.url("s"))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        model.weight.zero_()
    accelerator.load_state(place.url("s"))
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in before)


@row("accelerate", "save_model, load_checkpoint_in_model", "all")
def accelerate_model(place: Place, folder: Path) -> None:
    import torch
    from accelerate import Accelerator, load_checkpoint_in_model

    model, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    Accelerator(cpu=True).save_model(model, place.url("m"))
    load_checkpoint_in_model(other, place.url("m"))
    assert torch.equal(other.weight, model.weight)


@row("tokenizers", "Tokenizer.save, Tokenizer.from_file", "torch")
def tokenizers_file(place: Place, folder: Path) -> None:
    from tokenizers import Tokenizer

    raw = words().backend_tokenizer
    raw.save(place.url("t.json"))
    raw.save(str(folder / "t.json"))
    assert place.read("t.json") == (folder / "t.json").read_bytes()
    assert Tokenizer.from_file(place.url("t.json")).to_str() == raw.to_str()
    assert raw.model.save(place.url("vocab"), "my") == [place.url("vocab/my-vocab.json")]
    assert json.loads(place.read("vocab/my-vocab.json"))["hello"] == 2


NEEDS = {
    "accelerate": ("accelerate",),
    "numpy": (),
    "pandas": ("pandas", "pyarrow"),
    "pillow": ("PIL",),
    "safetensors": ("torch", "safetensors"),
    "tensorboard": ("torch", "tensorboard"),
    "tokenizers": ("transformers",),
    "torch.distributed.checkpoint": ("torch",),
    "transformers": ("transformers", "accelerate"),
}


@pytest.mark.parametrize(("library", "call", "also", "function"), ROWS, ids=[each[3].__name__ for each in ROWS])
def test_library(
    store: Place, tmp_path: Path, monkeypatch: Any, library: str, call: str, also: str | None, function: Any
) -> None:
    for package in NEEDS.get(library, (library,)):
        pytest.importorskip(package)  # an extra of its own: remoteio[test-libraries]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with store.scope(also=also) if also else store.scope():
        function(store, tmp_path)
    assert os.listdir() == [], "something was written beside the store"


def test_what_works_is_what_the_readme_says() -> None:
    readme = Path(__file__).parent.parent / "README.md"
    text = readme.read_text()
    missing = [line for line in table().splitlines() if line not in text]
    assert not missing, "python -m tests.test_libraries prints the table"


def table() -> str:
    """The rows as a table of the README."""
    lines = io.StringIO()
    print("| library | works on URLs | with |", "|---|---|---|", sep="\n", file=lines)
    for library, call, also, _ in ROWS:
        print(f"| {library} | {call} | `remote_io({f'also={also!r}' if also else ''})` |".replace("'", '"'), file=lines)
    return lines.getvalue()


if __name__ == "__main__":
    print(table(), end="")

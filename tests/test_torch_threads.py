"""Threads and processes of real libraries are in the scope that started them."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")  # an extra that not everyone who runs the tests has
import multiprocessing  # noqa: E402

import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from remoteio import remote_io  # noqa: E402
from tests.conftest import Place  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"),
    pytest.mark.timeout(240),
]


class Shards(Dataset):  # type: ignore[misc]
    """One tensor from each file: by torch.load, which is C++ beyond the Python call, and by open."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls

    def __len__(self) -> int:
        return len(self.urls)

    def __getitem__(self, number: int) -> Any:
        with open(self.urls[number], "rb") as file:
            assert file.read(2) == b"PK"
        return torch.load(self.urls[number]), torch.tensor(os.getpid()), torch.load(self.urls[number], mmap=True)


@pytest.fixture
def shards(s3_place: Place) -> list[str]:
    urls = [s3_place.url(f"shard-{number}.pt") for number in range(6)]
    with s3_place.scope(also="torch"):
        for number, url in enumerate(urls):
            torch.save(torch.full((3,), float(number)), url)
    return urls


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_data_loader_workers(s3_place: Place, shards: list[str], method: str) -> None:
    with s3_place.scope(also="torch") as scope:
        started = None if method == "fork" else scope.enter_worker
        loader = DataLoader(
            Shards(shards),
            num_workers=2,
            multiprocessing_context=method,
            worker_init_fn=started,
            persistent_workers=False,
        )
        found = list(loader)
    assert [batch[0][0, 0].item() for batch in found] == [0, 1, 2, 3, 4, 5]
    assert [batch[2][0, 0].item() for batch in found] == [0, 1, 2, 3, 4, 5]
    assert os.getpid() not in {batch[1].item() for batch in found}


def load_first(url: str) -> float:
    return float(torch.load(url)[0])


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_process_pool(s3_place: Place, shards: list[str], method: str) -> None:
    context = multiprocessing.get_context(method)
    with (
        s3_place.scope(also="torch") as scope,
        ProcessPoolExecutor(2, context, initializer=scope.enter_worker) as pool,
    ):
        assert list(pool.map(load_first, shards)) == [0, 1, 2, 3, 4, 5]


def test_thread_pool(s3_place: Place, shards: list[str]) -> None:
    with ThreadPoolExecutor(3) as pool, s3_place.scope(also="torch"):
        assert list(pool.map(load_first, shards)) == [0, 1, 2, 3, 4, 5]


def test_threads_of_an_asynchronous_checkpoint(store: Place) -> None:
    with store.scope(also="all"):
        future = dcp.async_save({"w": torch.ones(3)}, checkpoint_id=store.url("c"))
        future.result()
        loaded = {"w": torch.zeros(3)}
        dcp.load(loaded, checkpoint_id=store.url("c"))
    assert torch.equal(loaded["w"], torch.ones(3))


def test_torchs_own_file_writer_on_a_url_with_several_threads(store: Place) -> None:
    with store.scope(also="all"):
        tensors = {f"w{number}": torch.full((10,), float(number)) for number in range(6)}
        dcp.save(tensors, storage_writer=dcp.FileSystemWriter(store.url("c"), thread_count=3))
        loaded = {name: torch.zeros(10) for name in tensors}
        dcp.load(loaded, storage_reader=dcp.FileSystemReader(store.url("c")))
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    assert "c/.metadata" in store.files()


def test_loader_threads_of_transformers(store: Place, monkeypatch: Any) -> None:
    transformers = pytest.importorskip("transformers")  # an extra of its own: remoteio[test-libraries]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=4, num_attention_heads=2, intermediate_size=16
    )
    model = transformers.BertModel(config)
    with store.scope(also="all"):
        model.save_pretrained(store.url("m"), max_shard_size="5KB")
        for parallel in ("1", "0"):
            monkeypatch.setenv("HF_ENABLE_PARALLEL_LOADING", parallel)
            monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", parallel)
            loaded = transformers.BertModel.from_pretrained(store.url("m"))
            for one, other in zip(loaded.state_dict().values(), model.state_dict().values(), strict=True):
                assert torch.equal(one, other)


def test_a_thread_that_was_there_before_is_native(memory_place: Place) -> None:
    ready, go, told = threading.Event(), threading.Event(), []

    def work() -> None:
        ready.set()
        go.wait(120)
        try:
            torch.load(memory_place.url("a.pt"))
        except FileNotFoundError as error:
            told.append(str(error.filename))

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait(120)
    with remote_io(also="torch"):
        torch.save(1, memory_place.url("a.pt"))
        go.set()
        thread.join(120)
    assert told == [memory_place.url("a.pt")]

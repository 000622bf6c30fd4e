"""Distributed checkpoints on URLs: our reader and writer, and torch's own beside them."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")  # an extra that not everyone who runs the tests has
import torch.distributed.checkpoint as dcp  # noqa: E402

from remoteio import checkpoint  # noqa: E402
from tests import servers  # noqa: E402
from tests.conftest import Place  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # torch's own


def state(fill: float = 1.0) -> dict[str, Any]:
    return {"w": torch.full((300, 1000), fill), "n": {"b": torch.arange(5), "e": torch.empty(0)}, "text": f"of {fill}"}


def empty() -> dict[str, Any]:
    return {"w": torch.zeros(300, 1000), "n": {"b": torch.zeros(5, dtype=torch.int64), "e": torch.empty(0)}, "text": ""}


def is_loaded(found: dict[str, Any], fill: float = 1.0) -> bool:
    wanted = state(fill)
    return (
        torch.equal(found["w"], wanted["w"])
        and torch.equal(found["n"]["b"], wanted["n"]["b"])
        and found["text"] == wanted["text"]
    )


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("single", [True, False])
def test_what_was_saved_is_loaded(store: Place, threads: int, single: bool) -> None:
    url = store.url("c")
    dcp.save(state(), storage_writer=checkpoint.Writer(url, single_file_per_rank=single, thread_count=threads))
    found = empty()
    dcp.load(found, storage_reader=checkpoint.Reader(url))
    assert is_loaded(found)
    assert "c/.metadata" in store.files()
    assert not [name for name in store.files() if name.endswith(".tmp")]


def test_torchs_own_reader_and_writer_understand_ours(store: Place) -> None:
    dcp.save(state(2.0), checkpoint_id=store.url("theirs"))
    found = empty()
    dcp.load(found, storage_reader=checkpoint.Reader(store.url("theirs")))
    assert is_loaded(found, 2.0)
    dcp.save(state(3.0), storage_writer=checkpoint.Writer(store.url("ours")))
    found = empty()
    dcp.load(found, checkpoint_id=store.url("ours"))
    assert is_loaded(found, 3.0)


def test_one_tensor_of_many_is_read_alone(proxy_place: Place, proxy: servers.Proxy) -> None:
    many = {f"t{number}": torch.full((256, 1024), float(number)) for number in range(16)}
    with proxy_place.scope():
        dcp.save(many, storage_writer=checkpoint.Writer(proxy_place.url("c")))
        reader = checkpoint.Reader(proxy_place.url("c"))
        found = {"t7": torch.zeros(256, 1024)}
        proxy.reset()
        dcp.load(found, storage_reader=reader)
    assert torch.equal(found["t7"], many["t7"])
    ranges = [r.headers["range"].removeprefix("bytes=").split("-") for r in proxy.requests if "range" in r.headers]
    assert sum(int(last) - int(first) + 1 for first, last in ranges) < 1.2 * 2**20


def test_saving_again_replaces_the_checkpoint(store: Place) -> None:
    for fill in (1.0, 2.0):
        dcp.save(state(fill), storage_writer=checkpoint.Writer(store.url("c")))
    found = empty()
    dcp.load(found, storage_reader=checkpoint.Reader(store.url("c")))
    assert is_loaded(found, 2.0)
    with pytest.raises(dcp.api.CheckpointException):
        dcp.save(state(), storage_writer=checkpoint.Writer(store.url("c"), overwrite=False))


def test_metadata_is_replaced_in_one_step(proxy_place: Place, proxy: servers.Proxy) -> None:
    with proxy_place.scope():
        dcp.save(state(), storage_writer=checkpoint.Writer(proxy_place.url("c")))
        proxy.reset()
        dcp.save(state(2.0), storage_writer=checkpoint.Writer(proxy_place.url("c")))
    about = [request.operation for request in proxy.requests if ".metadata" in request.path]
    assert about.count("PutObject") == 1
    assert not {"DeleteObject", "CopyObject", "DeleteObjects"} & set(about)


def test_a_failed_save_leaves_the_old_metadata(proxy_place: Place, proxy: servers.Proxy) -> None:
    with proxy_place.scope():
        dcp.save(state(), storage_writer=checkpoint.Writer(proxy_place.url("c")))
        before = proxy_place.read("c/.metadata")
        proxy.deny(operation="PutObject", target=r"distcp")
        with pytest.raises((dcp.api.CheckpointException, OSError)):
            dcp.save(state(2.0), storage_writer=checkpoint.Writer(proxy_place.url("c")))
        proxy.clear()
    assert proxy_place.read("c/.metadata") == before


@pytest.mark.parametrize("threads", [1, 2])
def test_async_save(store: Place, threads: int) -> None:
    future = dcp.async_save(state(4.0), storage_writer=checkpoint.Writer(store.url("c"), thread_count=threads))
    future.result()
    found = empty()
    dcp.load(found, storage_reader=checkpoint.Reader(store.url("c")))
    assert is_loaded(found, 4.0)


def test_local_paths_work_too(tmp_path: Any) -> None:
    for path in (str(tmp_path / "c"), (tmp_path / "d").as_uri()):
        dcp.save(state(), storage_writer=checkpoint.Writer(path))
        found = empty()
        dcp.load(found, storage_reader=checkpoint.Reader(path))
        assert is_loaded(found)
    assert (tmp_path / "d" / ".metadata").exists()


def test_which_places_are_taken() -> None:
    assert checkpoint.Writer.validate_checkpoint_id("s3://bucket/c")
    assert checkpoint.Reader.validate_checkpoint_id("memory://c")
    assert not checkpoint.Reader.validate_checkpoint_id("nothing-known://c")


def test_the_filesystem_of_the_reader_renames_lists_and_removes(store: Place) -> None:
    from remoteio import _settings
    from remoteio.checkpoint import _Store

    with store.scope():
        files = _Store(_settings.current())
        files.mkdir(store.url("d"))
        store.put("d/a", b"x")
        files.rename(store.url("d/a"), store.url("d/b"))
        assert files.ls(store.url("d")) == [store.url("d/b")]
        assert files.exists(store.url("d/b"))
        files.rm_file(store.url("d/b"))
        assert not files.exists(store.url("d/b"))
        with pytest.raises(ValueError, match="not a URL"):
            files.exists("/tmp")

"""What becomes of the copy whose upload failed or was interrupted."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from remoteio import StagingError, _staging_kept, cache, cli, resume_upload, staged_local
from tests import servers
from tests.conftest import Place
from tests.staging_help import ended, left_in, start, tree, write


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for what staging writes where there is no cache."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    for name in ("LOCAL_CACHE_DIR", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cache."""
    return tmp_path / "cache"


@pytest.fixture(params=["memory", "s3", "gcs"])
def remote(request: pytest.FixtureRequest) -> Place:
    """An empty directory, on each kind of object store in turn."""
    found: Place = request.getfixturevalue(f"{request.param}_place")
    return found


def fail(place: Place, name: str = "run", folder: Path | None = None, size: int = 1000) -> str:
    """Let an upload be refused; where its copy is kept."""
    with pytest.raises(StagingError) as caught, staged_local(place.url(f"{name}/"), "w", cache_dir=folder) as path:
        write(f"{path}/work", b"w" * size)
        os.symlink("/etc/hostname", f"{path}/foreign")
    assert caught.value.kept_path
    return caught.value.kept_path


# ---- listed


def test_a_kept_copy_is_listed_with_all_that_is_known_of_it(memory_place: Place, folder: Path) -> None:
    before = time.time()
    path = fail(memory_place, folder=folder)
    (one,) = cache.kept(folder)
    assert (one.path, one.url) == (path, memory_place.url("run/"))
    assert 1000 <= one.size < 2000
    assert before <= one.since <= time.time()
    assert not one.in_use


def test_the_oldest_comes_first(memory_place: Place, folder: Path) -> None:
    paths = [fail(memory_place, name, folder) for name in ("b", "a", "c")]
    assert [one.path for one in cache.kept(folder)] == paths


def test_no_credential_of_a_url_is_shown(memory_place: Place, folder: Path) -> None:
    url = "memory://user:secret-word@host/run/"
    with pytest.raises(StagingError), staged_local(url, "w", cache_dir=folder) as path:
        os.symlink("/etc/hostname", f"{path}/foreign")
    (one,) = cache.kept(folder)
    assert "secret-word" not in one.url + repr(one)


def test_where_no_cache_is_named_those_of_both_places_are_listed(
    memory_place: Place, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = fail(memory_place)
    monkeypatch.setenv("LOCAL_CACHE_DIR", str(folder))
    within = fail(memory_place)
    assert [one.path for one in cache.kept()] == [without, within]
    assert [one.path for one in cache.kept(folder)] == [within]


def test_one_that_was_sent_is_listed_no_more(memory_place: Place, folder: Path) -> None:
    path = fail(memory_place, folder=folder)
    os.unlink(f"{path}/foreign")
    resume_upload(path)
    assert memory_place.read("run/work") == b"w" * 1000
    assert list(cache.kept(folder)) == []


def test_sending_the_last_one_leaves_nothing_where_there_is_no_cache(memory_place: Place, scratch: Path) -> None:
    path = fail(memory_place)
    os.unlink(f"{path}/foreign")
    resume_upload(path)
    assert left_in(scratch) == []


# ---- counted apart, and never removed by the way


@pytest.fixture
def both(s3_place: Place, folder: Path) -> str:
    """A cache with an entry of 500 bytes and a kept copy, whose path this is."""
    with staged_local(s3_place.put("entry", b"e" * 500), "r", cache_dir=folder):
        pass
    return fail(s3_place, folder=folder)


def test_the_size_of_a_cache_is_that_of_its_entries(both: str, folder: Path) -> None:
    assert 500 <= cache.size(folder) < 1000
    assert len(cache.list(folder)) == 1


def test_neither_limit_nor_clear_nor_use_touches_a_kept_copy(both: str, s3_place: Place, folder: Path) -> None:
    cache.limit(0, folder)
    cache.clear(cache_dir=folder)
    cache.clear(s3_place.url("run"), folder)
    assert list(cache.list(folder)) == []
    for mode in ("w", "r+"):
        with staged_local(s3_place.url("other"), mode, cache_dir=folder):  # type: ignore[arg-type]
            pass
    assert tree(both)["work"] == b"w" * 1000


def test_it_is_thrown_away_where_that_is_asked_for_and_no_entry_is(both: str, folder: Path) -> None:
    assert cache.clear(cache_dir=folder, kept=True) >= 1000
    assert not os.path.exists(os.path.dirname(os.path.dirname(both)))
    assert len(cache.list(folder)) == 1


def test_only_those_of_one_url_are_thrown_away(memory_place: Place, folder: Path) -> None:
    paths = [fail(memory_place, name, folder) for name in ("a", "b")]
    cache.clear(memory_place.url("a"), folder, kept=True)
    assert [one.path for one in cache.kept(folder)] == paths[1:]


def test_what_is_left_of_a_half_removed_one_is_listed_and_goes_too(memory_place: Place, folder: Path) -> None:
    path = fail(memory_place, folder=folder)
    os.unlink(os.path.join(os.path.dirname(os.path.dirname(path)), "upload.json"))
    (one,) = cache.kept(folder)
    assert (one.url, one.size) == ("", 1013)  # the link's own name counts
    cache.clear(cache_dir=folder, kept=True)
    assert list(cache.kept(folder)) == []


def test_one_that_is_being_sent_is_neither_thrown_away_nor_sent_by_another(
    s3_place: Place, proxy: servers.Proxy, folder: Path
) -> None:
    path = fail(s3_place, folder=folder)
    os.unlink(f"{path}/foreign")
    proxy.hang(operation="PutObject")
    process = start("import sys, remoteio; remoteio.resume_upload(sys.argv[1])", path, **proxy.environment())
    with ended(process):
        while not proxy.tally["PutObject"]:
            time.sleep(0.02)
        assert cache.kept(folder)[0].in_use
        assert cache.clear(cache_dir=folder, kept=True) == 0
        with pytest.raises(StagingError, match="another process is sending it"):
            resume_upload(path)
    resume_upload(path)
    assert s3_place.read("run/work") == b"w" * 1000


# ---- the command


def test_the_command_lists_kept_copies_without_a_cache(memory_place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    path = fail(memory_place)
    assert cli.main(["cache", "kept"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.split()[-2:] == [memory_place.url("run/"), path]
    assert line.split()[2] == "s"


@pytest.mark.parametrize(("seconds", "said"), [(5, "5 s"), (61, "1 min"), (7200, "2 h"), (7 * 86400, "7 d")])
def test_an_age_is_told_in_its_largest_unit(seconds: float, said: str) -> None:
    assert cli._age(seconds) == said


@pytest.mark.parametrize("action", ["list", "size"])
def test_other_answers_only_hint_at_kept_copies(
    both: str, folder: Path, capsys: pytest.CaptureFixture[str], action: str
) -> None:
    cli.main(["cache", action, "--cache-dir", str(folder)])
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 1
    assert both not in said.out
    assert "bytes of uploads that failed" in said.err


def test_the_command_throws_kept_copies_away_only_with_their_word(
    memory_place: Place, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fail(memory_place, folder=folder)
    cli.main(["cache", "clear", "--cache-dir", str(folder)])
    assert len(cache.kept(folder)) == 1
    cli.main(["cache", "clear", "--kept", "--cache-dir", str(folder)])
    assert list(cache.kept(folder)) == []


# ---- interrupts


@pytest.mark.usefixtures("uncollected")
def test_an_interrupted_upload_is_kept_through_the_next_use_and_sent_later(
    s3_place: Place, proxy: servers.Proxy, scratch: Path
) -> None:
    proxy.before(lambda: os.kill(os.getpid(), signal.SIGINT), operation="PutObject", times=1)
    proxy.delay(3, operation="PutObject", skip=1)
    with (
        pytest.raises(KeyboardInterrupt),
        staged_local(s3_place.url("run/"), "w", storage_options=proxy.storage_options, max_concurrency=1) as path,
    ):
        for name in "ab":
            write(f"{path}/{name}", name)
    with staged_local(s3_place.url("other"), "w"):
        pass
    (one,) = cache.kept()
    assert not any("/tmp/" in name for name in left_in(scratch))
    resume_upload(one.path)
    assert s3_place.files() == {"run/a": b"a", "run/b": b"b"}
    assert left_in(scratch) == []


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("shared", [False, True])
def test_a_further_interrupt_does_not_lose_the_copy_that_is_being_kept(
    memory_place: Place, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    true = _staging_kept._keep

    def slowly(*given: Any) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)
        return true(*given)

    monkeypatch.setattr(_staging_kept, "_keep", slowly)
    with pytest.raises(KeyboardInterrupt), staged_local(memory_place.url("run/"), "w", shared=shared) as path:
        write(f"{path}/work", b"w")
        os.symlink("/etc/hostname", f"{path}/foreign")
    (one,) = cache.kept()
    assert tree(one.path)["work"] == b"w"


def test_where_no_thread_starts_any_more_the_copy_is_kept_all_the_same(
    memory_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", start)
    path = fail(memory_place)
    assert tree(path)["work"] == b"w" * 1000


# ---- what the progress callable raises


class Enough(Exception):
    """What a callable raises here."""


class Counting:
    """A callable that raises once bytes have moved, and counts how often it was asked after that."""

    def __init__(self, at: int = 1) -> None:
        self.at = at
        self.raised = 0

    def __call__(self, done: int, total: int, url: str) -> None:
        if done >= self.at:
            self.raised += 1
            raise Enough("enough")


@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize("at", [0, 1])
def test_on_the_way_down_it_is_raised_as_it_is_and_nothing_stays(
    remote: Place, scratch: Path, mode: Any, at: int
) -> None:
    url = remote.put("x", b"1" * 1000)
    counting = Counting(at)
    with pytest.raises(Enough), staged_local(url, mode, progress=counting):
        raise AssertionError("the block was entered")
    assert counting.raised == 1
    assert not (scratch / f"remoteio-{os.getuid()}-live").exists()  # a server may have been started in there too


def test_those_who_wait_for_a_download_have_not_failed_where_its_callable_raised(s3_place: Place) -> None:
    url = s3_place.put("x", b"1" * 1000)
    begun, waiting = threading.Event(), threading.Event()

    def raising(done: int, total: int, url: str) -> None:
        begun.set()
        waiting.wait(120)
        time.sleep(0.5)
        raise BrokenPipeError("nobody reads this")

    def wait() -> bytes:
        begun.wait(120)
        waiting.set()
        with staged_local(url, "r") as path:
            return Path(path).read_bytes()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        other = pool.submit(wait)
        with pytest.raises(BrokenPipeError, match="nobody reads"):
            staged_local(url, "r", progress=raising).__enter__()
        assert other.result() == b"1" * 1000


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("shared", [False, True])
def test_on_the_way_up_it_is_raised_as_it_is_and_the_work_is_kept(
    remote: Place, caplog: pytest.LogCaptureFixture, at: int, shared: bool
) -> None:
    counting = Counting(at)
    with pytest.raises(Enough), staged_local(remote.url("run/"), "w", progress=counting, shared=shared) as path:
        write(f"{path}/x", b"1" * 1000)
    assert counting.raised == 1
    (one,) = cache.kept()
    assert f"the local copy is kept in {one.path}" in caplog.text
    assert tree(one.path) == {"x": b"1" * 1000}
    resume_upload(one.path)
    assert remote.files() == {"run/x": b"1" * 1000}


def test_on_the_way_up_the_index_does_not_follow_it(s3_place: Place) -> None:
    with pytest.raises(Enough), staged_local(s3_place.url("run/"), "w", progress=Counting()) as path:
        write(f"{path}/shard", b"1" * 1000)
        write(f"{path}/model.index.json", b"2")
    assert "run/model.index.json" not in s3_place.files()


def test_an_object_in_parts_is_not_replaced_where_it_raises_in_the_middle(
    s3_place: Place, proxy: servers.Proxy
) -> None:
    s3_place.put("x", b"old")
    proxy.delay(1, operation="UploadPart", skip=2)
    options = proxy.storage_options
    with (
        pytest.raises(Enough),
        staged_local(s3_place.url("x"), "w", progress=Counting(), storage_options=options) as path,
    ):
        write(path, b"n" * 40 * 2**20)
    assert s3_place.read("x") == b"old"
    assert proxy.tally["AbortMultipartUpload"] == 1


def test_in_a_later_sending_it_is_raised_as_it_is_too(memory_place: Place) -> None:
    path = fail(memory_place)
    os.unlink(f"{path}/foreign")
    with pytest.raises(Enough):
        resume_upload(path, progress=Counting())
    resume_upload(path)
    assert memory_place.read("run/work") == b"w" * 1000


def test_a_store_that_fails_while_a_callable_listens_is_told_as_ever(s3_place: Place, proxy: servers.Proxy) -> None:
    proxy.deny(operation="PutObject")
    options = proxy.storage_options
    with (
        pytest.raises(StagingError),
        staged_local(s3_place.url("x"), "w", progress=print, storage_options=options) as path,
    ):
        write(path, b"n")


# ---- resumed after a copy that was refused


def refused(place: Place, *, mirror: bool = False) -> str:
    """Change ``run/`` in a block whose copy cannot be sent; where it is kept, now without the obstacle."""
    block = staged_local(place.url("run/"), mirror=mirror)
    with pytest.raises(StagingError) as caught, block as path:
        write(f"{path}/changed", "new")
        os.unlink(f"{path}/deleted")
        os.symlink("/etc/hostname", f"{path}/foreign")
    kept = caught.value.kept_path
    assert kept
    os.unlink(f"{kept}/foreign")
    return kept


def test_what_the_block_did_not_touch_is_not_sent_later_either(remote: Place) -> None:
    for name in ("changed", "deleted", "untouched"):
        remote.put(f"run/{name}", "old")
    with remote.scope():
        kept = refused(remote)
        remote.put("run/untouched", "of somebody else")
        resume_upload(kept)
    assert remote.files() == {
        "run/changed": b"new", "run/deleted": b"old", "run/untouched": b"of somebody else",
    }  # fmt: skip


def test_what_was_to_be_deleted_is_deleted_later_unless_it_is_somebody_elses(remote: Place) -> None:
    for name in ("changed", "deleted", "untouched"):
        remote.put(f"run/{name}", "old")
    with remote.scope():
        kept = refused(remote, mirror=True)
        remote.put("run/later", "of somebody else")
        resume_upload(kept)
        assert remote.files() == {"run/changed": b"new", "run/later": b"of somebody else", "run/untouched": b"old"}
        remote.put("run/deleted", "old")
        kept = refused(remote, mirror=True)
        remote.put("run/deleted", "of somebody else")
        resume_upload(kept)
    assert remote.files()["run/deleted"] == b"of somebody else"

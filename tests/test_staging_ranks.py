from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remoteio import ScopeError, StagingError, staged_local
from tests import servers
from tests.conftest import Place
from tests.staging_help import ended, left_in, start, write

MIB = 2**20

# Waits until all are started, as torchrun's processes are, then stages and says what it saw.
RANK = """
    import json, os, sys, time
    from remoteio import staged_local
    url, mode, wished = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    def meet(count):
        # None leaves before so many are in, so that it is one entry that they use.
        open(f"{{os.environ['TMPDIR']}}/../met-{{os.getpid()}}", "w").close()
        while len([name for name in os.listdir(f"{{os.environ['TMPDIR']}}/..") if name.startswith("met-")]) < count:
            time.sleep(0.05)
    import s3fs
    from remoteio import _transfer
    {before}
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    said = {{"rank": os.environ.get("LOCAL_RANK")}}
    try:
        with staged_local(url, mode, **wished) as path:
            {block}
    except BaseException as error:
        said.update(error=type(error).__name__, text=str(error), kept=getattr(error, "kept_path", None))
    print(json.dumps({{**said, "seconds": time.monotonic() - began}}), flush=True)
"""
LOOK = "said.update(inode=os.stat(path).st_ino, bytes=open(path, 'rb').read().decode())"


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for all that staging writes."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    for name in ("LOCAL_CACHE_DIR", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return folder


class Ranks:
    """Processes of one node. All stage when `go` is called."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []

    def add(
        self,
        url: str,
        mode: str,
        block: str,
        *,
        before: str = "",
        environment: dict[str, str] | None = None,
        **wished: Any,
    ) -> None:
        program = RANK.replace("{before}", before).replace("{block}", block).replace("{{", "{").replace("}}", "}")
        variables = {"LOCAL_RANK": str(len(self.processes)), **(environment or {})}
        process = subprocess.Popen(
            [*_python(program), url, mode, json.dumps(wished)],
            env={**os.environ, **variables, "PYTHONPATH": str(Path(__file__).parent.parent)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)

    def go(self) -> None:
        for process in self.processes:
            assert process.stdout
            assert process.stdin
            assert process.stdout.readline() == "ready\n", process.communicate()[1]
        for process in self.processes:
            assert process.stdin
            process.stdin.write("\n")
            process.stdin.flush()

    def results(self) -> list[dict[str, Any]]:
        found = []
        for process in self.processes:
            output, errors = process.communicate(timeout=90)
            found.append(json.loads(output) if output else {"died": process.returncode, "text": errors})
        return found

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


def _python(program: str) -> list[str]:
    import sys
    import textwrap

    return [sys.executable, "-c", textwrap.dedent(program)]


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    """Processes of one node, ended with the test."""
    made = Ranks()
    yield made
    made.stop()


# ---- reading


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_eight_processes_fetch_once_and_see_one_file(
    proxy_place: Place, proxy: servers.Proxy, ranks: Ranks, mode: str
) -> None:
    url = proxy_place.put("model.pt", b"content")
    for _ in range(8):
        ranks.add(url, mode, f"{LOOK}; meet(8)", environment=proxy.environment())
    proxy.reset()
    ranks.go()
    results = ranks.results()
    assert [result["bytes"] for result in results] == ["content"] * 8
    assert proxy.tally["GetObject"] == 1
    assert len({result["inode"] for result in results}) == (1 if mode == "r" else 8)


def test_a_process_that_comes_late_sees_the_same_file(s3_place: Place, ranks: Ranks) -> None:
    url = s3_place.put("model.pt", b"content")
    ranks.add(url, "r", f"{LOOK}; meet(2)")
    ranks.add(url, "r", f"{LOOK}; meet(2)", before="time.sleep(1)")
    ranks.go()
    first, second = ranks.results()
    assert first["inode"] == second["inode"]


@pytest.mark.parametrize(
    ("status", "code", "name"), [(403, "AccessDenied", "PermissionError"), (404, "NoSuchKey", "FileNotFoundError")]
)
def test_a_lasting_error_is_raised_by_every_process(
    proxy_place: Place, proxy: servers.Proxy, ranks: Ranks, status: int, code: str, name: str
) -> None:
    url = proxy_place.put("model.pt", b"content")
    for _ in range(8):
        ranks.add(url, "r", LOOK, environment=proxy.environment())
    proxy.answer(status, code, "no", operation="GetObject")
    ranks.go()
    results = ranks.results()
    assert [result["error"] for result in results] == [name] * 8
    assert max(result["seconds"] for result in results) < 15


def test_those_who_waited_do_not_ask_again_after_a_failure(
    proxy_place: Place, proxy: servers.Proxy, ranks: Ranks
) -> None:
    url = proxy_place.put("model.pt", b"content")
    rule = proxy.hang(operation="GetObject")
    for _ in range(4):
        ranks.add(url, "r", LOOK, environment=proxy.environment())
    proxy.reset()
    ranks.go()
    while proxy.tally["HeadObject"] < 4 or not proxy.tally["GetObject"]:
        time.sleep(0.05)
    time.sleep(1.5)
    asked = proxy.tally["GetObject"]
    rule.times = 0
    proxy.deny(operation="GetObject")
    # What hangs is answered by nobody: the one who fetches is stopped, and the next one is denied.
    holder = _holder(proxy_place, ranks)
    holder.send_signal(signal.SIGKILL)
    results = [result for result in ranks.results() if "died" not in result]
    assert [result["error"] for result in results] == ["PermissionError"] * 3
    assert proxy.tally["GetObject"] == asked + 1


def _holder(place: Place, ranks: Ranks) -> subprocess.Popen[str]:
    """The process that fetches, as the lock file names it."""
    scratch = Path(os.environ["TMPDIR"])
    for lock in scratch.rglob("lock"):
        pid = json.loads(lock.read_text() or "{}").get("pid")
        for process in ranks.processes:
            if process.pid == pid:
                return process
    raise AssertionError("nobody fetches")


def test_where_the_one_who_fetches_is_killed_another_takes_over(
    proxy_place: Place, proxy: servers.Proxy, ranks: Ranks
) -> None:
    url = proxy_place.put("model.pt", b"content")
    rule = proxy.hang(operation="GetObject")
    for _ in range(3):
        ranks.add(url, "r", LOOK, environment=proxy.environment())
    ranks.go()
    while not proxy.tally["GetObject"]:
        time.sleep(0.05)
    rule.times = 0
    holder = _holder(proxy_place, ranks)
    holder.kill()
    results = [result for result in ranks.results() if "died" not in result]
    assert [result["bytes"] for result in results] == ["content"] * 2


def test_where_the_one_who_fetches_hangs_the_wait_ends_and_names_it(
    proxy_place: Place, proxy: servers.Proxy, ranks: Ranks
) -> None:
    url = proxy_place.put("model.pt", b"content")
    proxy.hang(operation="GetObject")
    ranks.add(url, "r", LOOK, environment=proxy.environment())
    ranks.go()
    while not proxy.tally["GetObject"]:
        time.sleep(0.05)
    pid = ranks.processes[0].pid
    began = time.monotonic()
    with pytest.raises(StagingError, match=f"process {pid} has been fetching"):
        staged_local(url, "r", timeout_s=1, storage_options=proxy.storage_options).__enter__()
    assert 1 <= time.monotonic() - began < 10


def test_one_who_hangs_is_not_waited_for_for_ever_without_a_bound_either(
    proxy_place: Place, proxy: servers.Proxy, ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remoteio._node_cache.STILL_S", 1.5)
    url = proxy_place.put("model.pt", b"content")
    proxy.hang(operation="GetObject")
    ranks.add(url, "r", LOOK, environment=proxy.environment())
    ranks.go()
    while not proxy.tally["GetObject"]:
        time.sleep(0.05)
    with pytest.raises(StagingError, match="has been fetching"):
        staged_local(url, "r", storage_options=proxy.storage_options).__enter__()


def test_one_who_is_slow_is_waited_for(
    proxy_place: Place, proxy: servers.Proxy, ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remoteio._node_cache.STILL_S", 3)
    url = proxy_place.put("model.pt", b"c" * 8 * MIB)
    proxy.cap(MIB)
    ranks.add(url, "r", "pass", environment=proxy.environment())
    ranks.go()
    while not proxy.tally["GetObject"]:
        time.sleep(0.05)
    began = time.monotonic()
    with staged_local(url, "r", storage_options=proxy.storage_options):
        assert time.monotonic() - began > 3
    assert proxy.tally["GetObject"] == 1
    assert "error" not in ranks.results()[0]


def test_with_broken_locks_every_process_has_the_right_bytes(s3_place: Place, ranks: Ranks) -> None:
    url = s3_place.put("model.pt", b"content")
    for broken in ("pass", "raise OSError(38, 'no')", "raise OSError(37, 'no')"):
        before = f"import fcntl\n    def flock(*_): {broken}\n    fcntl.flock = flock"
        ranks.add(url, "r", f"{LOOK}; time.sleep(0.5)", before=before)
    ranks.add(url, "r", f"{LOOK}; time.sleep(0.2)")
    ranks.go()
    assert [result["bytes"] for result in ranks.results()] == ["content"] * 4


# ---- writing


def test_files_of_several_processes_for_one_url_merge(s3_place: Place, ranks: Ranks) -> None:
    block = "open(f\"{path}/rank-{os.environ['LOCAL_RANK']}\", 'w').write('x'); open(f'{path}/same', 'w').write('same')"
    for _ in range(3):
        ranks.add(s3_place.url("run/"), "w", block)
    ranks.go()
    assert all("error" not in result for result in ranks.results())
    assert sorted(s3_place.files()) == ["run/rank-0", "run/rank-1", "run/rank-2", "run/same"]


def test_two_processes_with_other_content_under_one_name_are_an_error(s3_place: Place, ranks: Ranks) -> None:
    block = "open(f'{path}/same', 'w').write(os.environ['LOCAL_RANK']); time.sleep(1)"
    for _ in range(2):
        ranks.add(s3_place.url("run/"), "w", block)
    ranks.go()
    results = sorted(ranks.results(), key=lambda result: "error" in result)
    assert "error" not in results[0]
    assert results[1]["error"] == "StagingError"
    assert "other content" in results[1]["text"]
    assert s3_place.read("run/same").decode() == results[0]["rank"]
    assert Path(results[1]["kept"], "same").read_text() == results[1]["rank"]


def test_what_somebody_elsewhere_wrote_meanwhile_is_not_overwritten(s3_place: Place) -> None:
    url = s3_place.put("x", b"old")
    with pytest.raises(StagingError, match="somebody else has written other content"), staged_local(url) as path:
        write(path, b"mine")
        s3_place.put("x", b"theirs")
    assert s3_place.read("x") == b"theirs"


@pytest.fixture(params=["fsspec", "obstore"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each engine in turn."""
    pytest.importorskip(request.param)
    monkeypatch.setenv("REMOTEIO_ENGINE", request.param)
    return str(request.param)


@pytest.mark.parametrize("mode", ["w", "r+"])
@pytest.mark.parametrize("old", [b"", b"old"])
def test_what_comes_between_the_look_and_the_write_is_not_overwritten(
    s3_place: Place, proxy: servers.Proxy, engine: str, mode: Any, old: bytes
) -> None:
    if old:
        s3_place.put("x", old)
    proxy.before(lambda: s3_place.put("x", b"theirs"), operation="PutObject", times=1)
    with (
        pytest.raises(StagingError, match="other content there in this moment") as caught,
        staged_local(s3_place.url("x"), mode, storage_options=proxy.storage_options) as path,
    ):
        write(path, b"mine")
    assert s3_place.read("x") == b"theirs"
    assert Path(str(caught.value.kept_path)).read_bytes() == b"mine"


def test_on_gcs_too_what_comes_between_the_look_and_the_write_is_not_overwritten(
    gcs_place: Place, gcs_proxy: servers.Proxy
) -> None:
    gcs_proxy.before(lambda: gcs_place.put("x", b"theirs"), method="POST", times=1)
    with (
        pytest.raises(StagingError, match="other content there in this moment"),
        staged_local(gcs_place.url("x"), "w", storage_options=gcs_proxy.gcs_options) as path,
    ):
        write(path, b"mine")
    assert gcs_place.read("x") == b"theirs"


def test_the_same_content_from_somebody_in_the_same_moment_is_no_conflict(
    s3_place: Place, proxy: servers.Proxy, engine: str
) -> None:
    proxy.before(lambda: s3_place.put("run/a", b"same"), operation="PutObject", target="/a$", times=1)
    calls: list[tuple[int, int, str]] = []
    options = proxy.storage_options
    with staged_local(
        s3_place.url("run/"), "w", storage_options=options, progress=lambda *call: calls.append(call)
    ) as path:
        write(f"{path}/a", b"same")
        write(f"{path}/b", b"other")
    assert s3_place.files() == {"run/a": b"same", "run/b": b"other"}
    assert calls[-1][:2] == (9, 9)


@pytest.mark.parametrize(("size", "operation"), [(7, "PutObject"), (9 * MIB, "CompleteMultipartUpload")])
@pytest.mark.parametrize("old", [b"", b"old"])
def test_an_upload_whose_answer_was_lost_is_no_conflict_with_itself(
    s3_place: Place, proxy: servers.Proxy, engine: str, size: int, operation: str, old: bytes
) -> None:
    if old:
        s3_place.put("x", old)
    proxy.lose_response(operation=operation, times=1)
    with staged_local(s3_place.url("x"), "w", storage_options=proxy.storage_options) as path:
        write(path, b"n" * size)
    assert s3_place.read("x") == b"n" * size


def test_what_is_deleted_between_the_look_and_the_write_is_written_anew(
    s3_place: Place, proxy: servers.Proxy, engine: str
) -> None:
    s3_place.put("x", b"old")
    proxy.before(lambda: s3_place.fs().rm_file(s3_place.url("x")), operation="PutObject", times=1)
    with staged_local(s3_place.url("x"), storage_options=proxy.storage_options) as path:
        write(path, b"mine")
    assert s3_place.read("x") == b"mine"


def test_two_nodes_with_other_content_in_one_moment_are_an_error(
    s3_place: Place, ranks: Ranks, tmp_path: Path, proxy: servers.Proxy
) -> None:
    # Each has a temporary folder of its own, as two nodes have, so that neither knows of the other.
    proxy.delay(1, operation="PutObject")
    for node in "ab":
        (tmp_path / node / "tmp").mkdir(parents=True)
        environment = {**proxy.environment(), "TMPDIR": str(tmp_path / node / "tmp")}
        block = "open(f'{path}/same', 'w').write(os.environ['LOCAL_RANK'])"
        ranks.add(s3_place.url("run/"), "w", block, environment=environment)
    ranks.go()
    results = sorted(ranks.results(), key=lambda result: "error" in result)
    assert [result.get("error") for result in results] == [None, "StagingError"]
    assert "other content" in results[1]["text"]
    assert s3_place.read("run/same").decode() == results[0]["rank"]


def test_what_is_there_from_earlier_is_overwritten(s3_place: Place) -> None:
    for word in (b"first", b"second"):
        with staged_local(s3_place.url("run/"), "w") as path:
            write(f"{path}/x", word)
    assert s3_place.files() == {"run/x": b"second"}


# ---- one directory for all

FILL = "open(f\"{path}/rank-{os.environ['LOCAL_RANK']}\", 'w').write('x'); said.update(path=path)"
WORLD = {"LOCAL_WORLD_SIZE": "4"}
BREAK = "import fcntl\n    def flock(*_): {}\n    fcntl.flock = flock"


@pytest.fixture(params=["works", "is granted to everybody", "is not known"])
def flock(request: pytest.FixtureRequest) -> str:
    """What makes ``flock`` so in a process."""
    broken = {"is granted to everybody": "pass", "is not known": "raise OSError(38, 'no')"}
    return BREAK.format(broken[request.param]) if request.param in broken else ""


def test_a_shared_directory_goes_up_once_when_the_last_has_left(
    proxy_place: Place, proxy: servers.Proxy, ranks: Ranks, flock: str, scratch: Path
) -> None:
    for number in range(4):
        block = f"{FILL}; time.sleep({number} / 2)"
        ranks.add(
            proxy_place.url("run/"), "w", block, shared=True, before=flock, environment={**proxy.environment(), **WORLD}
        )
    proxy.reset()
    ranks.go()
    results = ranks.results()
    assert all("error" not in result for result in results), results
    assert len({result["path"] for result in results}) == 1
    assert sorted(proxy_place.files()) == [f"run/rank-{number}" for number in range(4)]
    assert proxy.tally["PutObject"] == 4
    assert left_in(scratch) == []


def test_those_who_are_early_wait_for_those_who_are_late(s3_place: Place, ranks: Ranks, flock: str) -> None:
    for _ in range(2):
        ranks.add(
            s3_place.url("run/"),
            "w",
            FILL,
            shared=True,
            environment={"LOCAL_WORLD_SIZE": "2"},
            before=flock,
        )
    for number, process in enumerate(ranks.processes):
        assert process.stdout
        assert process.stdin
        assert process.stdout.readline() == "ready\n"
        process.stdin.write("\n")
        process.stdin.flush()
        time.sleep(1 - number)
    results = ranks.results()
    assert all("error" not in result for result in results), results
    assert sorted(s3_place.files()) == ["run/rank-0", "run/rank-1"]


def test_where_one_raises_nothing_goes_up_and_all_raise(
    s3_place: Place, ranks: Ranks, flock: str, scratch: Path
) -> None:
    for number in range(4):
        end = "raise ValueError('no good')" if number == 2 else "pass"
        block = f"{FILL}; time.sleep({number} / 2)\n            {end}"
        ranks.add(s3_place.url("run/"), "w", block, shared=True, before=flock, environment=WORLD)
    ranks.go()
    results = ranks.results()
    assert [result["error"] for result in results] == ["StagingError", "StagingError", "ValueError", "StagingError"]
    assert all("no good" in result["text"] for result in results)
    assert s3_place.files() == {}
    assert left_in(scratch) == []


def test_where_one_is_killed_nothing_goes_up_and_all_raise(s3_place: Place, ranks: Ranks, flock: str) -> None:
    for number in range(3):
        block = f"{FILL}; time.sleep(1); os.kill(os.getpid(), 9)" if number == 2 else FILL
        ranks.add(s3_place.url("run/"), "w", block, shared=True, before=flock, environment={"LOCAL_WORLD_SIZE": "3"})
    ranks.go()
    results = ranks.results()
    assert [result.get("error") for result in results] == ["StagingError", "StagingError", None]
    assert str(ranks.processes[2].pid) in results[0]["text"]
    assert s3_place.files() == {}


def test_those_who_come_after_one_was_killed_raise_too(s3_place: Place, ranks: Ranks, flock: str) -> None:
    for number in range(2):
        block = "os.kill(os.getpid(), 9)" if number == 0 else FILL
        ranks.add(s3_place.url("run/"), "w", block, shared=True, before=flock, environment={"LOCAL_WORLD_SIZE": "2"})
    first, second = ranks.processes
    for process in (first, second):
        assert process.stdout
        assert process.stdin
        assert process.stdout.readline() == "ready\n"
        process.stdin.write("\n")
        process.stdin.flush()
        if process is first:
            process.wait(timeout=120)
    assert ranks.results()[1]["error"] == "StagingError"
    assert s3_place.files() == {}


def test_where_the_upload_fails_all_raise_and_the_copy_is_kept(
    proxy_place: Place, proxy: servers.Proxy, ranks: Ranks, flock: str
) -> None:
    proxy.deny(operation="PutObject")
    for _ in range(2):
        environment = {**proxy.environment(), "LOCAL_WORLD_SIZE": "2"}
        ranks.add(proxy_place.url("run/"), "w", FILL, shared=True, before=flock, environment=environment)
    ranks.go()
    results = ranks.results()
    assert [result["error"] for result in results] == ["StagingError"] * 2
    assert results[0]["kept"] == results[1]["kept"]
    assert sorted(os.listdir(results[0]["kept"])) == ["rank-0", "rank-1"]


def test_the_wait_for_one_that_never_comes_is_bounded(s3_place: Place, ranks: Ranks) -> None:
    ranks.add(s3_place.url("run/"), "w", FILL, shared=True, timeout_s=1, environment={"LOCAL_WORLD_SIZE": "2"})
    ranks.go()
    (result,) = ranks.results()
    assert result["error"] == "StagingError"
    assert "1 of 2 processes have not left" in result["text"]


def test_with_broken_locks_as_well_what_killed_members_left_is_removed(s3_place: Place, scratch: Path) -> None:
    program = """
        import fcntl, os, sys
        from remoteio import staged_local
        fcntl.flock = lambda *_: None
        with staged_local(sys.argv[1], "w", shared=True) as path:
            os.kill(os.getpid(), int(sys.argv[2]))
    """
    for name, number in (("run/", signal.SIGKILL), ("other/", 0)):
        process = start(program, s3_place.url(name), str(int(number)))
        with ended(process):
            assert process.wait(timeout=120) == -number
    assert left_in(scratch) == []


def test_alone_a_shared_directory_is_like_any_other(s3_place: Place, scratch: Path) -> None:
    for word in (b"1", b"2"):
        with staged_local(s3_place.url("run/"), "w", shared=True) as path:
            assert os.listdir(path) == []
            write(f"{path}/x", word)
    assert s3_place.files() == {"run/x": b"2"}
    assert left_in(scratch) == []


def test_shared_goes_with_writing() -> None:
    with pytest.raises(ValueError, match="shared"):
        staged_local("s3://b/k", "r+", shared=True)


def test_killed_members_leave_nothing_for_long(s3_place: Place, scratch: Path) -> None:
    program = """
        import os, sys
        from remoteio import staged_local
        with staged_local(sys.argv[1], "w", shared=True) as path:
            os.kill(os.getpid(), 9)
    """
    process = start(program, s3_place.url("run/"))
    with ended(process):
        process.wait(timeout=120)
    with staged_local(s3_place.url("other/"), "w", shared=True):
        pass
    assert left_in(scratch) == []


def test_blocks_that_follow_one_another_may_change_the_same_file_while_another_is_open(memory_place: Place) -> None:
    block = staged_local(memory_place.url("run/"))
    with block as outer:
        write(f"{outer}/mine", "m")
        for step in ("1", "2", "3"):
            with block as inner:
                write(f"{inner}/latest", step)
    assert memory_place.files() == {"run/mine": b"m", "run/latest": b"3"}


def test_a_thread_does_not_share_with_itself(memory_place: Place) -> None:
    block = staged_local(memory_place.url("run/"), "w", shared=True)
    with block as path:
        write(f"{path}/a", "a")
        with pytest.raises(ScopeError), block:
            pass
    with block as path:
        write(f"{path}/b", "b")
    assert memory_place.files() == {"run/a": b"a", "run/b": b"b"}

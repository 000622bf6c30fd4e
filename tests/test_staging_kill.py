"""SIGKILL at random moments of a download and of an upload: what comes next is right, and nothing piles up."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoteio import staged_local
from tests.conftest import Place
from tests.staging_help import ROOT, left_in

MIB = 2**20
SIZE = 12 * MIB  # above the size of one part, so that an upload has several
KILLS = 20

# Forks a child for each line, as starting Python anew 40 times would take most of the time. Nothing is open at a fork.
NURSERY = """
    import os, sys
    import s3fs, remoteio
    from remoteio import _staging, _engine_fsspec, _transfer
    for line in sys.stdin:
        mode, url, letter = line.split()
        child = os.fork()
        if child == 0:
            with remoteio.staged_local(url, mode) as path:
                if mode == "w":
                    with open(path, "wb") as file:
                        file.write(letter.encode() * int(sys.argv[1]))
            os._exit(0)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for all that staging writes."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.delenv("LOCAL_CACHE_DIR", raising=False)
    monkeypatch.setenv("REMOTEIO_ENGINE", "fsspec")  # the other one has threads that no fork carries over
    return folder


class Nursery:
    """A process that stages in children of its own."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(NURSERY), str(SIZE)],
            env={**os.environ, "PYTHONPATH": ROOT},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def stage(self, mode: str, url: str, letter: str = "-", kill_after: float | None = None) -> int:
        """Stage in a child, and kill it after some seconds; its exit code."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{mode} {url} {letter}\n")
        self.process.stdin.flush()
        child = int(self.process.stdout.readline())
        if kill_after is not None:
            time.sleep(kill_after)
            # Waited for by its parent at once: the number may be free, but it is nobody else's so soon.
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        return int(self.process.stdout.readline())


@pytest.fixture
def nursery(scratch: Path, s3_place: Place) -> Iterator[Nursery]:
    """The process, ended with the test."""
    made = Nursery()
    yield made
    made.process.kill()
    made.process.communicate()


def disk_use(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def duration(nursery: Nursery, mode: str, url: str) -> float:
    """Seconds of one undisturbed run, the first of which is slower than any other."""
    nursery.stage(mode, url, "a")
    began = time.monotonic()
    assert nursery.stage(mode, url, "a") == 0
    return time.monotonic() - began


@pytest.mark.slow
def test_after_a_kill_in_a_download_the_next_entry_is_right(s3_place: Place, scratch: Path, nursery: Nursery) -> None:
    data = random.Random(1).randbytes(SIZE)
    url = s3_place.put("x", data)
    takes = duration(nursery, "r", url)
    killed = 0
    for _ in range(KILLS):
        killed += nursery.stage("r", url, kill_after=random.uniform(0, takes)) == -signal.SIGKILL
        assert disk_use(scratch) < 2 * SIZE
        with staged_local(url, "r") as path:
            assert Path(path).read_bytes() == data
            assert disk_use(scratch) < 2 * SIZE
    assert killed >= KILLS // 4
    assert left_in(scratch) == []


@pytest.mark.slow
def test_after_a_kill_in_an_upload_the_object_is_whole(s3_place: Place, scratch: Path, nursery: Nursery) -> None:
    url = s3_place.url("x")
    takes = duration(nursery, "w", url)
    content, killed = "a", 0
    for number in range(KILLS):
        letter = "bcdefghij"[number % 9]
        killed += nursery.stage("w", url, letter, kill_after=random.uniform(0, takes)) == -signal.SIGKILL
        found = s3_place.read("x")
        assert found in (content.encode() * SIZE, letter.encode() * SIZE)
        content = chr(found[0])
        assert disk_use(scratch) < 2 * SIZE
        with staged_local(url, "r") as path:
            assert Path(path).read_bytes() == found
            assert disk_use(scratch) < 2 * SIZE
    assert killed >= KILLS // 4
    assert left_in(scratch / f"remoteio-{os.getuid()}-live" / "tmp") == []

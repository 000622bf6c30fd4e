"""The example program does what it says, on every kind of root."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.conftest import Place

PROGRAM = Path(__file__).parent.parent / "examples" / "train.py"


def run(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check(output: str, how: str) -> None:
    assert how in output
    assert "starting after step 0" in output
    assert "starting after step 100" in output
    assert re.findall(r"step-(\d+): done, weights\.json", output) == ["000160", "000180", "000200"]
    assert "200 steps" in output


def final_weights(output: str) -> str:
    found = re.search(r"Done: weights (\[.*?\])", output)
    assert found
    return found.group(1)


@pytest.mark.parametrize("kind", ["local", "file", "s3", "gcs"])
def test_it_is_killed_and_goes_on(kind: str, request: pytest.FixtureRequest) -> None:
    place: Place = request.getfixturevalue(f"{kind}_place")
    output = run("--root", place.base)
    check(output, "killed by signal 9")
    assert place.base in output
    assert place.read("log.csv").count(b"\n") == 201


def test_it_is_interrupted_and_goes_on_in_memory() -> None:
    check(run("--root", "memory://train"), "interrupted in the middle")


def test_by_default_it_has_an_s3_server_of_its_own(tmp_path: Path) -> None:
    output = run(TMPDIR=str(tmp_path))
    check(output, "killed by signal 9")
    assert "Training on s3://" in output
    assert os.listdir(tmp_path) == []


def test_the_root_makes_no_difference_to_the_result(local_place: Place, memory_place: Place) -> None:
    assert final_weights(run("--root", local_place.base)) == final_weights(run("--root", memory_place.base))


def test_without_the_server_it_works_in_memory(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['s3fs'] = None\n")
    assert "Training on memory://" in run(PYTHONPATH=f"{tmp_path}{os.pathsep}{PROGRAM.parent.parent}")


def test_the_status_is_printed_at_the_end() -> None:
    output = run("--root", "memory://train")
    assert re.search(r"(?m)^ +open\b.* memory +\d+", output[output.index("Done") :])


def test_there_is_a_progress_bar_on_a_terminal_and_none_in_a_log(local_place: Place) -> None:
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        program = subprocess.Popen(
            [sys.executable, str(PROGRAM), "--root", local_place.base], stdout=subprocess.PIPE, stderr=theirs
        )
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # how a terminal ends
            while data := terminal.read(4096):
                shown += data
        printed, _ = program.communicate(timeout=120)
    assert b"100%" in shown
    assert b"100%" not in printed

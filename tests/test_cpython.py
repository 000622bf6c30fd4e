"""CPython's own tests pass inside a scope as they do outside: on local paths nothing is different."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("test.test_glob", reason="this Python comes without its own tests")

REPOSITORY = Path(__file__).parent.parent
MODULES = ["glob", "genericpath", "shutil", "posixpath", "os", "io", "zipfile", "pathlib"]
CASES = [(module, ()) for module in MODULES] + [(module, ("paths",)) for module in [*MODULES, "tempfile", "logging"]]

# These ask whether a name holds the very function in C that CPython put there.
ASKS_FOR_IDENTITY = {"test.test_posixpath.PosixPathTest.test_fast_paths_in_use"}


def start(module: str, output: Path, *options: str) -> subprocess.Popen[bytes]:
    scratch = output.parent / f"{output.stem}-tmp"
    scratch.mkdir(exist_ok=True)
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]))
    # Measuring would slow the interpreter's own tests down, some of which look at their time.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.cpython_suite", f"test_{module}", str(output), *options],
        env={**environment, "PYTHONPATH": path, "TMPDIR": str(scratch)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def outcome(process: subprocess.Popen[bytes], output: Path) -> dict[str, Any]:
    _, words = process.communicate(timeout=600)
    assert process.returncode == 0, words.decode(errors="replace")[-3000:]
    found: dict[str, Any] = json.loads(output.read_text())
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("module", "tables"), CASES, ids=["-".join((module, *tables)) for module, tables in CASES])
def test_what_passes_outside_passes_inside(module: str, tables: tuple[str, ...], tmp_path: Path) -> None:
    outside = start(module, tmp_path / "outside.json")
    inside = start(module, tmp_path / "inside.json", "--inside", *tables)
    want = outcome(outside, tmp_path / "outside.json")
    got = outcome(inside, tmp_path / "inside.json")
    lost = set(want["passed"]) - set(got["passed"]) - ASKS_FOR_IDENTITY
    if lost:  # some of them depend on time: what passes the second time was not the scope's fault
        again = start(module, tmp_path / "again.json", "--inside", *tables)
        lost -= set(outcome(again, tmp_path / "again.json")["passed"])
    assert want["ran"] > 10
    assert not lost, "\n".join(f"{name}\n{got['failed'].get(name, 'skipped')}" for name in sorted(lost))

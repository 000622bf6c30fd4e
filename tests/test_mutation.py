"""The tests notice when any one of the ten answers natively for URLs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from remoteio._patches import TEN

REPOSITORY = Path(__file__).parent.parent


def run(mutant: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.mutant", "-p", "no:cacheprovider", "-p", "no:xdist"]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("COVERAGE", "PYTEST_XDIST"))
    }
    return subprocess.run(
        [*command, "tests/test_ten.py", "-k", "memory"],
        cwd=REPOSITORY,
        env={**environment, "REMOTEIO_MUTANT": mutant},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_chosen_tests_pass_as_they_are() -> None:
    done = run("none")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", [patch.name for patch in TEN])
def test_they_fail_where_one_answers_natively(name: str) -> None:
    done = run(name)
    assert done.returncode == 1, done.stdout + done.stderr  # 1: some tests failed; others: it could not run
    assert f"test_{name}_" in done.stdout

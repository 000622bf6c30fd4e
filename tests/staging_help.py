"""What the tests of staging share: a cache of their own, trees, and programs in processes of their own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).parent.parent)


def tree(path: str | Path) -> dict[str, bytes]:
    """Every file below a directory: relative name and bytes."""
    found = {}
    for here, _, names in os.walk(path):
        for name in names:
            full = os.path.join(here, name)
            found[os.path.relpath(full, path)] = Path(full).read_bytes()
    return found


def write(path: str | Path, content: bytes | str = b"") -> None:
    """Write a file, parents too."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content.encode() if isinstance(content, str) else content)


def left_in(folder: str | Path) -> list[str]:
    """What is in a folder, at any depth."""
    return sorted(
        os.path.relpath(os.path.join(here, name), folder)
        for here, dirs, files in os.walk(folder)
        for name in dirs + files
    )


def start(program: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start a Python program in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        env={**os.environ, "PYTHONPATH": ROOT, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(program: str, *arguments: str, **environment: str) -> str:
    """Run one to its end; what it printed."""
    process = start(program, *arguments, **environment)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, output + errors
    return output


@contextlib.contextmanager
def ended(*processes: subprocess.Popen[str]) -> Iterator[None]:
    """Let no process outlive the block."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def options(place: Any) -> dict[str, Any]:
    """The keywords by which ``staged_local`` reaches a place."""
    return {"storage_options": place.options} if place.options else {}

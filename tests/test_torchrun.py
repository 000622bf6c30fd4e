from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.conftest import Place
from tests.staging_help import ROOT

pytest.importorskip("torch", reason="needs torch: pip install 'remoteio[torch]'")

EXAMPLES = Path(ROOT) / "examples"


def load(name: str) -> Any:
    """One of the example programs as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def torchrun(program: Path, processes: int, *arguments: str, **environment: str) -> tuple[int, str, float]:
    """Run a program by torchrun: exit code, all it printed, seconds."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    began = time.monotonic()
    process = subprocess.Popen(
        [*command, str(program), *arguments],
        env={**os.environ, "PYTHONPATH": ROOT, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=200)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return process.returncode, output, time.monotonic() - began


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_a_job_loads_one_model_trains_and_exports(
    proxy_place: Place, proxy: servers.Proxy, tmp_path: Path, processes: int
) -> None:
    load("distributed_load").write_model(proxy_place.url("model.ts"))
    environment = {**proxy.environment(), "TMPDIR": str(tmp_path)}
    code, output, _ = torchrun(EXAMPLES / "distributed_load.py", processes, "--root", proxy_place.base, **environment)
    assert code == 0, output
    assert f"{processes} processes read one file: True" in output
    assert f"{processes} of {processes} processes loaded the export, the same" in output
    fetched = [request.path.rpartition("/")[2] for request in proxy.requests if request.operation == "GetObject"]
    assert sorted(fetched) == ["model.ts", "trained.ts"]


FAILING = """
import sys
import time

import torch
import torch.distributed as dist

from remoteio import staged_local

dist.init_process_group("gloo")
dist.barrier()
sys.stdout.write("began %r%s" % (time.monotonic(), chr(10)))  # at once: the ranks write to one pipe
sys.stdout.flush()
with staged_local(sys.argv[1], "r") as path:
    torch.jit.load(path)
"""


@pytest.mark.slow
def test_a_failure_on_the_rank_that_fetches_ends_all_with_its_reason(
    proxy_place: Place, proxy: servers.Proxy, tmp_path: Path
) -> None:
    url = proxy_place.put("model.ts", b"content")
    proxy.deny(operation="GetObject")
    program = tmp_path / "job.py"
    program.write_text(FAILING)
    code, output, _ = torchrun(program, 2, url, **proxy.environment(), TMPDIR=str(tmp_path))
    ended = time.monotonic()
    assert code != 0
    began = [float(moment) for moment in re.findall(r"began (\d+\.\d+)", output)]
    assert len(began) == 2
    assert "PermissionError" in output
    assert "AccessDenied" in output
    assert ended - max(began) < 10


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["local", "s3"])
def test_three_formats_are_exported_and_loaded_back(kind: str, request: pytest.FixtureRequest) -> None:
    place: Place = request.getfixturevalue(f"{kind}_place")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "export.py"), "--root", place.base],
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("loaded back, the same") == 3
    assert sorted(place.files()) == [
        "model.package",
        "model.ts",
        "weights/model-0.safetensors",
        "weights/model-1.safetensors",
        "weights/model.safetensors.index.json",
    ]

"""How long it takes to load and save a state dict on S3, beside the other ways to do it.

    python -m tests.benchmarks.tensors [--size MIB] [--rounds N]

Each job runs in a process of its own, which tells its time and the peak of its memory; the
ways take turns, and medians are told. A local file and the bytes alone are there for scale.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import servers
from tests.benchmarks.turns import rotated

TENSORS = 400
KEY = "bench/state"


def make(folder: str, size: int) -> None:
    """Write the state dict of 400 tensors as both kinds of local file."""
    import torch
    from safetensors.torch import save_file

    rows = max(1, size * 2**20 // TENSORS // 4 // 256)
    state = {f"layers.{number}.weight": torch.randn(rows, 256) for number in range(TENSORS)}
    save_file(state, f"{folder}/state.safetensors")
    torch.save(state, f"{folder}/state.pt")


# ---- the jobs: each gets a local folder and the URL of the bucket


def load_with(kind: str) -> Callable[[str], Any]:
    """The library's own load of one kind of file."""
    import torch
    from safetensors.torch import load_file

    return load_file if kind == "safetensors" else torch.load


def save_with(kind: str) -> Callable[[Any, str], Any]:
    """The library's own save of one kind of file."""
    import torch
    from safetensors.torch import save_file

    return save_file if kind == "safetensors" else torch.save


def filesystem() -> Any:
    """s3fs as a user makes it."""
    import fsspec

    return fsspec.filesystem("s3")


def run(job: str, kind: str, folder: str, base: str) -> dict[str, float]:
    """Do one job; seconds, and MiB of memory at the peak beyond what the libraries took."""
    import fsspec
    import torch
    from safetensors.torch import load as load_bytes

    import remoteio

    local, url, key = f"{folder}/state.{kind}", f"{base}/{KEY}.{kind}", f"{base.partition('://')[2]}/{KEY}.{kind}"
    fs = filesystem()
    fs.exists(key)
    down = tempfile.mkdtemp(dir=folder)
    state = load_with(kind)(local) if job.startswith("save") else None
    if state is not None:
        state = {name: tensor.clone() for name, tensor in state.items()}
    with remoteio.remote_io(also="torch"):
        os.path.exists(url)

    def ours() -> Any:
        with remoteio.remote_io(also="torch"):
            return load_with(kind)(url)

    def get_then_load() -> Any:
        fs.get_file(key, f"{down}/copy")
        return load_with(kind)(f"{down}/copy")

    def through_open() -> Any:
        with fsspec.open(url, "rb") as file:
            return load_bytes(file.read()) if kind == "safetensors" else torch.load(file)

    def first_tensor() -> Any:
        import safetensors

        with remoteio.remote_io(also="torch"), safetensors.safe_open(url, "pt") as file:
            return file.get_tensor(f"layers.{TENSORS // 2}.weight")

    def bytes_alone() -> None:
        from remoteio import _lookup, _settings, _stores, _transfer

        location = _lookup.locate(_stores.parse(url), _settings.DEFAULT)  # type: ignore[arg-type]
        _transfer.download([(location, _lookup.file(location), f"{down}/copy")], progress=False)

    def save_ours() -> None:
        with remoteio.remote_io(also="torch"):
            save_with(kind)(state, f"{url}.saved")

    def save_then_put() -> None:
        save_with(kind)(state, f"{down}/copy")
        fs.put_file(f"{down}/copy", f"{key}.saved")

    def save_through_open() -> None:
        from safetensors.torch import save as save_bytes

        with fsspec.open(f"{url}.saved", "wb") as file:
            if kind == "safetensors":
                file.write(save_bytes(state))
            else:
                torch.save(state, file)

    def save_streamed() -> None:
        # The fastest stream there is, in the place of a staged file: what staging costs beside it.
        import obstore
        from obstore.store import S3Store

        bucket = base.partition("://")[2].partition("/")[0]
        store = S3Store(bucket, config={"endpoint": os.environ["AWS_ENDPOINT_URL"], "region": "us-east-1"},
                        client_options={"allow_http": True})  # fmt: skip
        with obstore.open_writer(store, f"{KEY}.{kind}.saved", buffer_size=8 * 2**20, max_concurrency=8) as file:
            torch.save(state, file)

    def local_load() -> Any:
        # Copied, so that a file that is only mapped is read too.
        return {name: tensor.clone() for name, tensor in load_with(kind)(local).items()}

    jobs: dict[str, Callable[[], Any]] = {
        "load remoteio": ours,
        "load fs.get": get_then_load,
        "load fsspec.open": through_open,
        "load local file": local_load,
        "load bytes alone": bytes_alone,
        "one tensor": first_tensor,
        "save remoteio": save_ours,
        "save fs.put": save_then_put,
        "save fsspec.open": save_through_open,
        "save streamed": save_streamed,
        "save local file": lambda: save_with(kind)(state, f"{down}/copy"),
    }
    reset_peak()
    before, began = memory("VmRSS"), time.perf_counter()
    kept = jobs[job]()
    seconds = time.perf_counter() - began
    peak = memory("VmHWM") - before
    del kept
    counts = [count for (name, _), count in remoteio.status().counts.items() if name == "safetensors.safe_open"]
    return {"seconds": seconds, "peak": peak, "read": sum(count.bytes_read for count in counts) / 2**20}


def memory(field: str) -> float:
    """A field of this process's status, in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    return float("nan")


def reset_peak() -> None:
    """Let the peak begin anew."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # then the peak so far counts too
        return


JOBS = {
    "safetensors": [
        "load remoteio", "load fs.get", "load fsspec.open", "load bytes alone", "load local file", "one tensor",
        "save remoteio", "save fs.put", "save fsspec.open", "save local file",
    ],
    "pt": [
        "load remoteio", "load fs.get", "load fsspec.open", "load bytes alone", "load local file",
        "save remoteio", "save fs.put", "save fsspec.open", "save streamed", "save local file",
    ],
}  # fmt: skip


def main() -> None:
    """Run all jobs in turns and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1024, help="MiB of the state dict")
    parser.add_argument("--rounds", type=int, default=3, help="times that each job runs")
    parser.add_argument("--only", default="", help="jobs that hold this word")
    parser.add_argument("--job", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        print(json.dumps(run(*arguments.job)))
        return
    with tempfile.TemporaryDirectory(prefix="remoteio-bench-") as folder, servers.SeaweedFS() as server:
        os.environ.update(server.environment())
        make(folder, arguments.size)
        for kind in JOBS:
            filesystem().put_file(f"{folder}/state.{kind}", f"{server.bucket}/{KEY}.{kind}")
        found: dict[tuple[str, str], list[dict[str, float]]] = {}
        for turn in range(arguments.rounds):
            for kind, jobs in JOBS.items():
                wanted = [job for job in jobs if arguments.only in job]
                for job in rotated(wanted, turn):
                    found.setdefault((kind, job), []).append(one(job, kind, folder, server.base))
        report(found, arguments.size)


def one(job: str, kind: str, folder: str, base: str) -> dict[str, float]:
    """One job in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.tensors", "--job", job, kind, folder, base]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    answer: dict[str, float] = json.loads(told.splitlines()[-1])
    return answer


def report(found: dict[tuple[str, str], list[dict[str, float]]], size: int) -> None:
    """Print the medians, and how each compares with remoteio's."""
    median = {key: {name: statistics.median(r[name] for r in runs) for name in runs[0]} for key, runs in found.items()}
    print(f"{size} MiB in {TENSORS} tensors; time as a multiple of remoteio's")
    for (kind, job), told in median.items():
        ours = median.get((kind, f"{job.split()[0]} remoteio"))
        ratio = f"{told['seconds'] / ours['seconds']:6.2f}" if ours and job != "one tensor" else " " * 6
        print(f"  {kind:<12} {job:<18} {told['seconds']:8.3f} s {ratio} {told['peak']:8.0f} MiB at the peak")
        if job == "one tensor":
            print(f"  {'':<12} {'':<18} {told['read'] / size:8.2%} of the bytes")


if __name__ == "__main__":
    main()

"""Train a small model with its data, checkpoints and log on an object store.

    python examples/train.py                      # an S3 server of its own on this machine
    python examples/train.py --root s3://bucket/run
    python examples/train.py --root /some/folder  # the same program on a local disk

The training is plain Python with plain file functions; ``with remote_io():`` is all that is added. In the middle
of a checkpoint the program is killed, and then goes on from the newest complete one.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import glob
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator

from remoteio import is_remote, remote_io, status

STEPS = 200
CHECKPOINT_EVERY = 20
KEEP = 3
KILL_AT = 120
BATCH = 50
TRUE_WEIGHTS = [2.0, -3.0, 0.5]

Weights = list[float]
Row = dict[str, float]


def make_data(root: str, shards: int = 4, rows: int = 250) -> None:
    """Write the training data as shards of JSON lines."""
    numbers = random.Random(7)
    os.makedirs(f"{root}/data", exist_ok=True)
    for shard in range(shards):
        with open(f"{root}/data/shard-{shard:03d}.jsonl", "w") as file:
            for _ in range(rows):
                x = [numbers.uniform(-1, 1), numbers.uniform(-1, 1), 1.0]
                y = sum(w * value for w, value in zip(TRUE_WEIGHTS, x, strict=True)) + numbers.gauss(0, 0.05)
                file.write(json.dumps({"x": x, "y": y}) + "\n")


def read_data(root: str) -> list[tuple[list[float], float]]:
    """Read every shard that the pattern finds."""
    examples = []
    for shard in sorted(glob.glob(f"{root}/data/*.jsonl")):
        with open(shard) as file:
            examples += [(row["x"], row["y"]) for row in map(json.loads, file)]
    return examples


def save_checkpoint(root: str, step: int, weights: Weights, interrupt: Callable[[], None] | None = None) -> None:
    """Write a checkpoint; it is complete once ``done`` is there. Keep the last few."""
    folder = f"{root}/checkpoints/step-{step:06d}"
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/weights.json", "w") as file:
        text = json.dumps({"step": step, "weights": weights})
        file.write(text[: len(text) // 2])
        if interrupt:
            interrupt()
        file.write(text[len(text) // 2 :])
    with open(f"{folder}/done", "w") as file:
        file.write("complete\n")
    for old in complete_checkpoints(root)[:-KEEP]:
        shutil.rmtree(old)


def complete_checkpoints(root: str) -> list[str]:
    """The folders of the complete checkpoints, the oldest first."""
    return [os.path.dirname(done) for done in sorted(glob.glob(f"{root}/checkpoints/step-*/done"))]


def load_newest(root: str) -> tuple[int, Weights]:
    """The step and weights of the newest complete checkpoint; zeros where there is none."""
    found = complete_checkpoints(root)
    if not found:
        return 0, [0.0] * len(TRUE_WEIGHTS)
    with open(f"{found[-1]}/weights.json") as file:
        state = json.load(file)
    return state["step"], state["weights"]


def open_log(root: str, step: int) -> str:
    """Drop what the log says of steps that have to be done again; return its name."""
    log, rows = f"{root}/log.csv", []
    if os.path.exists(log):
        with open(log, newline="") as file:
            rows = [row for row in csv.DictReader(file) if int(row["step"]) <= step]
    with open(log, "w", newline="") as file:
        writer = csv.DictWriter(file, ["step", "loss"])
        writer.writeheader()
        writer.writerows(rows)
    return log


def gradient_step(weights: Weights, batch: Iterable[tuple[list[float], float]]) -> tuple[Weights, float]:
    """One step of linear regression; returns the new weights and the mean squared error before it."""
    gradient, loss, count = [0.0] * len(weights), 0.0, 0
    for x, y in batch:
        error = sum(w * value for w, value in zip(weights, x, strict=True)) - y
        loss, count = loss + error * error, count + 1
        gradient = [g + 2 * error * value for g, value in zip(gradient, x, strict=True)]
    return [w - 0.1 * g / count for w, g in zip(weights, gradient, strict=True)], loss / count


def train(root: str, interrupt: Callable[[], None] | None = None) -> Weights:
    """Train from the newest complete checkpoint to the last step.

    Args:
        root: A folder or the URL of one.
        interrupt: Called in the middle of writing the checkpoint of step `KILL_AT`.
    """
    examples = read_data(root)
    start, weights = load_newest(root)
    print(f"  {len(examples)} examples; starting after step {start}")
    log, rows = open_log(root, start), list[Row]()
    for step in progress(range(start + 1, STEPS + 1)):
        first = step * BATCH % len(examples)
        weights, loss = gradient_step(weights, examples[first : first + BATCH])
        rows.append({"step": step, "loss": round(loss, 6)})
        if step % CHECKPOINT_EVERY == 0:
            with open(log, "a", newline="") as file:
                csv.DictWriter(file, ["step", "loss"]).writerows(rows)
            rows.clear()
            save_checkpoint(root, step, weights, interrupt if step == KILL_AT else None)
    return weights


def progress(steps: range) -> Iterable[int]:
    """Show a progress bar where there is a terminal and tqdm is installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        return steps
    return tqdm(steps, desc="  training", unit="step", disable=None)  # None: only on a terminal


def die() -> None:
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


def press_ctrl_c() -> None:
    """Interrupt this process as its user would."""
    raise KeyboardInterrupt


def train_until_killed(root: str) -> None:
    """Train in a process that is killed in the middle of writing a checkpoint."""
    if root.startswith("memory:"):
        # Such files live in this process alone and would die with it: an exception has to do.
        with contextlib.suppress(KeyboardInterrupt):
            train(root, interrupt=press_ctrl_c)
        print(f"  interrupted in the middle of writing step {KILL_AT}")
    else:
        ended = subprocess.run([sys.executable, __file__, "--root", root, "--die"], check=False)
        print(f"  killed by signal {-ended.returncode} in the middle of writing step {KILL_AT}")


@contextlib.contextmanager
def default_root() -> Iterator[str]:
    """The URL of a place on an S3 server of our own, where one is installed; else in memory."""
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from tests.servers import SeaweedFS

    if SeaweedFS.program() is None or importlib.util.find_spec("s3fs") is None:
        yield "memory://train"
        return
    with SeaweedFS() as server:
        os.environ.update(server.environment())
        yield f"{server.base}/train"


def show(root: str) -> None:
    """Print what the run left."""
    for folder in complete_checkpoints(root):
        print(f"  {folder}: {', '.join(sorted(os.listdir(folder)))}")
    with open(f"{root}/log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    print(f"  {root}/log.csv: {len(rows)} steps, loss {rows[0]['loss']} -> {rows[-1]['loss']}")


def main() -> None:
    """Train, be killed, train on."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", help="a folder or URL to keep everything in (default: an S3 server of our own)")
    parser.add_argument("--die", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        root = args.root.rstrip("/") if args.root else stack.enter_context(default_root())
        with remote_io():
            if args.die:
                train(root, interrupt=die)
            print(f"Training on {root} ({'a store' if is_remote(root) else 'a local folder'})", flush=True)
            make_data(root)
            train_until_killed(root)
            print("Starting again", flush=True)
            weights = train(root)
            print(f"Done: weights {[round(w, 2) for w in weights]}, of {TRUE_WEIGHTS}")
            show(root)
            print(status())


if __name__ == "__main__":
    main()

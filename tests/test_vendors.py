"""The vendors' protocols: registered by name when their package is there, and imported only when used."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

# What stands for a vendor's package: the real thing is not on PyPI. Its store is a real fsspec filesystem.
PACKAGES = {
    "pangudfs_client/high_level_client/extern/fsspec.py": ("PanguDfs", "dfs"),
    "megatensors/_hub/mega_file_system.py": ("MegaFileSystem", "mega"),
}
MODULE = """
from fsspec.implementations.memory import MemoryFileSystem

class {name}(MemoryFileSystem):
    protocol = "{scheme}"
    store = {{}}
    pseudo_dirs = [""]

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("{scheme}://"))
"""


@pytest.fixture
def vendors(tmp_path: Path) -> Path:
    """A folder with both packages, to be put on ``PYTHONPATH``."""
    for path, (name, scheme) in PACKAGES.items():
        module = tmp_path / path
        module.parent.mkdir(parents=True)
        for folder in module.relative_to(tmp_path).parents:
            (tmp_path / folder / "__init__.py").touch()
        module.write_text(MODULE.format(name=name, scheme=scheme))
    (tmp_path / "__init__.py").unlink()
    return tmp_path


def run(code: str, folder: Path | None = None) -> str:
    path = [str(folder)] if folder else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*path, os.getcwd()])}
    environment.pop("USE_FSSPEC", None)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("scheme", ["dfs", "mega"])
def test_the_ten_reach_an_installed_vendor(scheme: str, vendors: Path) -> None:
    code = f"""
        import os
        from remoteio import remote_io
        with remote_io():
            with open("{scheme}://root/a.txt", "w") as file:
                file.write("hello")
            print(open("{scheme}://root/a.txt").read(), os.listdir("{scheme}://root"), os.path.exists("{scheme}://root/b"))
    """
    assert run(code, vendors) == "hello ['a.txt'] False"


def test_nothing_of_a_vendor_is_imported_until_it_is_used(vendors: Path) -> None:
    code = """
        import os, sys
        from remoteio import remote_io
        with remote_io():
            os.path.exists("memory://x")
            print("pangudfs_client" in sys.modules, "megatensors" in sys.modules)
            os.path.exists("dfs://x")
            print("pangudfs_client" in sys.modules, "megatensors" in sys.modules)
    """
    assert run(code, vendors) == "False False\nTrue False"


def test_somebody_elses_registration_stays(vendors: Path) -> None:
    code = """
        import fsspec
        from fsspec.implementations.memory import MemoryFileSystem
        class Own(MemoryFileSystem):
            protocol = "dfs"
        fsspec.register_implementation("dfs", Own)
        from remoteio import remote_io, url_to_fs
        with remote_io():
            print(type(url_to_fs("dfs://x")[0]).__name__, type(url_to_fs("mega://x")[0]).__name__)
    """
    assert run(code, vendors) == "Own MegaFileSystem"


def test_without_its_package_a_vendors_url_is_local() -> None:
    code = """
        from remoteio import is_remote, remote_io
        with remote_io():
            print(is_remote("dfs://x"), is_remote("mega://x"))
    """
    assert run(code) == "False False"


def test_env_means_on_where_a_vendor_is_installed(vendors: Path) -> None:
    code = """
        from remoteio import remote_io, is_remote
        import os
        with remote_io(enabled="env"):
            open("memory:/x", "w").close()
        print(os.path.exists("memory:"))
    """
    with_vendor = run(code, vendors)
    with pytest.raises(AssertionError, match="FileNotFoundError"):
        run(code)  # the built-in finds no folder of that name
    assert with_vendor == "False"


@pytest.mark.parametrize("scheme", ["dfs", "mega"])
def test_the_gfile_of_tensorboard_reaches_an_installed_vendor(scheme: str, vendors: Path) -> None:
    pytest.importorskip("tensorboard")  # a package of the test extra; the core does without it
    code = f"""
        from remoteio import remote_io
        with remote_io():
            from tensorboard.compat.tensorflow_stub.io import gfile
            with gfile.GFile("{scheme}://root/events", "wb") as file:
                file.write(b"event")
            print(gfile.exists("{scheme}://root/events"), open("{scheme}://root/events", "rb").read())
    """
    assert run(code, vendors) == "True b'event'"

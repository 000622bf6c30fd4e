"""With fsspec alone the package imports, works on memory:// and file://, and names the extra for the rest.

The whole file also runs in an environment that has nothing but remoteio and pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
OPTIONAL = ["s3fs", "gcsfs", "torch", "safetensors", "numpy", "tqdm", "aiohttp", "botocore", "aiobotocore"]


def run(program: str, *, folder: Path) -> str:
    """Run a program in an interpreter that has none of the optional packages."""
    hidden = f"import sys\nsys.modules.update(dict.fromkeys({OPTIONAL!r}))\n"
    done = subprocess.run(
        [sys.executable, "-c", hidden + program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_loads_nothing_heavy(tmp_path: Path) -> None:
    program = "import remoteio\nprint([m for m in ('fsspec', 'torch', 'asyncio', 'pytest') if sys.modules.get(m)])"
    assert run(program, folder=tmp_path) == "[]\n"


@pytest.mark.parametrize("base", ["memory://place", "file://{folder}/place"])
def test_it_works_on_what_fsspec_has_built_in(base: str, tmp_path: Path) -> None:
    program = f"""
import glob, os, shutil
from remoteio import remote_io
base = {base.format(folder=tmp_path)!r}
with remote_io():
    os.makedirs(base + "/d")
    with open(base + "/d/a.txt", "w") as file:
        file.write("x")
    shutil.copy(base + "/d/a.txt", base + "/d/b.txt")
    os.remove(base + "/d/a.txt")
    print(glob.glob(base + "/*/*.txt") == [base + "/d/b.txt"], os.listdir(base + "/d"))
    print(os.path.getsize(base + "/d/b.txt"))
    shutil.rmtree(base)
    print(os.path.exists(base), os.path.isdir(base))
"""
    assert run(program, folder=tmp_path) == "True ['b.txt']\n1\nFalse False\n"


@pytest.mark.parametrize(
    ("url", "extra"), [("s3://b/k", "s3"), ("s3a://b/k", "s3"), ("gs://b/k", "gcs"), ("gcs://b/k", "gcs")]
)
@pytest.mark.parametrize("call", ["open", "os.path.exists", "os.listdir", "glob.glob"])
def test_a_missing_package_is_an_import_error_that_names_the_extra(
    url: str, extra: str, call: str, tmp_path: Path
) -> None:
    program = f"""
import glob, os
from remoteio import remote_io
with remote_io():
    try:
        {call}({url!r})
    except ImportError as error:
        print(error)
"""
    assert f"remoteio[{extra}]" in run(program, folder=tmp_path)
    assert os.listdir(tmp_path) == []


def test_an_unknown_scheme_has_the_native_answer(tmp_path: Path) -> None:
    program = """
import os
from remoteio import remote_io
with remote_io():
    print(os.path.exists("nosuch://b/k"))
    try:
        open("nosuch://b/k")
    except FileNotFoundError as error:
        print(error.filename)
"""
    assert run(program, folder=tmp_path) == "False\nnosuch://b/k\n"

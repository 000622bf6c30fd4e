"""The picture of the house: who may import whom, and what importing the package costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import remoteio

PACKAGE = Path(remoteio.__file__).parent

# From the ground up. What a module here reaches, directly or through others, lies on its own storey or below.
STOREYS: tuple[tuple[str, ...], ...] = (
    ("errors", "_settings", "_counters"),
    ("_urls", "_store"),
    ("_stores",),
    ("_transfer",),
    ("_files", "_tree", "_glob"),
    ("_patches", "_replacement", "_dispatch", "_stack", "_route"),
    ("_scope", "_staging"),
    ("torch", "safetensors", "checkpoint"),
    ("pytest_plugin", "cli", "__main__"),
)
MODULES = sorted(path.stem for path in PACKAGE.glob("*.py") if path.stem != "__init__")


PICTURE = [(number, name) for number, names in enumerate(STOREYS) for name in names if name in MODULES]


def imports(module: str) -> set[str]:
    """The modules of this package that a module imports, at its top or inside a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "remoteio":
            found.update(alias.name for alias in node.names if (PACKAGE / f"{alias.name}.py").exists())
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("remoteio."):
            found.add(str(node.module).split(".")[1])
        elif isinstance(node, ast.Import):
            found.update(alias.name.split(".")[1] for alias in node.names if alias.name.startswith("remoteio."))
    return found


def reached(module: str) -> set[str]:
    """The modules of this package that come with a module, itself apart."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        new = imports(waiting.pop()) - found
        found |= new
        waiting += new
    return found - {module}


@pytest.mark.parametrize(("storey", "module"), PICTURE, ids=[name for _, name in PICTURE])
def test_arrows_point_down(storey: int, module: str) -> None:
    above = {other for number, other in PICTURE if number > storey}
    assert reached(module) & above == set()


def test_nothing_but_edges_and_adapters_knows_the_scope() -> None:
    allowed = {"torch", "safetensors", "checkpoint", "pytest_plugin", "cli", "__main__"}
    assert {module for module in MODULES if "_scope" in imports(module)} <= allowed


def test_scope_and_staging_do_not_know_each_other() -> None:
    assert "_staging" not in reached("_scope")
    assert "_staging" not in MODULES or "_scope" not in reached("_staging")


@pytest.mark.parametrize("module", ["_dispatch", "_replacement", "_patches"])
def test_replacements_know_neither_stores_nor_threads(module: str) -> None:
    assert reached(module) & {"_stores", "_urls", "_stack", "_threads", "_settings"} == set()


def test_no_adapter_knows_another() -> None:
    adapters = {"torch", "safetensors", "checkpoint"} & set(MODULES)
    assert all(not (imports(module) & (adapters - {module})) for module in adapters)


@pytest.mark.parametrize(
    "program",
    [
        "import remoteio",
        "import remoteio; remoteio.remote_io",
        "import remoteio, os\nwith remoteio.remote_io(): os.path.exists('/'); open('/dev/null'); os.listdir('/')",
        "import pytest; import remoteio.pytest_plugin",
    ],
)
@pytest.mark.parametrize("package", ["fsspec", "torch", "asyncio", "s3fs", "gcsfs"])
def test_nothing_heavy_is_loaded_before_a_url_is_seen(program: str, package: str) -> None:
    check = f"{program}\nimport sys; sys.exit({package!r} in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, cwd=PACKAGE.parent)


def test_pytest_is_not_loaded() -> None:
    check = "import remoteio, sys; remoteio.remote_io; sys.exit('pytest' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, cwd=PACKAGE.parent)


def test_every_public_name_is_there() -> None:
    assert all(getattr(remoteio, name) is not None for name in remoteio.__all__)
    assert set(remoteio.__all__) <= set(dir(remoteio))


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        remoteio.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()

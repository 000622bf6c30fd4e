"""The pytest plugin: a scope and a fresh URL as fixtures, and a check that tests leave nothing installed.

Loading it imports neither fsspec nor torch; nothing is patched until a test asks for it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from remoteio._scope import RemoteIO
    from remoteio._stack import Entry

__all__: list[str] = []

_MARK = "remote_io"
_DEFAULT_ROOT = "memory://"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The root of ``remote_tmp``, and the switch of the check."""
    group = parser.getgroup("remoteio")
    group.addoption(
        "--remote-root", metavar="URL", default=None, help="where remote_tmp makes its directories (memory://)"
    )
    parser.addini("remote_root", "where remote_tmp makes its directories", default=_DEFAULT_ROOT)
    parser.addini(
        "remote_check",
        "fail a test that leaves a remote_io scope, and so its patches, behind",
        type="bool",
        default=True,
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line(
        "markers", f"{_MARK}(**options): run the test in a remote_io scope; the options are those of remote_io()"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A marked test has the fixture, whether it names it or not."""
    for item in items:
        names = getattr(item, "fixturenames", None)
        if names is not None and item.get_closest_marker(_MARK) and _MARK not in names:
            names.append(_MARK)


@pytest.fixture(name="remote_io")
def _remote_io(request: pytest.FixtureRequest) -> Iterator[RemoteIO]:
    """A scope around the test; its options come from ``@pytest.mark.remote_io(...)``, the nearest mark's first."""
    import remoteio

    options: dict[str, Any] = {}
    for mark in reversed(list(request.node.iter_markers(_MARK))):
        if mark.args:
            raise pytest.UsageError(f"the options of the mark {_MARK} are given by name")
        options.update(mark.kwargs)
    with remoteio.remote_io(**options) as scope:
        yield scope


@pytest.fixture
def remote_tmp(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of an empty directory that is this test's alone, removed afterwards.

    It lies in the memory of this process, or where the ini option ``remote_root`` or the
    command line's ``--remote-root`` says. Both inside and outside of a scope it can be used
    with anything that takes a URL.
    """
    import remoteio

    root = request.config.getoption("remote_root") or request.config.getini("remote_root")
    # Workers of pytest-xdist share a root and never a name.
    url = f"{root if root.endswith('/') else root + '/'}pytest-{uuid.uuid4().hex}"
    options = _storage_options(request.node)
    with remoteio.remote_io(storage_options=options):
        if not remoteio.is_remote(url):
            raise pytest.UsageError(f"the root of remote_tmp is a URL, not {root!r}")
        os.makedirs(url)
    yield url
    # The test may have removed it.
    with remoteio.remote_io(storage_options=options), contextlib.suppress(FileNotFoundError):
        shutil.rmtree(url)


def _storage_options(node: pytest.Item) -> Any:
    """The nearest mark's storage options: the directory is made and removed with those the test works with."""
    for mark in node.iter_markers(_MARK):
        if "storage_options" in mark.kwargs:
            return mark.kwargs["storage_options"]
    return None


# Entries of fixtures that outlive a test: they are nobody's leak.
_held: pytest.StashKey[set[Entry]] = pytest.StashKey()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Note which scopes are opened by the fixtures of a class, module, package or session."""
    if fixturedef.scope == "function" or not request.config.getini("remote_check"):
        return (yield)
    from remoteio import _entries

    before = _entries.open_entries()
    try:
        return (yield)
    finally:
        request.config.stash.setdefault(_held, set()).update(_entries.open_entries() - before)


@pytest.fixture(autouse=True)
def _remoteio_check(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a scope open, and with it the patches.

    What is open before the test's own fixtures is compared with what is open after their
    teardown. Whatever was left is ended, so that the next test is not blamed for it.
    """
    if not request.config.getini("remote_check"):
        yield
        return
    from remoteio import _entries

    before = _entries.open_entries()
    yield
    held: set[Entry] = request.config.stash.setdefault(_held, set())
    left = _entries.open_entries() - before - held
    blocks = sorted({repr(entry.block) for entry in left})
    _entries.end_entries(left)
    # A monkeypatch made inside and undone outside puts a replacement back: no fault of the test, so it is only mended.
    _entries.mend()
    if blocks:
        pytest.fail(f"the test has left these scopes open: {', '.join(blocks)}", pytrace=False)


def _natively() -> Generator[None, Any, Any]:
    """Run the rest of a hook without the scope that a module's or session's fixture holds."""
    from remoteio import _scope

    with _scope.native_io():
        return (yield)


# pytest's own work on files is never on a store: it collects and reports outside of every scope.
# Each hook has its own parameters, of which pluggy hands over those that are named; none is needed.


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collect natively."""
    return (yield from _natively())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    """Import test modules natively."""
    return (yield from _natively())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Render failures natively."""
    return (yield from _natively())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_exception_interact() -> Generator[None, Any, Any]:
    """Start debuggers natively."""
    return (yield from _natively())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_logstart() -> Generator[None, Any, Any]:
    """Report natively."""
    return (yield from _natively())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_logreport() -> Generator[None, Any, Any]:
    """Report natively."""
    return (yield from _natively())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_logfinish() -> Generator[None, Any, Any]:
    """Report natively."""
    return (yield from _natively())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish() -> Generator[None, Any, Any]:
    """Write result files natively."""
    return (yield from _natively())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary() -> Generator[None, Any, Any]:
    """Summarise natively."""
    return (yield from _natively())

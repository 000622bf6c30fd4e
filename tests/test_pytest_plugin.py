"""The pytest plugin, tried in runs of pytest of its own."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import remoteio

pytest_plugins = ["pytester"]

PREAMBLE = """
import os
import pytest
import remoteio

def is_inside():
    return os.path.isdir("memory://")
"""


def loaded_by_itself() -> bool:
    """Whether the installed package brings the plugin in."""
    return any(point.value == "remoteio.pytest_plugin" for point in importlib.metadata.entry_points(group="pytest11"))


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """Runs pytest on the text of a test module."""
    monkeypatch.setenv("PYTHONPATH", str(Path(remoteio.__file__).parent.parent))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return Runner(pytester)


class Runner:
    """Runs pytest on the text of a test module."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester

    def __call__(self, text: str, *args: str) -> pytest.RunResult:
        self.pytester.makepyfile(PREAMBLE + text)
        plugin = () if loaded_by_itself() else ("-p", "remoteio.pytest_plugin")
        return self.pytester.runpytest_subprocess("--strict-markers", "-p", "no:cacheprovider", *plugin, *args)


class TestScopeFixture:
    """``remote_io``."""

    def test_test_is_inside_and_the_next_is_not(self, run: Runner) -> None:
        run("""
def test_inside(remote_io):
    assert is_inside()
    assert isinstance(remote_io, remoteio.RemoteIO)
def test_outside():
    assert not is_inside()
""").assert_outcomes(passed=2)

    def test_options_come_from_the_mark(self, run: Runner) -> None:
        run("""
from remoteio import _stack
@pytest.mark.remote_io(directory_markers=True, schemes=["memory"])
class TestOptions:
    @pytest.mark.remote_io(schemes=["s3"])
    def test_nearest_first(self, remote_io):
        settings = _stack.current()
        assert settings.directory_markers
        assert settings.schemes == {"s3"}
""").assert_outcomes(passed=1)

    def test_mark_alone_is_enough(self, run: Runner) -> None:
        run("""
@pytest.mark.remote_io
def test_inside():
    assert is_inside()
""").assert_outcomes(passed=1)

    def test_mark_takes_no_positional_options(self, run: Runner) -> None:
        result = run("""
@pytest.mark.remote_io("s3")
def test_inside():
    pass
""")
        result.assert_outcomes(errors=1)
        result.stdout.fnmatch_lines(["*given by name*"])

    def test_fixtures_that_need_it_are_inside(self, run: Runner) -> None:
        run("""
@pytest.fixture
def data(remote_io, remote_tmp):
    with open(f"{remote_tmp}/a", "w") as handle:
        handle.write("x")
    yield f"{remote_tmp}/a"
    assert is_inside()
def test_data(data):
    assert open(data).read() == "x"
""").assert_outcomes(passed=1)


class TestTmp:
    """``remote_tmp``."""

    def test_is_an_empty_directory_of_its_own(self, run: Runner) -> None:
        run("""
seen = []
@pytest.mark.parametrize("number", range(3))
def test_fresh(remote_io, remote_tmp, number):
    assert remote_tmp.startswith("memory://")
    assert not remote_tmp.endswith("/")
    assert os.listdir(remote_tmp) == []
    assert remote_tmp not in seen
    seen.append(remote_tmp)
    open(f"{remote_tmp}/a", "w").close()
""").assert_outcomes(passed=3)

    def test_is_removed_afterwards(self, run: Runner) -> None:
        run("""
kept = []
def test_first(remote_io, remote_tmp):
    kept.append(remote_tmp)
    os.makedirs(f"{remote_tmp}/d/e")
    open(f"{remote_tmp}/a", "w").close()
def test_second(remote_io):
    assert not os.path.exists(kept[0])
""").assert_outcomes(passed=2)

    def test_may_be_removed_by_the_test(self, run: Runner) -> None:
        run("""
import shutil
def test_first(remote_io, remote_tmp):
    shutil.rmtree(remote_tmp)
""").assert_outcomes(passed=1)

    def test_can_be_used_outside_of_a_scope(self, run: Runner) -> None:
        run("""
def test_first(remote_tmp):
    assert not is_inside()
    fs, path = remoteio.url_to_fs(remote_tmp)
    fs.pipe_file(f"{path}/a", b"x")
""").assert_outcomes(passed=1)

    def test_root_from_the_ini_file(self, run: Runner, tmp_path: Path) -> None:
        run.pytester.makeini(f"[pytest]\nremote_root = file://{tmp_path}")
        run("""
def test_first(remote_io, remote_tmp):
    assert remote_tmp.startswith("file:///")
    open(f"{remote_tmp}/a", "w").close()
""").assert_outcomes(passed=1)
        assert list(tmp_path.glob("pytest-*")) == []

    def test_root_from_the_command_line_wins(self, run: Runner) -> None:
        run.pytester.makeini("[pytest]\nremote_root = file:///nowhere")
        run(
            """
def test_first(remote_tmp):
    assert remote_tmp.startswith("memory://root/")
""",
            "--remote-root=memory://root",
        ).assert_outcomes(passed=1)

    def test_root_that_is_no_url_is_refused(self, run: Runner) -> None:
        result = run("def test_first(remote_tmp):\n    pass\n", "--remote-root=/tmp")
        result.assert_outcomes(errors=1)
        result.stdout.fnmatch_lines(["*is a URL*"])

    def test_workers_of_xdist_do_not_share_one(self, run: Runner, tmp_path: Path) -> None:
        pytest.importorskip("xdist")
        result = run(
            f"""
@pytest.mark.parametrize("number", range(8))
def test_each(remote_io, remote_tmp, number):
    assert os.listdir(remote_tmp) == []
    with open({str(tmp_path / "names")!r}, "a") as handle:
        handle.write(remote_tmp + "\\n")
""",
            "-n2",
            f"--remote-root=file://{tmp_path}",
        )
        result.assert_outcomes(passed=8)
        names = (tmp_path / "names").read_text().split()
        assert len(set(names)) == 8
        assert [path.name for path in tmp_path.iterdir()] == ["names"]


class TestCheck:
    """The check for what a test leaves behind."""

    LEAK = """
def test_leaks():
    remoteio.remote_io(schemes=["s3"]).__enter__()
def test_next():
    assert not is_inside()
    assert remoteio.status().scopes == 0
"""

    def test_scope_left_open_fails_the_test_and_only_that(self, run: Runner) -> None:
        result = run(self.LEAK)
        result.assert_outcomes(passed=2, errors=1)
        result.stdout.fnmatch_lines(["*left these scopes open: remote_io(schemes=?'s3'?)*"])
        result.stdout.fnmatch_lines(["ERROR *::test_leaks*"])

    def test_can_be_switched_off(self, run: Runner) -> None:
        run.pytester.makeini("[pytest]\nremote_check = false")
        run("def test_leaks():\n    remoteio.remote_io().__enter__()\n").assert_outcomes(passed=1)

    def test_scope_left_open_by_the_tests_own_fixture(self, run: Runner) -> None:
        run("""
@pytest.fixture
def leaking():
    remoteio.remote_io().__enter__()
def test_leaks(leaking):
    pass
""").assert_outcomes(passed=1, errors=1)

    def test_scope_left_open_by_a_thread(self, run: Runner) -> None:
        run("""
import threading
def test_leaks():
    thread = threading.Thread(target=remoteio.remote_io().__enter__)
    thread.start()
    thread.join()
""").assert_outcomes(passed=1, errors=1)

    @pytest.mark.parametrize("scope", ["class", "module", "package", "session"])
    def test_scopes_held_by_wider_fixtures_are_ignored(self, run: Runner, scope: str) -> None:
        run(f"""
@pytest.fixture(scope={scope!r})
def held():
    with remoteio.remote_io():
        yield
def test_first(held):
    assert is_inside()
def test_second(held):
    assert is_inside()
""").assert_outcomes(passed=2)

    def test_wider_fixture_asked_for_in_the_test_itself(self, run: Runner) -> None:
        run("""
@pytest.fixture(scope="session")
def held():
    with remoteio.remote_io():
        yield
def test_first(request):
    request.getfixturevalue("held")
    assert is_inside()
def test_second():
    assert is_inside()
""").assert_outcomes(passed=2)

    def test_fixture_that_closes_at_teardown_is_no_leak(self, run: Runner) -> None:
        run("""
def test_first(request):
    scope = remoteio.remote_io()
    scope.__enter__()
    request.addfinalizer(lambda: scope.__exit__(None, None, None))
""").assert_outcomes(passed=1)

    def test_monkeypatch_undone_after_the_scope_is_mended(self, run: Runner) -> None:
        run("""
original = os.listdir
def test_first(monkeypatch, remote_io):
    monkeypatch.setattr(os, "listdir", lambda path: [])
def test_second():
    assert os.listdir is original
""").assert_outcomes(passed=2)

    def test_unittest_cases_are_checked(self, run: Runner) -> None:
        run("""
import unittest
class Case(unittest.TestCase):
    def test_leaks(self):
        remoteio.remote_io().__enter__()
""").assert_outcomes(passed=1, errors=1)


class TestNativeHooks:
    """pytest's own work is outside of every scope."""

    CONFTEST = """
import os
import pytest
import remoteio

seen = {}

def pytest_sessionstart(session):
    session.config.scope = remoteio.remote_io()
    session.config.scope.__enter__()

def pytest_collect_file(file_path):
    seen["collect"] = os.path.isdir("memory://")

def pytest_runtest_logreport(report):
    seen["logreport"] = os.path.isdir("memory://")

def pytest_runtest_makereport(item, call):
    seen["makereport"] = os.path.isdir("memory://")

def pytest_runtest_logstart(nodeid, location):
    seen["logstart"] = os.path.isdir("memory://")

def pytest_runtest_logfinish(nodeid, location):
    seen["logfinish"] = os.path.isdir("memory://")

def pytest_terminal_summary(terminalreporter):
    seen["summary"] = os.path.isdir("memory://")
    terminalreporter.line(f"seen {sorted(seen.items())}")

def pytest_unconfigure(config):
    config.scope.__exit__(None, None, None)
"""

    def test_none_is_inside_although_a_scope_is_held(self, run: Runner) -> None:
        run.pytester.makeconftest(self.CONFTEST)
        result = run("""
AT_IMPORT = is_inside()
def test_itself_is_inside():
    assert is_inside()
    assert not AT_IMPORT
""")
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(
            ["seen *'collect', False*'logfinish', False*'logreport', False*'logstart', False*'makereport', False*"
             "'summary', False*"]
        )  # fmt: skip


def test_options_and_mark_are_documented(run: Runner) -> None:
    result = run("", "--help")
    result.stdout.fnmatch_lines(["*--remote-root=URL*"])
    run("", "--markers").stdout.fnmatch_lines(["@pytest.mark.remote_io(*"])


def test_loading_the_plugin_imports_no_store_and_installs_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text(
        "import sys, os\ndef test_nothing():\n"
        "    assert not {'fsspec', 'torch', 's3fs'} & set(sys.modules)\n"
        "    assert type(os.listdir).__name__ == 'builtin_function_or_method'\n"
    )
    plugin = () if loaded_by_itself() else ("-p", "remoteio.pytest_plugin")
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, "test_nothing.py"],
        cwd=tmp_path, check=True, env={"PYTHONPATH": str(Path(remoteio.__file__).parent.parent), "PATH": "/usr/bin"},
    )  # fmt: skip

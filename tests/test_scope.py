"""Entering, leaving, nesting, options, and what is told about it."""

from __future__ import annotations

import contextlib
import itertools
import linecache
import os
import pickle
import random
import shutil
import sys
import types
from collections.abc import Callable, Iterator
from os.path import exists as early_exists
from pathlib import Path
from typing import Any

import pytest

import remoteio
from remoteio import _entries, _settings, _stack
from remoteio._settings import DEFAULT, Settings
from remoteio.errors import ScopeError
from tests.conftest import Place


def is_inside() -> bool:
    """Whether this thread is in a scope: the root of the memory store is a directory there."""
    return os.path.isdir("memory://")


def settings() -> Settings:
    """The settings in force."""
    found = _stack.current()
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def originals() -> Iterator[None]:
    """After each test everything is as it was."""
    before = (open, os.listdir, os.path.isdir)
    yield
    assert (open, os.listdir, os.path.isdir) == before


def test_inside_the_block_and_only_there() -> None:
    assert not is_inside()
    with remoteio.remote_io():
        assert is_inside()
    assert not is_inside()


def test_with_yields_the_scope() -> None:
    scope = remoteio.remote_io()
    with scope as entered:
        assert entered is scope


def test_exception_leaves_the_scope_and_passes() -> None:
    with pytest.raises(KeyError), remoteio.remote_io():
        raise KeyError
    assert not is_inside()


def test_nested_scopes_end_one_by_one() -> None:
    with remoteio.remote_io():
        with remoteio.remote_io():
            assert is_inside()
        assert is_inside()
    assert not is_inside()


def test_same_object_can_be_entered_again_while_entered() -> None:
    scope = remoteio.remote_io()
    with scope, scope:
        assert is_inside()
    with scope:
        assert is_inside()
    assert not is_inside()


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_scopes_can_be_left_in_any_order(order: tuple[int, ...]) -> None:
    scopes = [remoteio.remote_io() for _ in range(3)]
    for scope in scopes:
        scope.__enter__()
    for number in order:
        assert is_inside()
        scopes[number].__exit__(None, None, None)
    assert not is_inside()


def test_random_interleavings_of_entries_and_exits() -> None:
    chance = random.Random(20)
    scopes = [remoteio.remote_io(flush_interval_s=number) for number in range(5)]
    entered: list[int] = []
    for _ in range(500):
        if entered and chance.random() < 0.5:
            number = entered.pop(chance.randrange(len(entered)))
            scopes[number].__exit__(None, None, None)
        else:
            number = chance.randrange(5)
            scopes[number].__enter__()
            entered.append(number)
        assert is_inside() is bool(entered)
    for number in entered:
        scopes[number].__exit__(None, None, None)


def test_left_without_entry() -> None:
    with pytest.raises(ScopeError, match="has not entered"):
        remoteio.remote_io().__exit__(None, None, None)


def test_left_twice() -> None:
    scope = remoteio.remote_io()
    with remoteio.remote_io():
        with scope:
            pass
        with pytest.raises(ScopeError):
            scope.__exit__(None, None, None)
        assert is_inside()


def test_scope_error_is_a_runtime_error() -> None:
    assert issubclass(ScopeError, RuntimeError)


def test_native_block_inside_a_scope() -> None:
    with remoteio.remote_io():
        with remoteio.native_io():
            assert not is_inside()
        assert is_inside()


def test_scope_in_a_native_block_in_a_scope() -> None:
    with remoteio.remote_io(), remoteio.native_io():
        with remoteio.remote_io():
            assert is_inside()
        assert not is_inside()


def test_native_block_alone_installs_nothing() -> None:
    before = os.listdir
    with remoteio.native_io():
        assert os.listdir is before


def test_native_block_as_decorator() -> None:
    with remoteio.remote_io():
        assert remoteio.native_io()(is_inside)() is False


def test_native_block_left_without_entry() -> None:
    with pytest.raises(ScopeError, match=r"native_io\(\)"):
        remoteio.native_io().__exit__(None, None, None)


class TestOptions:
    """What a scope says, and what it takes from the one around it."""

    def test_nothing_said_means_the_defaults(self) -> None:
        with remoteio.remote_io():
            assert settings() == DEFAULT

    @pytest.mark.parametrize(
        ("option", "value", "found"),
        [
            ("schemes", ["S3", "memory"], frozenset({"s3", "memory"})),
            ("on_error", "commit", {"*": "commit"}),
            ("on_error", {"*.log": "commit"}, {"*.log": "commit"}),
            ("flush_interval_s", 30, 30.0),
            ("directory_markers", True, True),
            ("allow_bucket_delete", True, True),
        ],
    )
    def test_option_is_in_force_and_inherited(self, option: str, value: Any, found: Any) -> None:
        with remoteio.remote_io(**{option: value}):
            assert getattr(settings(), option) == found
            with remoteio.remote_io():
                assert getattr(settings(), option) == found
            with remoteio.native_io(), remoteio.remote_io():
                assert getattr(settings(), option) == found
        with remoteio.remote_io():
            assert getattr(settings(), option) == getattr(DEFAULT, option)

    def test_inner_option_wins_and_ends(self) -> None:
        with remoteio.remote_io(directory_markers=True):
            with remoteio.remote_io(directory_markers=False):
                assert settings().directory_markers is False
            assert settings().directory_markers is True

    def test_storage_options_stack_innermost_first(self) -> None:
        inner = remoteio.remote_io(storage_options={"gs": {"token": "anon"}})
        with remoteio.remote_io(storage_options={"s3": {"anon": True}}), inner:
            assert settings().storage_options == ({"gs": {"token": "anon"}}, {"s3": {"anon": True}})

    def test_storage_options_are_copied(self) -> None:
        table: dict[str, dict[str, Any]] = {"s3": {"anon": True}}
        scope = remoteio.remote_io(storage_options=table)
        table["s3"]["anon"] = False
        with scope:
            assert settings().storage_options == ({"s3": {"anon": True}},)

    def test_schemes_narrow_what_is_a_url(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        with remoteio.remote_io(schemes=["s3"]):
            assert not os.path.isdir("memory://")
            assert not remoteio.is_remote("memory://a")
            assert remoteio.is_remote("s3://a/b")

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"schemes": "s3"}, TypeError),
            ({"schemes": [3]}, TypeError),
            ({"schemes": ["s3://"]}, ValueError),
            ({"storage_options": [("s3", {})]}, TypeError),
            ({"storage_options": {"s3": "secret"}}, TypeError),
            ({"storage_options": {3: {}}}, TypeError),
            ({"on_error": "keep"}, ValueError),
            ({"on_error": {"*": "keep"}}, ValueError),
            ({"on_error": {3: "commit"}}, TypeError),
            ({"on_error": 3}, TypeError),
            ({"flush_interval_s": -1}, ValueError),
            ({"flush_interval_s": float("nan")}, ValueError),
            ({"flush_interval_s": "30"}, TypeError),
            ({"flush_interval_s": True}, TypeError),
            ({"directory_markers": 1}, TypeError),
            ({"allow_bucket_delete": "yes"}, TypeError),
            ({"inherit_threads": None}, TypeError),
            ({"enabled": "always"}, TypeError),
            ({"enabled": 1}, TypeError),
            ({"unknown": 1}, TypeError),
        ],
    )
    def test_wrong_option_is_refused(self, options: dict[str, Any], error: type[Exception]) -> None:
        with pytest.raises(error):
            remoteio.remote_io(**options)

    def test_wrong_storage_options_are_not_shown(self) -> None:
        with pytest.raises(TypeError) as caught:
            remoteio.remote_io(storage_options={"s3://user:pass@host/": "hunter2"})  # type: ignore[dict-item]
        assert "hunter2" not in str(caught.value)
        assert "pass" not in str(caught.value)

    def test_repr_shows_no_credentials(self) -> None:
        scope = remoteio.remote_io(storage_options={"s3": {"secret": "hunter2"}}, schemes=["s3"], on_error="commit")
        assert "hunter2" not in repr(scope)
        assert repr(scope) == "remote_io(schemes=['s3'], storage_options=['s3'], on_error={'*': 'commit'})"

    def test_repr_of_a_prefix_shows_no_credentials(self) -> None:
        scope = remoteio.remote_io(storage_options={"s3://user:hunter2@host/x": {}})
        assert "hunter2" not in repr(scope)


class TestSwitch:
    """``enabled``."""

    @pytest.fixture(autouse=True)
    def without_the_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("USE_FSSPEC", raising=False)

    def test_switched_off_does_nothing(self) -> None:
        before = os.listdir
        with remoteio.remote_io(enabled=False):
            assert os.listdir is before
            assert not is_inside()

    def test_switched_off_inside_of_a_scope_changes_nothing(self) -> None:
        with remoteio.remote_io(), remoteio.remote_io(enabled=False, directory_markers=True):
            assert is_inside()
            assert settings() == DEFAULT

    def test_switched_off_is_still_left_once_only(self) -> None:
        scope = remoteio.remote_io(enabled=False)
        with scope:
            pass
        with pytest.raises(ScopeError):
            scope.__exit__(None, None, None)

    def test_environment_unset_means_off(self) -> None:
        with remoteio.remote_io(enabled="env") as scope:
            assert not is_inside()
            assert not scope.enabled

    def test_environment_variable_switches_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("USE_FSSPEC", "1")
        with remoteio.remote_io(enabled="env"):
            assert is_inside()

    def test_environment_is_asked_at_entry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        scope = remoteio.remote_io(enabled="env")
        monkeypatch.setenv("USE_FSSPEC", "1")
        with scope:
            assert is_inside()

    @pytest.mark.parametrize("package", ["pangudfs_client", "megatensors"])
    def test_package_of_a_vendor_switches_on_unimported(
        self, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise RuntimeError('imported')")
        monkeypatch.syspath_prepend(tmp_path)
        with remoteio.remote_io(enabled="env"):
            assert is_inside()
        assert package not in sys.modules


class TestStatus:
    """``status()``."""

    def test_everything_is_ours_inside_and_nothing_outside(self) -> None:
        assert set(remoteio.status().places.values()) == {"not installed"}
        with remoteio.remote_io():
            assert set(remoteio.status().places.values()) == {"ours"}

    def test_places_have_the_names_that_people_write(self) -> None:
        assert {"builtins.open", "io.open", "os.makedirs", "os.path.isdir", "os.listdir", "os.remove",
                "os.path.exists", "shutil.copy", "shutil.rmtree", "glob.glob", "os.path.getsize"} <= set(
                    remoteio.status().places)  # fmt: skip

    def test_the_engines_are_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("REMOTEIO_ENGINE", "fsspec")
        found = remoteio.status()
        assert found.engines["fsspec"] == "used"
        assert "engine fsspec: used" in str(found)

    def test_scopes_and_threads_are_counted(self) -> None:
        with remoteio.remote_io(), remoteio.remote_io():
            found = remoteio.status()
        assert (found.scopes, found.threads, found.inside) == (2, 1, True)
        found = remoteio.status()
        assert (found.scopes, found.threads, found.inside) == (0, 0, False)

    def test_calls_are_counted_by_function_and_scheme(self) -> None:
        before = remoteio.status().counts.get(("isdir", "memory"))
        with remoteio.remote_io():
            os.path.isdir("memory://")
            os.path.isdir("/")
        after = remoteio.status().counts["isdir", "memory"]
        assert after.calls - (before.calls if before else 0) == 1

    def test_bytes_are_counted(self, memory_place: Place) -> None:
        with remoteio.remote_io():
            with open(memory_place.url("a"), "wb") as handle:
                handle.write(b"12345")
            before = remoteio.status().counts["open", "memory"]
            with open(memory_place.url("a"), "rb") as handle:
                handle.read()
            with open(memory_place.url("b"), "wb") as handle:
                handle.write(b"123")
        after = remoteio.status().counts["open", "memory"]
        assert (after.bytes_read - before.bytes_read, after.bytes_written - before.bytes_written) == (5, 3)

    def test_prints_as_a_table(self) -> None:
        with remoteio.remote_io():
            os.path.isdir("memory://")
            text = str(remoteio.status())
        assert "inside" in text
        assert "isdir" in text


class TestQuestions:
    """``is_remote`` and ``url_to_fs``."""

    @pytest.mark.parametrize(
        "path", ["memory://a", b"memory://a", Path("memory://a"), "MEMORY://a", "file:///a", "s3:/b/k"]
    )
    def test_urls_are_remote(self, path: Any) -> None:
        assert remoteio.is_remote(path)

    @pytest.mark.parametrize("path", ["/a", b"a", Path("a"), 3, None, "nosuch://a", "", "a:/b"])
    def test_everything_else_is_not(self, path: Any) -> None:
        assert not remoteio.is_remote(path)

    def test_url_to_fs_gives_a_filesystem_and_its_path(self, memory_place: Place) -> None:
        memory_place.put("a", b"x")
        fs, path = remoteio.url_to_fs(memory_place.url("a"))
        assert fs.cat_file(path) == b"x"

    def test_settings_are_told_to_what_does_not_know_scopes(self) -> None:
        with remoteio.remote_io(directory_markers=True):
            assert _settings.current().directory_markers
        assert _settings.current() == DEFAULT

    @pytest.mark.parametrize("path", ["/a", Path("a"), 3])
    def test_url_to_fs_gives_a_local_path_back(self, path: Any) -> None:
        assert remoteio.url_to_fs(path) == (None, path)


def at_line(number: int, act: Callable[[], None]) -> Callable[..., Any]:
    """A trace function that acts once, at the n-th line that the package runs."""
    package = os.path.dirname(remoteio.__file__)
    lines = 0
    acting = False

    def trace(frame: types.FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        last = 0

        def trace_lines(frame: types.FrameType, event: str, arg: object) -> Callable[..., Any] | None:
            nonlocal lines, acting, last
            if acting or event != "line":
                return None if acting else trace_lines
            back, last = frame.f_lineno < last, frame.f_lineno
            # Python looks for signals after a call and at a jump back, never between the last step of a with block
            # and its end: an exception there, which only a trace function can raise, would leave a lock taken.
            if back and linecache.getline(frame.f_code.co_filename, last).lstrip().startswith("with "):
                return trace_lines
            lines += 1
            if lines == number:
                acting = True
                act()
            return trace_lines

        if acting or not frame.f_code.co_filename.startswith(package):
            return None
        if frame.f_code.co_name in ("__enter__", "__exit__"):
            return None  # between a with statement and their first step nobody can promise anything
        return trace_lines

    return trace


def traced(trace: Callable[..., Any], work: Callable[[], None]) -> None:
    """Run something under a trace function."""
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)


def enter_and_leave() -> None:
    """One scope, the last of the process."""
    with remoteio.remote_io():
        pass


# Enough to go through an installation and a restoration; the step is a prime, so that loops are met at all their lines.
MOMENTS = range(1, 2_000, 37)


class TestInterruptions:
    """What happens in the middle of an installation or a restoration."""

    @pytest.mark.parametrize("moment", MOMENTS)
    def test_signal_handler_or_finalizer_may_use_a_scope(self, moment: int) -> None:
        seen: list[bool] = []

        def act() -> None:
            with remoteio.remote_io():
                seen.append(is_inside())

        traced(at_line(moment, act), enter_and_leave)
        assert all(seen)
        assert not _entries.open_entries()
        assert not is_inside()

    @pytest.mark.parametrize("moment", MOMENTS)
    def test_handler_that_leaves_a_scope_open_has_it(self, moment: int) -> None:
        scope = remoteio.remote_io()
        entered: list[bool] = []

        def act() -> None:
            scope.__enter__()
            entered.append(True)

        traced(at_line(moment, act), enter_and_leave)
        assert is_inside() is bool(entered)
        if entered:
            scope.__exit__(None, None, None)

    @pytest.mark.parametrize("moment", MOMENTS)
    def test_interrupt_leaves_nothing_installed(self, moment: int) -> None:
        before = (open, os.listdir, shutil.rmtree, early_exists)

        def act() -> None:
            raise KeyboardInterrupt

        with contextlib.suppress(KeyboardInterrupt):
            traced(at_line(moment, act), enter_and_leave)
        assert (open, os.listdir, shutil.rmtree, early_exists) == before
        assert not _entries.open_entries()
        with remoteio.remote_io():
            assert is_inside()

    def test_interrupt_at_each_line_of_leaving_a_nested_scope(self) -> None:
        def act() -> None:
            raise KeyboardInterrupt

        interrupted = True
        moment = 0
        with remoteio.remote_io() as outer:
            before = _stack.here.own[:]
            while interrupted:
                moment += 1
                interrupted = False
                outer.__enter__()
                try:
                    traced(at_line(moment, act), lambda: outer.__exit__(None, None, None))
                except KeyboardInterrupt:
                    interrupted = True
                assert _stack.here.own == before, moment
                assert _entries.open_entries() == frozenset(before), moment
        assert moment > 20


class TestWorker:
    """``enter_worker`` and pickling."""

    def test_scope_pickles_with_its_options(self) -> None:
        scope = remoteio.remote_io(schemes=["memory"], directory_markers=True)
        assert repr(pickle.loads(pickle.dumps(scope))) == repr(scope)

    def test_scope_pickled_inside_carries_what_is_in_force(self) -> None:
        outer = remoteio.remote_io(storage_options={"s3": {"anon": True}}, allow_bucket_delete=True)
        with outer, remoteio.remote_io(directory_markers=True) as scope:
            copied = pickle.loads(pickle.dumps(scope))
        with copied:
            assert settings() == Settings(
                storage_options=({"s3": {"anon": True}},), allow_bucket_delete=True, directory_markers=True
            )

    def test_enter_worker_pickles_and_enters(self) -> None:
        scope = remoteio.remote_io(directory_markers=True)
        enter = pickle.loads(pickle.dumps(scope.enter_worker))
        enter(0)
        try:
            assert settings().directory_markers
        finally:
            enter.__self__.__exit__(None, None, None)

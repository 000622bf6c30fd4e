"""What replacements look like, where they stand, and that nothing of them is left."""

# ruff: noqa: SIM115 - files are opened here to see what open says, not to be read

from __future__ import annotations

import copy
import genericpath
import glob
import importlib
import inspect
import io
import ntpath
import os
import pathlib
import pickle
import posixpath
import shutil
import subprocess
import sys
import tarfile
import textwrap
import types
import warnings
from collections.abc import Callable, Iterator
from os.path import exists as early_exists
from pathlib import Path
from typing import Any

import pytest

import remoteio
from remoteio import _dispatch, _entries
from tests.conftest import Place

NAMES = {
    "open": (io, "open"),
    "makedirs": (os, "makedirs"),
    "isdir": (os.path, "isdir"),
    "listdir": (os, "listdir"),
    "remove": (os, "remove"),
    "exists": (os.path, "exists"),
    "copy": (shutil, "copy"),
    "rmtree": (shutil, "rmtree"),
    "glob": (glob, "glob"),
    "getsize": (os.path, "getsize"),
}
BUILTINS = ("open", "listdir", "remove")
each_of_the_ten = pytest.mark.parametrize("name", NAMES)
each_builtin = pytest.mark.parametrize("name", BUILTINS)


def now(name: str) -> Any:
    """What stands under one of the ten names."""
    module, attribute = NAMES[name]
    return getattr(module, attribute)


@pytest.fixture
def module() -> Iterator[types.ModuleType]:
    """A module of this test's own, in ``sys.modules``."""
    made = types.ModuleType("tests_dispatch_module")
    sys.modules[made.__name__] = made
    yield made
    sys.modules.pop(made.__name__, None)


@each_of_the_ten
def test_each_is_replaced_inside_and_back_afterwards(name: str) -> None:
    before = now(name)
    with remoteio.remote_io():
        assert now(name) is not before
    assert now(name) is before


def test_open_is_one_object_under_two_names() -> None:
    with remoteio.remote_io():
        assert open is io.open
    assert open is io.open


@each_of_the_ten
def test_signature_is_the_original(name: str) -> None:
    before = inspect.signature(now(name))
    with remoteio.remote_io():
        assert inspect.signature(now(name)) == before


@each_of_the_ten
@pytest.mark.parametrize("attribute", ["__name__", "__qualname__", "__doc__", "__module__"])
def test_attributes_are_the_original(name: str, attribute: str) -> None:
    before = getattr(now(name), attribute)
    with remoteio.remote_io():
        assert getattr(now(name), attribute) == before


@each_builtin
def test_text_signature_of_builtins_survives(name: str) -> None:
    before = now(name).__text_signature__
    with remoteio.remote_io():
        assert now(name).__text_signature__ == before


@each_builtin
def test_replacement_of_a_builtin_does_not_bind_in_a_class(name: str) -> None:
    with remoteio.remote_io():
        cls = type("Holder", (), {"held": now(name)})
        assert cls().held is now(name)


def test_replacement_of_a_function_binds_in_a_class_as_the_function_did(tmp_path: Path) -> None:
    with remoteio.remote_io():
        cls = type("PathText", (str,), {"is_there": os.path.exists})
        assert cls(tmp_path).is_there() is True


@each_of_the_ten
def test_replacements_pickle_inside(name: str) -> None:
    with remoteio.remote_io():
        assert pickle.loads(pickle.dumps(now(name))) is now(name)


@each_builtin
def test_pickle_of_a_builtins_replacement_is_the_original_outside(name: str) -> None:
    before = now(name)
    with remoteio.remote_io():
        data = pickle.dumps(now(name))
    assert pickle.loads(data) is before


@each_builtin
def test_pickle_of_a_builtins_replacement_does_not_need_this_package(name: str) -> None:
    with remoteio.remote_io():
        data = pickle.dumps(now(name))
    assert b"remoteio" not in data


@each_of_the_ten
def test_replacements_can_be_copied(name: str) -> None:
    with remoteio.remote_io():
        assert copy.copy(now(name)) is now(name)
        assert copy.deepcopy(now(name)) == now(name)


@pytest.mark.parametrize(
    "capability", ["supports_dir_fd", "supports_effective_ids", "supports_fd", "supports_follow_symlinks"]
)
def test_capability_sets_have_the_same_members(capability: str) -> None:
    before = set(getattr(os, capability))
    members = {name for name in NAMES if now(name) in before}
    with remoteio.remote_io():
        assert {name for name in NAMES if now(name) in getattr(os, capability)} == members
    assert getattr(os, capability) == before


def test_rmtree_keeps_what_it_says_of_symlink_attacks() -> None:
    before = shutil.rmtree.avoids_symlink_attacks
    with remoteio.remote_io():
        assert shutil.rmtree.avoids_symlink_attacks is before


def test_name_bound_early_is_covered_and_set_back() -> None:
    before = early_exists
    with remoteio.remote_io():
        assert early_exists is os.path.exists
        assert early_exists("memory://")
    assert early_exists is before


@pytest.mark.parametrize("home", [genericpath, posixpath, ntpath], ids=lambda home: str(home.__name__))
def test_every_path_module_is_covered(home: types.ModuleType) -> None:
    before = home.exists
    with remoteio.remote_io():
        assert home.exists is os.path.exists
    assert home.exists is before


def test_open_bound_early_by_the_standard_library_is_covered() -> None:
    with remoteio.remote_io():
        assert vars(tarfile)["bltn_open"] is open
        assert sys.modules["_io"].open is open


def test_importlib_and_posix_keep_the_originals() -> None:
    posix = pytest.importorskip("posix", reason="named nt on Windows")
    before = posix.listdir
    with remoteio.remote_io():
        assert posix.listdir is before


def test_name_bound_inside_by_an_imported_module_is_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bound_inside.py").write_text("from os import listdir\nfrom glob import glob\n")
    monkeypatch.syspath_prepend(tmp_path)
    with remoteio.remote_io():
        bound = importlib.import_module("bound_inside")
        assert bound.listdir is os.listdir
    assert bound.listdir is os.listdir
    assert bound.glob is glob.glob
    del sys.modules["bound_inside"]


def test_module_removed_meanwhile_is_set_back(module: types.ModuleType) -> None:
    module.listdir = before = os.listdir  # type: ignore[attr-defined]
    with remoteio.remote_io():
        assert module.listdir is not before
        del sys.modules[module.__name__]
    assert module.listdir is before


def test_module_changed_between_two_scopes_is_searched_again(module: types.ModuleType) -> None:
    with remoteio.remote_io():
        pass
    module.late = os.listdir  # type: ignore[attr-defined]
    with remoteio.remote_io():
        assert module.late is os.listdir


def test_name_that_is_not_ours_any_more_is_left_alone(module: types.ModuleType) -> None:
    module.listdir = os.listdir  # type: ignore[attr-defined]
    with remoteio.remote_io():
        module.listdir = len  # type: ignore[attr-defined]
    assert module.listdir is len


def test_lazy_modules_are_not_asked_for_attributes() -> None:
    class Lazy(types.ModuleType):
        def __getattribute__(self, name: str) -> Any:
            if name not in ("__spec__", "__name__"):
                asked.append(name)
            return super().__getattribute__(name)

    asked: list[str] = []
    sys.modules["tests_lazy_module"] = Lazy("tests_lazy_module")
    try:
        asked.clear()
        with remoteio.remote_io():
            pass
    finally:
        del sys.modules["tests_lazy_module"]
    assert asked == []


def test_odd_entries_of_sys_modules_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    monkeypatch.setitem(sys.modules, "tests_odd_entry", Odd())
    monkeypatch.setitem(sys.modules, "tests_empty_entry", None)
    with remoteio.remote_io():
        assert os.path.isdir("memory://")


@pytest.mark.skipif(sys.version_info >= (3, 11), reason="3.11 has no accessor")
def test_accessor_of_pathlib_is_covered() -> None:
    accessor = pathlib._NormalAccessor  # type: ignore[attr-defined]
    before = accessor.__dict__["listdir"]
    with remoteio.remote_io():
        assert accessor.__dict__["listdir"] is os.listdir
        assert accessor.__dict__["open"] is open
    assert accessor.__dict__["listdir"] is before


class TestForeign:
    """Someone else patches the same names."""

    @pytest.fixture
    def foreign(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
        original = os.listdir

        def listdir(*args: Any, **kwargs: Any) -> Any:
            return ["foreign", *original(*args, **kwargs)]

        monkeypatch.setattr(os, "listdir", listdir)
        return listdir

    def test_foreign_function_is_what_a_local_call_reaches(self, foreign: Callable[..., Any], tmp_path: Path) -> None:
        with remoteio.remote_io():
            assert os.listdir(tmp_path) == ["foreign"]

    def test_foreign_function_is_set_back(self, foreign: Callable[..., Any]) -> None:
        with remoteio.remote_io():
            assert os.listdir is not foreign
        assert os.listdir is foreign

    def test_url_is_answered_over_a_foreign_function(self, foreign: Callable[..., Any], memory_place: Place) -> None:
        memory_place.put("a", b"")
        with remoteio.remote_io():
            assert os.listdir(memory_place.base) == ["a"]

    def test_url_by_keyword_is_answered_over_a_foreign_function(
        self, foreign: Callable[..., Any], memory_place: Place
    ) -> None:
        with remoteio.remote_io():
            assert os.listdir(path=memory_place.base) == []

    def test_foreign_function_does_not_hide_names_bound_before_it(
        self, foreign: Callable[..., Any], module: types.ModuleType
    ) -> None:
        posix = pytest.importorskip("posix", reason="named nt on Windows")
        module.listdir = posix.listdir  # type: ignore[attr-defined]
        with remoteio.remote_io():
            assert module.listdir("memory://") is not None
        assert module.listdir is posix.listdir

    def test_patch_over_ours_stays_after_the_block(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with remoteio.remote_io():
            over = lambda path: ["over"]  # noqa: E731
            monkeypatch.setattr(os, "listdir", over)
            assert remoteio.status().places["os.listdir"] == "foreign"
        assert os.listdir is over

    def test_undo_inside_takes_ours_away_for_that_name(self) -> None:
        before = os.listdir
        with remoteio.remote_io():
            os.listdir = before
            assert remoteio.status().places["os.listdir"] == "not installed"
            assert remoteio.status().places["os.remove"] == "ours"
        with remoteio.remote_io():
            assert os.listdir is not before
        assert os.listdir is before

    def test_undo_after_the_block_is_cleaned_by_the_next(self) -> None:
        before = os.listdir
        with remoteio.remote_io():
            kept = os.listdir
        os.listdir = kept
        with remoteio.remote_io():
            assert os.listdir is kept
        assert os.listdir is before

    def test_chain_of_foreign_and_ours_ends(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with remoteio.remote_io():
            ours = os.listdir
            monkeypatch.setattr(os, "listdir", lambda path: ["over", *ours(path)])
        with remoteio.remote_io():
            assert os.listdir(tmp_path) == ["over"]
            assert os.listdir("memory://") is not None

    def test_same_original_gets_the_same_replacement_again(self) -> None:
        with remoteio.remote_io():
            first = os.listdir
        with remoteio.remote_io():
            assert os.listdir is first

    def test_callable_object_can_be_replaced(self, monkeypatch: pytest.MonkeyPatch, memory_place: Place) -> None:
        class Counting:
            calls = 0

            def __call__(self, path: Any) -> bool:
                self.calls += 1
                return False

        counting = Counting()
        monkeypatch.setattr(os.path, "exists", counting)
        with remoteio.remote_io():
            assert os.path.exists(memory_place.base)
            assert not os.path.exists("/")
        assert counting.calls == 1
        assert os.path.exists is counting

    def test_what_cannot_be_hashed_can_be_replaced(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Unhashable:
            __hash__ = None  # type: ignore[assignment]

            def __eq__(self, other: object) -> bool:
                return True

            def __call__(self, path: Any) -> bool:
                return False

        monkeypatch.setattr(os.path, "exists", Unhashable())
        with remoteio.remote_io():
            assert os.path.exists("memory://")

    def test_many_foreign_functions_do_not_pile_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for _ in range(50):
            with monkeypatch.context() as patched:
                patched.setattr(os, "listdir", lambda path: [])
                with remoteio.remote_io():
                    pass
        assert sum(key.startswith("os:listdir#") for key in _dispatch._latest) < 15


class TestKept:
    """Somebody keeps a replacement after the block."""

    def test_kept_one_is_native_outside(self, tmp_path: Path) -> None:
        with remoteio.remote_io():
            kept = os.path.isdir
        assert kept(str(tmp_path)) is True
        assert kept("memory://") is False

    def test_kept_one_answers_in_the_next_scope(self) -> None:
        with remoteio.remote_io():
            kept = os.path.isdir
        with remoteio.remote_io():
            assert kept("memory://") is True


class TestLocal:
    """A local call inside is a local call outside."""

    @pytest.mark.parametrize(
        "call",
        [
            lambda path: os.path.exists(b"\0"),
            lambda path: os.path.exists(3.5),  # type: ignore[arg-type]
            lambda path: os.listdir(path + "/none"),
            lambda path: os.listdir(path.encode()),
            lambda path: os.path.getsize(Path(path)),
            lambda path: os.makedirs(path),
            lambda path: os.makedirs(name=path, exist_ok=True),
            lambda path: open(path),
            lambda path: open(path + "/new", "rw"),
            lambda path: open(path + "/new", "rb", 0, "utf-8"),
            lambda path: open(path + "/new", 5),  # type: ignore[call-overload]
            lambda path: glob.glob("*", root_dir=path),
            lambda path: glob.glob(os.path.join(path, "**"), recursive=True),
            lambda path: shutil.copy(path + "/none", path),
            lambda path: shutil.rmtree(path + "/none"),
            lambda path: shutil.rmtree(path + "/none", ignore_errors=True),
            lambda path: os.remove(path),
            lambda path: os.path.exists("nosuch://a/b"),
            lambda path: open("nosuch://a/b"),
            lambda path: os.listdir("12:/34"),
            lambda path: os.path.isdir(path + "/a:/b"),
        ],
    )
    def test_answers_are_the_same(self, call: Callable[[str], Any], tmp_path: Path) -> None:
        def answer() -> object:
            try:
                return call(str(tmp_path))
            except Exception as error:  # which one it is, is compared
                return type(error), str(error), getattr(error, "errno", None)

        (tmp_path / "a").write_text("text")
        outside = answer()
        with remoteio.remote_io():
            assert answer() == outside

    def test_original_gets_the_very_object(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        given: list[Any] = []
        monkeypatch.setattr(os.path, "isdir", lambda s: given.append(s))
        path = Path(tmp_path)
        with remoteio.remote_io():
            os.path.isdir(path)  # type: ignore[arg-type,unused-ignore]
        assert given[0] is path

    def test_path_like_that_raises_is_the_originals_business(self) -> None:
        class Bad:
            def __fspath__(self) -> str:
                raise OSError("from __fspath__")

        with remoteio.remote_io():
            assert os.path.exists(Bad()) is False

    def test_descriptor_is_opened(self, tmp_path: Path) -> None:
        number = os.open(tmp_path / "a", os.O_CREAT | os.O_WRONLY)
        with remoteio.remote_io(), open(number, "w") as handle:
            handle.write("x")
        assert (tmp_path / "a").read_text() == "x"

    def test_listing_without_an_argument(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "a").touch()
        monkeypatch.chdir(tmp_path)
        with remoteio.remote_io():
            assert os.listdir() == ["a"]

    def test_local_tree_is_copied_and_removed(self, tmp_path: Path) -> None:
        (tmp_path / "a" / "b").mkdir(parents=True)
        (tmp_path / "a" / "b" / "c").write_text("x")
        with remoteio.remote_io():
            shutil.copytree(tmp_path / "a", tmp_path / "z")
            shutil.rmtree(tmp_path / "a")
        assert [path.name for path in tmp_path.rglob("*")] == ["z", "b", "c"]


class TestWarnings:
    """Warnings name the line that called, as if no replacement were there."""

    def test_buffering_one_in_binary_mode(self, tmp_path: Path) -> None:
        with remoteio.remote_io(), pytest.warns(RuntimeWarning, match="line buffering") as caught:
            open(tmp_path / "a", "wb", buffering=1).close()
        assert [warning.filename for warning in caught] == [__file__]

    def test_buffering_one_in_text_mode_gives_none(self, tmp_path: Path) -> None:
        with remoteio.remote_io(), warnings.catch_warnings():
            warnings.simplefilter("error")
            with open(tmp_path / "a", "w", buffering=1, encoding="utf-8") as handle:
                assert handle.line_buffering

    def test_wrong_mode_with_buffering_one_gives_none(self, tmp_path: Path) -> None:
        with remoteio.remote_io(), warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(ValueError, match="mode"):
                open(tmp_path / "a", "rwb", buffering=1)

    def test_stacklevel_of_an_original_skips_the_replacement(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def listdir(path: str) -> list[str]:
            warnings.warn("old", DeprecationWarning, stacklevel=2)
            return []

        monkeypatch.setattr(os, "listdir", listdir)
        with remoteio.remote_io(), pytest.warns(DeprecationWarning) as caught:
            os.listdir("/")
        assert caught[0].filename == __file__

    @pytest.mark.parametrize("target", ["here", "memory://here"])
    def test_missing_encoding_names_the_callers_line(self, target: str, tmp_path: Path) -> None:
        program = textwrap.dedent(f"""
            import remoteio
            with remoteio.remote_io():
                open({target!r}, "w").close()
                open({target!r}).close()
                open({target!r}, "rb").close()
                open({target!r}, encoding="utf-8").close()
            try:
                open("missing")
            except FileNotFoundError:
                pass
        """)
        (tmp_path / "program.py").write_text(program)
        done = subprocess.run(
            [sys.executable, "-X", "warn_default_encoding", "-W", "ignore", "-W", "always::EncodingWarning",
             "program.py"],
            cwd=tmp_path, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": _root()},
        )  # fmt: skip
        ours = [line for line in done.stderr.splitlines() if "EncodingWarning" in line and "program.py" in line]
        assert [line.rpartition("program.py:")[2].partition(":")[0] for line in ours] == ["4", "5"]


def _root() -> str:
    return str(Path(remoteio.__file__).parent.parent)


class TestFileUrls:
    """``file://`` is answered by the originals, in the caller's spelling."""

    def test_glob_spells_as_the_caller(self, file_place: Place) -> None:
        url = file_place.put("a.txt", b"")
        with remoteio.remote_io():
            assert glob.glob(f"{file_place.base}/*.txt") == [url]

    def test_glob_of_bytes_gives_bytes(self, file_place: Place) -> None:
        url = file_place.put("a.txt", b"")
        with remoteio.remote_io():
            assert glob.glob(f"{file_place.base}/*.txt".encode()) == [url.encode()]

    def test_glob_in_a_root_gives_bare_names(self, file_place: Place) -> None:
        file_place.put("d/a.txt", b"")
        with remoteio.remote_io():
            assert glob.glob("*/*.txt", root_dir=file_place.base) == ["d/a.txt"]

    def test_listdir_gives_bare_names(self, file_place: Place) -> None:
        file_place.put("a.txt", b"")
        with remoteio.remote_io():
            assert os.listdir(file_place.base) == ["a.txt"]

    def test_copy_into_a_directory_returns_its_url(self, file_place: Place) -> None:
        source = file_place.put("a.txt", b"x")
        with remoteio.remote_io():
            os.makedirs(file_place.url("d"))
            assert shutil.copy(source, file_place.url("d")) == file_place.url("d/a.txt")

    def test_copy_to_a_path_returns_the_path(self, file_place: Place, tmp_path: Path) -> None:
        source = file_place.put("a.txt", b"x")
        with remoteio.remote_io():
            assert shutil.copy(source, tmp_path / "b") == tmp_path / "b"

    def test_copy_to_a_url_returns_the_very_object(self, file_place: Place) -> None:
        source = file_place.put("a.txt", b"x")
        target = file_place.url("b")
        with remoteio.remote_io():
            assert shutil.copy(source, target) is target

    @pytest.mark.parametrize(
        "call", [os.listdir, os.path.getsize, os.remove, shutil.rmtree], ids=lambda call: str(call.__name__)
    )
    def test_error_names_the_url(self, call: Callable[..., Any], file_place: Place) -> None:
        url = file_place.url("none")
        with remoteio.remote_io(), pytest.raises(FileNotFoundError) as caught:
            getattr(sys.modules[call.__module__ if call.__module__ != "posix" else "os"], call.__name__)(url)
        assert getattr(caught.value, "filename", None) == url

    def test_error_of_copy_names_the_plain_path_plainly(self, file_place: Place, tmp_path: Path) -> None:
        missing = str(tmp_path / "none")
        with remoteio.remote_io(), pytest.raises(FileNotFoundError) as caught:
            shutil.copy(missing, file_place.base)
        assert caught.value.filename == missing

    def test_makedirs_names_the_url_in_the_way(self, file_place: Place) -> None:
        url = file_place.put("a", b"")
        with remoteio.remote_io(), pytest.raises(NotADirectoryError) as caught:
            os.makedirs(f"{url}/b/c")
        assert caught.value.filename == f"{url}/b"

    def test_callback_of_rmtree_hears_of_the_url(self, file_place: Place) -> None:
        url = file_place.url("none")
        heard: list[Any] = []
        with remoteio.remote_io(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            shutil.rmtree(
                url, onerror=lambda function, path, info: heard.append((path, getattr(info[1], "filename", None)))
            )
        assert heard[0] == (url, url)

    @pytest.mark.skipif(sys.version_info < (3, 12), reason="onexc is new in 3.12")
    def test_newer_callback_of_rmtree_hears_of_the_url(self, file_place: Place) -> None:
        url = file_place.url("none")
        heard: list[Any] = []
        with remoteio.remote_io():
            shutil.rmtree(
                url, onexc=lambda function, path, error: heard.append((path, getattr(error, "filename", None)))
            )  # type: ignore[call-arg,unused-ignore]
        assert heard[0] == (url, url)


def test_replacement_after_restore_is_unknown_to_the_original_places() -> None:
    with remoteio.remote_io():
        pass
    assert all(_dispatch.original_of(value) is None for _, value in _dispatch.places(_entries.ROWS))

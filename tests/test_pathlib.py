"""``pathlib.Path`` on a URL, which it collapses to ``s3:/bucket/key``: every method as on a local disk."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

import remoteio
from tests.conftest import Place
from tests.oracle import Oracle, told

NAMES = "a.txt empty d d/e d/x.txt nope nope/x a.txt/x br[1]/q.txt .hid ünï".split()


class PathOracle(Oracle):
    """Programs get the base as a ``Path``; what they say must be the same but for the base."""

    def says(self, program: Callable[[Path], Any]) -> None:
        def on_text(base: str) -> Any:
            root = Path(base)
            try:
                return _spelled(root, program(root))
            except OSError as error:
                name = error.filename and os.fspath(error.filename)
                return type(error).__name__, error.errno, name and _tail(name)

        self.agrees(on_text, also="paths")


def _tail(name: str) -> str:
    """A path below the base: the base's own spelling may be the full or the collapsed one."""
    parts = PurePosixPath(name).parts
    starts = [number for number, part in enumerate(parts) if part.startswith("t-") or part == "oracle"]
    return "/".join(parts[starts[-1] + 1 :]) if starts else name


def _spelled(root: Path, value: Any) -> Any:
    if isinstance(value, Path):
        return "<base>" + str(value)[len(str(root)) :] if str(value).startswith(str(root)) else str(value)
    if isinstance(value, dict):
        return {_spelled(root, name): _spelled(root, item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_spelled(root, item) for item in value)
    return value


@pytest.fixture
def oracle(store: Place, tmp_path: Path) -> PathOracle:
    local = tmp_path / "oracle"
    local.mkdir()
    return PathOracle(store, local)


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except OSError as error:
        return type(error).__name__, error.errno


def test_questions(oracle: PathOracle) -> None:
    def program(root: Path) -> Any:
        return {
            name: (
                path.exists(), path.is_file(), path.is_dir(), path.is_symlink(), path.is_mount(), path.is_fifo(),
                path.is_socket(), path.is_block_device(),
                _outcome(lambda path=path: path.is_file() and path.stat().st_size),  # type: ignore[misc]
                _outcome(lambda path=path: path.lstat().st_mode & 0o170000),  # type: ignore[misc]
                _outcome(lambda path=path: path.samefile(root / "a.txt")),  # type: ignore[misc]
                _outcome(lambda path=path: path.resolve(strict=False)),  # type: ignore[misc]
                path.absolute(), _outcome(lambda path=path: path.chmod(0o755)), path.is_absolute(),  # type: ignore[misc]
            )
            for name in NAMES
            for path in [root / name]
        }  # fmt: skip

    oracle.says(program)


@pytest.mark.parametrize("name", ["", *NAMES])
def test_iterdir(oracle: PathOracle, name: str) -> None:
    oracle.says(lambda root: sorted((root / name).iterdir()))


PATTERNS = """
* *.txt ?.txt d/* */x.txt **/*.txt ** **/ d/**/*.txt .* br*/* [ab]* nope/* */ d/*/ **/e a.txt d/x.txt nope
""".split()


@pytest.mark.parametrize("pattern", PATTERNS)
def test_glob(oracle: PathOracle, pattern: str) -> None:
    oracle.says(lambda root: sorted(root.glob(pattern)))


@pytest.mark.parametrize("pattern", ["*", "*.txt", "x.txt", "e", "d/*", "*/", "nope"])
def test_rglob(oracle: PathOracle, pattern: str) -> None:
    oracle.says(lambda root: sorted(root.rglob(pattern)))


@pytest.mark.parametrize("pattern", ["", "/x"])
def test_wrong_patterns_are_refused_as_ever(memory_place: Place, pattern: str) -> None:
    with memory_place.scope(also="paths"), pytest.raises((ValueError, NotImplementedError)):
        list(Path(memory_place.base).glob(pattern))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Path.walk came with Python 3.12")
@pytest.mark.parametrize("top_down", [True, False])
def test_walk(oracle: PathOracle, top_down: bool) -> None:
    def program(root: Path) -> Any:
        found = root.walk(top_down)  # type: ignore[attr-defined,unused-ignore]
        return sorted((folder, sorted(dirs), sorted(files)) for folder, dirs, files in found)

    oracle.says(program)


def test_reading_and_writing(oracle: PathOracle) -> None:
    def program(root: Path) -> Any:
        path = root / "new.txt"
        counts = path.write_text("grüße\n", encoding="utf-8"), (root / "new.bin").write_bytes(b"\x00\xff")
        with path.open("a", encoding="utf-8") as file:
            file.write("more\n")
        return counts, path.read_text(encoding="utf-8"), (root / "new.bin").read_bytes(), path.stat().st_size

    oracle.says(program)


@pytest.mark.parametrize("name", ["nope", "d", "a.txt/x"])
def test_reading_what_is_no_file(oracle: PathOracle, name: str) -> None:
    oracle.says(lambda root: (root / name).read_bytes())


@pytest.mark.parametrize("options", [{}, {"parents": True}, {"exist_ok": True}, {"parents": True, "exist_ok": True}])
@pytest.mark.parametrize("name", ["new", "new/deep/er", "d", "d/new", "a.txt", "a.txt/x"])
def test_mkdir(oracle: PathOracle, name: str, options: dict[str, bool]) -> None:
    def program(root: Path) -> bool:
        (root / name).mkdir(**options)
        return (root / name).is_dir()

    oracle.says(program)


@pytest.mark.parametrize("exist_ok", [True, False])
@pytest.mark.parametrize("name", ["new", "a.txt", "d", "a.txt/x", "d/new"])
def test_touch(oracle: PathOracle, name: str, exist_ok: bool) -> None:
    def program(root: Path) -> bool:
        (root / name).touch(exist_ok=exist_ok)
        return (root / name).exists()

    oracle.says(program)


@pytest.mark.parametrize("missing_ok", [True, False])
@pytest.mark.parametrize("name", ["a.txt", "nope", "d", "a.txt/x"])
def test_unlink(oracle: PathOracle, name: str, missing_ok: bool) -> None:
    oracle.says(lambda root: (root / name).unlink(missing_ok))


@pytest.mark.parametrize("name", ["d", "nope", "a.txt"])
def test_rmdir(oracle: PathOracle, name: str) -> None:
    oracle.says(lambda root: (root / name).rmdir())


def test_clearing_a_directory(oracle: PathOracle) -> None:
    def program(root: Path) -> Any:
        for path in (root / "dd").iterdir():
            path.unlink()
        (root / "dd").rmdir()
        return (root / "dd").exists()

    oracle.says(program)


@pytest.mark.parametrize("method", ["rename", "replace"])
@pytest.mark.parametrize("pair", ["a.txt b.txt", "a.txt ab.txt", "d new", "nope x", "a.txt d"])
def test_rename_and_replace(oracle: PathOracle, method: str, pair: str) -> None:
    source, target = pair.split()

    def program(root: Path) -> Any:
        return getattr(root / source, method)(root / target), (root / target).exists(), (root / source).exists()

    oracle.says(program)


def test_results_are_paths_that_go_on_working(memory_place: Place) -> None:
    memory_place.put("d/a", b"x")
    with memory_place.scope(also="paths"):
        (found,) = Path(memory_place.base).rglob("a")
        assert found.resolve().read_bytes() == b"x"
        assert found.absolute().parent.joinpath("a").is_file()


def test_it_goes_on_working_after_a_change_of_directory(
    memory_place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory_place.put("a", b"x")
    with memory_place.scope(also="paths"):
        path = Path(memory_place.url("a")).absolute()
        monkeypatch.chdir(tmp_path)
        assert path.is_file()


def test_nothing_local_is_made(memory_place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with memory_place.scope(also="paths"):
        root = Path(memory_place.base)
        (root / "d").mkdir(parents=True)
        (root / "d" / "a").write_text("x")
        (root / "d").rename(root / "e")
        (root / "b").touch()
    assert list(tmp_path.iterdir()) == []
    assert memory_place.files() == {"e/a": b"x", "b": b""}


def test_local_paths_are_left_alone(tmp_path: Path) -> None:
    with remoteio.remote_io(also="paths"):
        (tmp_path / "d").mkdir()
        (tmp_path / "d" / "a").touch()
        (tmp_path / "d" / "a").rename(tmp_path / "b")
        assert sorted(tmp_path.rglob("*")) == [tmp_path / "b", tmp_path / "d"]
        assert told(lambda base: (tmp_path / "nope").stat(), str(tmp_path))[1] == "FileNotFoundError"


class TestShadow:
    """A scope that does not answer for everything tells of what was made locally by mistake."""

    @pytest.fixture(autouse=True)
    def _here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

    def test_a_new_folder_named_like_a_scheme_is_told_of(self) -> None:
        with pytest.warns(remoteio.LocalShadowWarning, match="s3:") as caught, remoteio.remote_io():
            Path("s3://bucket/run").mkdir(parents=True)
        assert caught[0].filename == __file__

    def test_it_is_told_at_the_end_of_the_outermost_scope_alone(self, recwarn: pytest.WarningsRecorder) -> None:
        with remoteio.remote_io():
            with remoteio.remote_io():
                os.mkdir("gs:")
            assert not recwarn.list
        assert [warning.category for warning in recwarn] == [remoteio.LocalShadowWarning]

    def test_what_was_there_before_is_nobodys_fault(self, recwarn: pytest.WarningsRecorder) -> None:
        os.mkdir("s3:")
        with remoteio.remote_io():
            pass
        assert not recwarn.list

    @pytest.mark.parametrize("name", ["s3", "nosuch:", "x.txt"])
    def test_other_names_are_nothing(self, name: str, recwarn: pytest.WarningsRecorder) -> None:
        with remoteio.remote_io():
            os.mkdir(name)
        assert not recwarn.list

    def test_another_directory_is_not_compared(self, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "s3:").mkdir()
        with remoteio.remote_io():
            os.chdir("other")
        assert not recwarn.list

    def test_a_decorated_function_is_a_scope_too(self) -> None:
        @remoteio.remote_io()
        def work() -> None:
            os.mkdir("s3:")

        with pytest.warns(remoteio.LocalShadowWarning):
            work()

"""The contract of the path functions and of ``glob``: on every store as on a local disk.

Nothing is expected here but that both say the same; what a store does otherwise on
purpose is tested with the module that does it.
"""

from __future__ import annotations

import glob
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Place
from tests.oracle import TREE, Oracle, plant, plant_locally, told

NAMES = [
    *TREE,
    *sorted({name.rpartition("/")[0] for name in TREE} - {""}),
    *"a a.tx a.txt/ a.txt/x a.txt/x/y a.txt/. d/ d// d/. d/.. d/../d d/./e/../x.txt nope nope/ nope/x nope/x/y".split(),
    *"d/e/f/nope d* *.txt ?.txt [a].txt br br[1 1/2/3/ 1/2/3/4/5 .h . ..dots/ D A.TXT sp".split(),
    "", "/", "sp%20ace", "p c", "ünï/", "a.txt ", " a.txt", "\udcff", "\ud800", "a\0b",
]  # fmt: skip


@pytest.fixture
def oracle(remote: Place, tmp_path: Path) -> Oracle:
    local = tmp_path / "oracle"
    local.mkdir()
    return Oracle(remote, local)


class Wrapped:
    """A path-like object that is no ``pathlib`` path."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return self.path


# ---- questions


def _ask(function: Callable[[Any], Any], spell: Callable[[str], Any] = str) -> Callable[[str], Any]:
    def program(base: str) -> dict[str, Any]:
        answers = {}
        for name in NAMES:
            answer = told(lambda _, name=name: function(spell(f"{base}/{name}")), base)  # type: ignore[misc]
            if isinstance(answer[1], list):
                answer = (answer[0], sorted(answer[1]))
            answers[name] = answer
        return answers

    return program


def _size(path: Any) -> int | str:
    # A directory's own size is the disk's affair.
    return "a directory" if os.path.isdir(path) else os.path.getsize(path)


QUESTIONS: dict[str, Callable[[Any], Any]] = {
    # Each is looked up in the scope.
    "exists": lambda path: os.path.exists(path),
    "isdir": lambda path: os.path.isdir(path),
    "getsize": _size,
    "listdir": lambda path: os.listdir(path),
}


@pytest.mark.parametrize("name", list(QUESTIONS))
@pytest.mark.parametrize("spell", [str, os.fsencode, Wrapped])
def test_questions_are_answered_as_on_a_disk(oracle: Oracle, name: str, spell: Callable[[str], Any]) -> None:
    def spelled(path: str) -> Any:
        return path if spell is os.fsencode and "\ud800" in path else spell(path)

    oracle.agrees(_ask(QUESTIONS[name], spelled))


def test_answers_have_the_types_of_the_originals(oracle: Oracle) -> None:
    oracle.agrees(
        lambda base: [
            type(os.path.exists(f"{base}/d")),
            type(os.path.isdir(f"{base}/d")),
            type(os.path.getsize(f"{base}/a.txt")),
            type(os.listdir(base)),
            type(glob.glob(f"{base}/*")),
        ]
    )


# ---- changes


def _each(names: list[str], act: Callable[[str], Any]) -> Callable[[str], Any]:
    """A program that acts on one name after the other, and tells what each said."""
    return lambda base: {name: told(lambda _, name=name: act(f"{base}/{name}"), base) for name in names}  # type: ignore[misc]


def _listed(base: str) -> list[str]:
    return sorted(glob.glob(f"{base}/**", recursive=True))


MAKEDIRS = "d d/ d/e new new/ new/a/b new2/. a.txt a.txt/ a.txt/. a.txt/s/ a.txt/s/. a.txt/sub/sub2/ d/x.txt/s".split()


@pytest.mark.parametrize("exist_ok", [False, True])
def test_makedirs(oracle: Oracle, exist_ok: bool) -> None:
    names = [*MAKEDIRS, "br[1]", "new[1]/*", "", "n\0l"]
    act = _each(names, lambda path: os.makedirs(path, exist_ok=exist_ok))
    oracle.agrees(lambda base: (act(base), _listed(base)))


def test_makedirs_takes_its_arguments_by_place_and_by_name(oracle: Oracle) -> None:
    def program(base: str) -> Any:
        os.makedirs(f"{base}/d", 0o755, True)
        os.makedirs(name=f"{base}/new", mode=0o755)

    oracle.agrees(program)


def test_a_made_directory_is_known_to_every_question(oracle: Oracle) -> None:
    def program(base: str) -> Any:
        os.makedirs(f"{base}/d/new/er")
        new = f"{base}/d/new"
        return (
            os.path.exists(new),
            os.path.isdir(f"{new}/er"),
            os.path.isdir(f"{new}/e"),
            os.listdir(new),
            os.listdir(f"{new}/er"),
            sorted(os.listdir(f"{base}/d")),
            sorted(glob.glob(f"{base}/d/*/")),
            sorted(glob.glob(f"{base}/**/er", recursive=True)),
        )

    oracle.agrees(program)


REMOVED = (
    "a.txt a.txt a.txt/ ab.txt/ ab.txt/x d d/ nope nope/ nope/x d/.h.txt br[1]/q.txt *.txt ?.txt q?/st*r.txt".split()
)


def test_remove(oracle: Oracle) -> None:
    # A second file keeps each directory alive: on a store it would go with its last one.
    plant(oracle.place, {"br[1]/keep": b"", "q?/keep": b"", "sp ace/keep": b"", "p%20c/keep": b""})
    plant_locally(oracle.local, {"br[1]/keep": b"", "q?/keep": b"", "sp ace/keep": b"", "p%20c/keep": b""})
    oracle.agrees(_each([*REMOVED, "p%20c/100%.txt", "sp ace/s s.txt", "n\0l", "\udcff"], lambda path: os.remove(path)))


def test_remove_takes_bytes_and_path_like_objects(oracle: Oracle) -> None:
    def program(base: str) -> Any:
        os.remove(os.fsencode(f"{base}/a.txt"))
        os.remove(Wrapped(f"{base}/ab.txt"))

    oracle.agrees(program)


RMTREE = "d/e d d/ br[1] d* q? nope nope/ nope/x a.txt a.txt/ a.txt/x 1/ ..dots ünï".split()


@pytest.mark.parametrize("ignore_errors", [False, True])
def test_rmtree(oracle: Oracle, ignore_errors: bool) -> None:
    act = _each([*RMTREE, "sp ace", "n\0l"], lambda path: shutil.rmtree(path, ignore_errors))
    oracle.agrees(lambda base: (act(base), _listed(base)))


@pytest.mark.parametrize("spell", [str, os.fsencode, Wrapped])
@pytest.mark.parametrize("style", ["onerror", "onexc"])
def test_rmtree_tells_its_callbacks_the_same(oracle: Oracle, spell: Callable[[str], Any], style: str) -> None:
    if style == "onexc" and sys.version_info < (3, 12):
        pytest.skip("onexc came with Python 3.12")

    def act(path: str) -> Any:
        seen: list[Any] = []

        def note(function: Callable[..., Any], path: Any, failure: Any) -> None:
            error = failure[1] if style == "onerror" else failure
            assert sys.exc_info()[1] is error
            path = ("Wrapped", path.path) if isinstance(path, Wrapped) else path
            seen.append((function.__name__, path, type(error).__name__))

        shutil.rmtree(spell(path), **{style: note})  # type: ignore[arg-type]
        return seen

    oracle.agrees(_each(["nope", "nope/x", "a.txt", "a.txt/", "a.txt/x", "d", "n\0l"], act))


def test_an_exception_of_the_callback_ends_rmtree(oracle: Oracle) -> None:
    def program(base: str) -> Any:
        def fail(function: Any, path: Any, failure: Any) -> None:
            raise LookupError(path)

        shutil.rmtree(f"{base}/nope", onerror=fail)

    oracle.agrees(program)


# ---- copy

SOURCES = "a.txt empty d nope a.txt/ a.txt/x d/ br[1]/q.txt p%20c/100%.txt".split()
TARGETS = "new a.txt ab.txt d d/ nope/ a.txt/ a.txt/. a.txt/x d/e d/. nope/. dir[new] br[1] *".split()


@pytest.mark.parametrize("source", SOURCES)
def test_copy_within_a_store(oracle: Oracle, source: str) -> None:
    oracle.agrees(lambda base: _each(TARGETS, lambda path: shutil.copy(f"{base}/{source}", path))(base))


def test_copy_from_a_disk(oracle: Oracle, tmp_path: Path) -> None:
    (tmp_path / "l[1].bin").write_bytes(b"local")
    oracle.agrees(_each(TARGETS, lambda path: shutil.copy(f"{tmp_path}/l[1].bin", path)))


@pytest.mark.parametrize(
    "target", ["new", "old", "dir", "dir/", "nope/", "old/", "old/.", "nope/.", "old/x", "nope/x", "dir/sub"]
)
def test_copy_to_a_disk(oracle: Oracle, tmp_path: Path, target: str) -> None:
    disk = tmp_path / "disk"

    def act(path: str) -> Any:
        shutil.rmtree(disk, ignore_errors=True)
        (disk / "dir/sub/a.txt").mkdir(parents=True)
        (disk / "old").write_bytes(b"old")
        outcome = told(lambda _: shutil.copy(path, f"{disk}/{target}"), path)
        return outcome, sorted((str(path), path.is_file() and path.read_bytes()) for path in disk.rglob("*"))

    oracle.agrees(_each(["a.txt", "nope", "d", "a.txt/x", "q?/st*r.txt"], act))


@pytest.mark.parametrize("target", ["new", "d"])
def test_copy_returns_the_kind_of_path_that_it_was_given(oracle: Oracle, target: str) -> None:
    def program(base: str) -> Any:
        paths = f"{base}/a.txt", f"{base}/{target}"
        spells: list[Callable[[str], Any]] = [str, os.fsencode, Wrapped]
        results = []
        for one in spells:
            for other in spells:
                outcome = told(lambda _, one=one, other=other: shutil.copy(one(paths[0]), other(paths[1])), base)  # type: ignore[misc]
                results.append(outcome if not isinstance(outcome[-1], Wrapped) else ("Wrapped", target))
        return results

    oracle.agrees(program)


# ---- glob

PATTERNS = """
* *.txt ?.txt [ab]* [!a]* ** **/ */ d/* d/*/ */* */x.txt */*/* d/**/*.txt **/x.txt **/*.txt .* .hid .h*/* d/.*
a.txt nope nope* d d/ d/e/f d* *.TXT br[[]1]/* br*/*.txt 1/*/3/*/*.txt 1/** d/** d/**/ a.txt/* [ *[
d/e/**/w.txt **/e/** x.txt */e */nope empty* d/e/../x.txt */. */.. */../a.txt d/*/../x.txt nope/** nope/**/
a.txt/** a.txt/ **/** **/*/* */** d/**/** **/.* .** **.txt a**.txt d/./* ./* d//* *//x.txt d/*//f **/nope
*/*/f/ [d]/x.txt [[]* *[]]/* q[?]/st[*]r.txt q?/* p%*/* h#*/* ün*/* *ï/*.txt ..d*/* ..dots/..* [.]hid
[a-c]*.txt [!.]* [a-]* a[.]txt {a,b}.txt ~ $HOME */[xy].* **/[!x].txt *d */*d d*/e*/f*/w* 1/2/*/4/5.txt
*/2/3/4/*.txt **/3/**/5.txt d*/**/* */**/*.txt */**/e/* d/**/*/ **/**/* *d/**/
""".split()

OPTIONS: list[dict[str, Any]] = [{}, {"recursive": True}]
if sys.version_info >= (3, 11):
    OPTIONS += [{"include_hidden": True}, {"recursive": True, "include_hidden": True}]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("spell", [str, os.fsencode])
def test_glob(oracle: Oracle, options: dict[str, Any], spell: Callable[[str], Any]) -> None:
    patterns = [*PATTERNS, "sp */*", "sp ace/s s*", "", "*\0", "a\0b", "\udcff*"]
    oracle.agrees(lambda base: {one: sorted(glob.glob(spell(f"{base}/{one}"), **options)) for one in patterns})


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("spell", [str, os.fsencode])
def test_glob_below_a_root_directory(oracle: Oracle, options: dict[str, Any], spell: Callable[[str], Any]) -> None:
    def program(base: str) -> Any:
        roots = ["", "/", "/d", "/d/", "/br[1]", "/nope", "/a.txt", "/d/../d"]
        pairs = [(one, root) for one in [*PATTERNS[:20], ""] for root in roots]
        pairs += [(one, "") for one in PATTERNS[20:]] + [(one, "/d") for one in ("../*", "../d/**", "e/../**")]
        return {
            (one, root): sorted(glob.glob(spell(one), root_dir=spell(base + root), **options)) for one, root in pairs
        }

    oracle.agrees(program)


def test_glob_finds_what_escape_made(oracle: Oracle) -> None:
    oracle.agrees(lambda base: [glob.glob(glob.escape(f"{base}/{name}")) for name in TREE])


def test_glob_refuses_what_it_refuses_locally(oracle: Oracle) -> None:
    def program(base: str) -> Any:
        return [
            told(lambda base: glob.glob(Wrapped(f"{base}/*")), base),
            told(lambda base: glob.glob("*", root_dir=os.fsencode(base)), base),
            told(lambda base: glob.glob(os.fsencode(f"{base}/*"), root_dir=base), base),
            told(lambda base: glob.glob(Wrapped("*"), root_dir=base), base),
            told(lambda base: glob.glob(f"{base}/*\0b/*"), base),
            told(lambda base: glob.glob(f"{base}/a\0b/*"), base),
        ]

    oracle.agrees(program)

"""Random programs over the ten functions: a store says what a local directory says.

The seeds are printed; REMOTEIO_TEST_SEED repeats one.
"""

from __future__ import annotations

import contextlib
import glob
import os
import random
import shutil
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Place
from tests.oracle import difference, told

hypothesis = pytest.importorskip("hypothesis")

from hypothesis import HealthCheck, Phase, seed, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test  # noqa: E402

SEGMENTS = [
    "a",
    "b",
    "ab",
    "a b",
    " ",
    "[a]",
    "a?",
    "*",
    "a#b",
    "100%",
    "%61",
    "x+y",
    ".h",
    "a.",
    "..x",
    "ü",
    "日本",
    "-",
]
PATTERNS = ["*", "**", "?", "a*", "*b", "[a]*", "[[]a]", ".*", "*?", "[!a]*", "*.*"]

segments = st.sampled_from(SEGMENTS)
# Few names, so that they meet each other.
paths = st.lists(segments, min_size=1, max_size=3).map("/".join)
slashed = st.tuples(paths, st.sampled_from(["", "", "", "/", "//", "/."])).map("".join)
patterns = st.lists(st.one_of(segments.map(glob.escape), st.sampled_from(PATTERNS)), min_size=1, max_size=3).map(
    "/".join
)
contents = st.binary(max_size=20)


class Programs(RuleBasedStateMachine):
    """One program: every step is done on a store and on a local directory, and must say the same.

    What a store does otherwise on purpose is done to the local directory by hand: parents
    are made before a write, and a directory that ``makedirs`` did not make goes with its
    last file.
    """

    place: Place

    def __init__(self) -> None:
        super().__init__()
        self.stack = contextlib.ExitStack()
        self.local = self.stack.enter_context(tempfile.TemporaryDirectory(prefix="oracle-"))
        self.base = f"{self.place.base}/{uuid.uuid4().hex[:12]}"
        self.stack.enter_context(self.place.scope())
        os.makedirs(self.base)
        self.made: set[str] = {self.local}

    def teardown(self) -> None:
        if self.place.kind == "memory":  # whose every listing passes over all that is there
            shutil.rmtree(self.base, ignore_errors=True)
        self.stack.close()

    # ---- the comparison

    def same(self, program: Callable[[str], Any], makes: str | None = None) -> None:
        """Run a step on both sides; ``makes`` is the directory that it makes if it succeeds."""
        expected = told(program, self.local)
        got = told(program, self.base)
        assert got == expected, difference(got, expected)
        if makes is not None and expected[0] == "returned":
            self.made.update(self.parts(makes))
        self.prune()

    def prune(self) -> None:
        """Let empty directories go which nobody made, and forget the made ones that are gone."""
        for folder, _, _ in os.walk(self.local, topdown=False):
            if folder not in self.made and not os.listdir(folder):
                os.rmdir(folder)
        self.made = {folder for folder in self.made if os.path.isdir(folder)}

    def prepare(self, path: str) -> bool:
        """Make the parents of a local file; False where a file is in the way, which a store does not mind."""
        *above, _ = self.parts(path)
        if any(os.path.isfile(folder) for folder in above):
            return False
        os.makedirs(above[-1] if above else self.local, exist_ok=True)
        return True

    def parts(self, path: str) -> list[str]:
        """The local path, and those above it below the base, from the top."""
        names = [name for name in path.split("/") if name not in ("", ".")]
        return ["/".join([self.local, *names[:end]]) for end in range(1, len(names) + 1)]

    # ---- the steps

    @rule(path=paths, data=contents, mode=st.sampled_from(["wb", "ab", "xb", "r+b", "w+b"]))
    def write(self, path: str, data: bytes, mode: str) -> None:
        if not self.prepare(path):
            return

        def program(base: str) -> Any:
            with open(f"{base}/{path}", mode) as file:
                return file.write(data)

        self.same(program)

    @rule(path=slashed)
    def read(self, path: str) -> None:
        def program(base: str) -> Any:
            with open(f"{base}/{path}", "rb") as file:
                return file.read()

        self.same(program)

    @rule(path=slashed)
    def ask(self, path: str) -> None:
        self.same(lambda base: (os.path.exists(f"{base}/{path}"), os.path.isdir(f"{base}/{path}")))

    @rule(path=slashed)
    def size(self, path: str) -> None:
        self.same(lambda base: os.path.isdir(f"{base}/{path}") or os.path.getsize(f"{base}/{path}"))

    @rule(path=st.one_of(slashed, st.just("")))
    def names(self, path: str) -> None:
        self.same(lambda base: sorted(os.listdir(f"{base}/{path}")))

    @rule(path=slashed, exist_ok=st.booleans())
    def make(self, path: str, exist_ok: bool) -> None:
        # What was there already is not made, and goes with its last file.
        makes = None if os.path.isdir(f"{self.local}/{path}") else path
        self.same(lambda base: os.makedirs(f"{base}/{path}", exist_ok=exist_ok), makes)

    @rule(path=slashed)
    def remove(self, path: str) -> None:
        self.same(lambda base: os.remove(f"{base}/{path}"))

    @rule(path=slashed.filter(lambda path: not path.endswith("/.")), ignore_errors=st.booleans())
    def rmtree(self, path: str, ignore_errors: bool) -> None:
        self.same(lambda base: shutil.rmtree(f"{base}/{path}", ignore_errors))

    @rule(source=slashed, to=slashed)
    def copy(self, source: str, to: str) -> None:
        # Without a source the target is not looked at.
        if not os.path.isfile(f"{self.local}/{source}") or self.prepare(to):
            self.same(lambda base: shutil.copy(f"{base}/{source}", f"{base}/{to}"))

    @rule(to=paths, data=contents)
    def copy_from_a_disk(self, to: str, data: bytes) -> None:
        if not self.prepare(to):
            return
        with tempfile.NamedTemporaryFile(prefix="[a]") as file:
            file.write(data)
            file.flush()
            self.same(lambda base: shutil.copy(file.name, f"{base}/{to}"))

    @rule(source=slashed)
    def copy_to_a_disk(self, source: str) -> None:
        def program(base: str) -> Any:
            with tempfile.TemporaryDirectory() as folder:
                shutil.copy(f"{base}/{source}", folder)
                return [(path.name, path.read_bytes()) for path in Path(folder).iterdir()]

        self.same(program)

    @rule(pattern=patterns, recursive=st.booleans())
    def find(self, pattern: str, recursive: bool) -> None:
        self.same(lambda base: sorted(glob.glob(f"{base}/{pattern}", recursive=recursive)))

    @rule(path=st.one_of(paths, st.just("")), pattern=patterns, recursive=st.booleans())
    def find_below(self, path: str, pattern: str, recursive: bool) -> None:
        self.same(lambda base: sorted(glob.glob(pattern, root_dir=f"{base}/{path}", recursive=recursive)))


def run(place: Place, programs: int, phases: tuple[Phase, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Run that many programs of thirty steps."""
    number = int(os.environ.get("REMOTEIO_TEST_SEED") or random.SystemRandom().randrange(2**32))
    with capsys.disabled():
        print(f"\nREMOTEIO_TEST_SEED={number} for {programs} programs on {place.kind}")
    machine = seed(number)(type("Programs", (Programs,), {"place": place}))
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=programs,
            stateful_step_count=30,
            deadline=None,
            database=None,
            phases=phases,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_300_random_programs_on_memory(memory_place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    run(memory_place, 300, (Phase.generate, Phase.shrink), capsys)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["s3", "gcs"])
def test_30_random_programs_on_a_server(
    kind: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    run(request.getfixturevalue(f"{kind}_place"), 30, (Phase.generate,), capsys)

"""Each of the ten, on local files and on every store: what a program relies on first of all."""

from __future__ import annotations

import glob
import os
import shutil
from pathlib import Path

import pytest

from tests.conftest import Place


def test_open_reads_what_open_wrote(place: Place) -> None:
    with place.scope():
        with open(place.url("a.txt"), "w") as file:
            file.write("x\n")
        with open(place.url("a.txt")) as file:
            assert file.read() == "x\n"
    assert place.files() == {"a.txt": b"x\n"}


def test_open_of_a_missing_file_says_so(place: Place) -> None:
    with place.scope(), pytest.raises(FileNotFoundError) as caught, open(place.url("missing")):
        pass
    assert caught.value.filename == place.url("missing")
    assert caught.value.errno == 2


def test_makedirs_makes_a_directory(place: Place) -> None:
    with place.scope():
        os.makedirs(place.url("a/b"))
        assert os.path.isdir(place.url("a/b"))
        assert os.listdir(place.url("a")) == ["b"]
        with pytest.raises(FileExistsError):
            os.makedirs(place.url("a/b"))


def test_isdir_is_true_of_directories_only(place: Place) -> None:
    place.put("d/f", "x")
    with place.scope():
        assert os.path.isdir(place.url("d")) is True
        assert os.path.isdir(place.url("d/f")) is False
        assert os.path.isdir(place.url("nothing")) is False


def test_listdir_gives_bare_names(place: Place) -> None:
    place.put("d/a", "x")
    place.put("d/sub/b", "x")
    with place.scope():
        assert sorted(os.listdir(place.url("d"))) == ["a", "sub"]


def test_remove_removes_the_named_file_alone(place: Place) -> None:
    place.put("a?b", "x")
    place.put("axb", "y")
    with place.scope():
        os.remove(place.url("a?b"))
        with pytest.raises(FileNotFoundError):
            os.remove(place.url("a?b"))
    assert place.files() == {"axb": b"y"}


def test_exists_is_true_of_files_and_directories(place: Place) -> None:
    place.put("d/f", "x")
    with place.scope():
        assert os.path.exists(place.url("d")) is True
        assert os.path.exists(place.url("d/f")) is True
        assert os.path.exists(place.url("d/g")) is False


def test_copy_goes_from_and_to_local_files_and_within_the_store(place: Place, tmp_path: Path) -> None:
    (tmp_path / "up").write_bytes(b"x")
    with place.scope():
        assert shutil.copy(str(tmp_path / "up"), place.url("a")) == place.url("a")
        shutil.copy(place.url("a"), place.url("b"))
        shutil.copy(place.url("b"), tmp_path / "down")
    assert place.files() == {"a": b"x", "b": b"x"}
    assert (tmp_path / "down").read_bytes() == b"x"


def test_rmtree_removes_the_named_tree_alone(place: Place) -> None:
    place.put("ab/c/d", "x")
    place.put("ab/e", "x")
    place.put("abc/f", "y")
    with place.scope():
        shutil.rmtree(place.url("ab"))
    assert place.files() == {"abc/f": b"y"}


def test_glob_gives_whole_paths_in_the_callers_spelling(place: Place) -> None:
    place.put("d/a.txt", "x")
    place.put("d/sub/b.txt", "x")
    place.put("d/.hidden.txt", "x")
    with place.scope():
        assert glob.glob(place.url("d/*.txt")) == [place.url("d/a.txt")]
        assert sorted(glob.glob(place.url("**/*.txt"), recursive=True)) == [
            place.url("d/a.txt"),
            place.url("d/sub/b.txt"),
        ]


def test_getsize_is_the_number_of_bytes(place: Place) -> None:
    place.put("f", b"12345")
    with place.scope():
        assert os.path.getsize(place.url("f")) == 5

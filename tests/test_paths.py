"""``also="paths"``: the rest of ``os``, ``os.path``, ``shutil`` and ``glob``, on every store as on a local disk."""

from __future__ import annotations

import errno
import glob
import logging
import os
import shutil
import stat
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import remoteio
from tests.conftest import Place
from tests.oracle import TREE, Oracle, told
from tests.proxy import Proxy
from tests.test_contract import NAMES, Wrapped


class PathsOracle(Oracle):
    """The oracle inside of ``also="paths"``, on the local disk too: there nothing may change."""

    def agrees(self, program: Callable[[str], Any], **scope: Any) -> None:
        super().agrees(program, also="paths", **scope)


@pytest.fixture
def oracle(store: Place, tmp_path: Path) -> PathsOracle:
    local = tmp_path / "oracle"
    local.mkdir()
    return PathsOracle(store, local)


# ---- questions


def _stat(path: Any) -> Any:
    found = os.stat(path)
    # Of a directory the size and the time are the disk's affair.
    return stat.S_IFMT(found.st_mode), 0 if stat.S_ISDIR(found.st_mode) else found.st_size


def _without_name(call: Callable[[], Any]) -> Any:
    """What a call says, but for the file name: a local ``utime`` leaves it out."""
    try:
        return call()
    except OSError as error:
        return type(error), error.errno


QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "stat": _stat,
    "lstat": lambda path: stat.S_IFMT(os.lstat(path).st_mode),
    "isfile": lambda path: os.path.isfile(path),
    "lexists": lambda path: os.path.lexists(path),
    "islink": lambda path: os.path.islink(path),
    "isabs": lambda path: os.path.isabs(path),
    "ismount": lambda path: os.path.ismount(path),
    "access": lambda path: os.access(path, os.F_OK),
    "getmtime": lambda path: os.path.getmtime(path) >= 0,
    "getatime": lambda path: os.path.getatime(path) >= 0,
    "getctime": lambda path: os.path.getctime(path) >= 0,
    "samefile": lambda path: os.path.samefile(path, path),
    "readlink": lambda path: os.readlink(path),
    "utime": lambda path: _without_name(lambda: os.utime(path)),
    "chmod": lambda path: os.chmod(path, 0o755),
    "scandir": lambda path: sorted((e.name, e.is_dir(), e.is_file(), e.is_symlink()) for e in os.scandir(path)),
    "disk_usage": lambda path: shutil.disk_usage(path).free > 0,
}


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("spell", [str, os.fsencode, Wrapped])
def test_questions_are_answered_as_on_a_disk(oracle: PathsOracle, name: str, spell: Callable[[str], Any]) -> None:
    names = [one for one in NAMES if "\ud800" not in one]
    if name == "ismount":  # the root of memory:// is one step above the base
        names = [one for one in names if not one.endswith("..")]

    def program(base: str) -> dict[str, Any]:
        return {one: told(lambda _, one=one: QUESTIONS[name](spell(f"{base}/{one}")), base) for one in names}  # type: ignore[misc]

    oracle.agrees(program)


@pytest.mark.parametrize("name", "a.txt d d/e nope a.txt/x".split())
def test_a_strict_realpath_is_there(oracle: PathsOracle, name: str) -> None:
    oracle.agrees(lambda base: os.path.realpath(f"{base}/{name}", strict=True))


def test_stat_is_a_regular_result(place: Place) -> None:
    before = time.time()
    place.put("f", b"12345")
    place.put("d/g", b"x")
    with place.scope(also="paths"):
        found = os.stat(place.url("f"))
        folder = os.stat(place.url("d"))
    assert isinstance(found, os.stat_result)
    assert stat.S_ISREG(found.st_mode)
    assert stat.S_ISDIR(folder.st_mode)
    assert found.st_size == 5
    assert before - 5 < found.st_mtime < time.time() + 5
    assert found.st_mtime_ns == pytest.approx(found.st_mtime * 1e9, rel=1e-9)
    assert int(found.st_mtime) == found[stat.ST_MTIME]


def test_two_spellings_are_one_file(memory_place: Place) -> None:
    memory_place.put("d/f", b"x")
    memory_place.put("g", b"x")
    collapsed = memory_place.base.replace("://", ":/")
    with memory_place.scope(also="paths"):
        assert os.path.samefile(memory_place.url("d/f"), f"{collapsed}/d/../d/f")
        assert not os.path.samefile(memory_place.url("d/f"), memory_place.url("g"))
        assert not os.path.samefile(memory_place.url("d/f"), __file__)


def test_a_bucket_is_a_mount_point(s3_place: Place) -> None:
    bucket = s3_place.base.rpartition("/")[0]
    with s3_place.scope(also="paths"):
        assert os.path.ismount(bucket)
        assert not os.path.ismount(s3_place.base)


@pytest.mark.parametrize("function", [os.path.abspath, os.path.normpath, os.path.realpath, os.path.expanduser])
@pytest.mark.parametrize(
    "url", ["memory://b/k/../x", "s3://b//k/", "s3:/b/k", "file:///tmp/x", b"gs://b/k", "S3://B/k"]
)
def test_functions_of_the_text_leave_a_url_as_it_is(function: Callable[[Any], Any], url: Any) -> None:
    name = function.__name__.removeprefix("_path_")
    with remoteio.remote_io(also="paths"):
        assert getattr(os.path, name)(url) == url


def test_local_paths_have_their_local_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def program() -> Any:
        Path("f").write_text("x")
        return (
            os.path.abspath("f"), os.path.normpath("a/../f"), os.path.realpath("f"), os.path.expanduser("~"),
            os.path.isabs("f"), os.stat("f").st_ino, [entry.path for entry in os.scandir()], list(os.walk(".")),
            os.path.ismount("/"), glob.glob("*"), list(glob.iglob("*")), Path("f").absolute(), os.listdir(),
        )  # fmt: skip

    outside = program()
    with remoteio.remote_io(also="paths"):
        assert program() == outside


def test_utime_and_chmod_are_told_of_once_at_debug(memory_place: Place, caplog: pytest.LogCaptureFixture) -> None:
    from remoteio import _stat as module

    module._told.clear()
    memory_place.put("f", b"x")
    with memory_place.scope(also="paths"), caplog.at_level(logging.DEBUG, "remoteio"):
        for _ in range(2):
            os.utime(memory_place.url("f"), (1, 1))
            os.chmod(memory_place.url("f"), 0o600)
    told_of = [record.message for record in caplog.records if record.name == "remoteio"]
    assert len(told_of) == 2


def test_utime_refuses_two_times(memory_place: Place) -> None:
    with memory_place.scope(also="paths"), pytest.raises(ValueError, match="times"):
        os.utime(memory_place.base, (1, 1), ns=(1, 1))


# ---- directories


MADE = "d d/ d/e new new/ new/deep a.txt a.txt/ a.txt/sub a.txt/s/t d/new nope/x br[1]/n".split()


@pytest.mark.parametrize("name", MADE)
def test_mkdir(oracle: PathsOracle, name: str) -> None:
    def program(base: str) -> bool:
        os.mkdir(f"{base}/{name}")
        return os.path.isdir(f"{base}/{name}")

    oracle.agrees(program)


@pytest.mark.parametrize("name", "d d/ d/e/f nope nope/ nope/x a.txt a.txt/ a.txt/x".split())
def test_rmdir(oracle: PathsOracle, name: str) -> None:
    oracle.agrees(lambda base: os.rmdir(f"{base}/{name}"))


def test_rmdir_of_an_empty_directory(oracle: PathsOracle) -> None:
    def program(base: str) -> Any:
        os.mkdir(f"{base}/new")
        os.rmdir(f"{base}/new")
        return os.path.exists(f"{base}/new"), told(lambda base: os.rmdir(f"{base}/new"), base)

    oracle.agrees(program)


def test_clearing_a_tree_from_below(oracle: PathsOracle) -> None:
    def program(base: str) -> Any:
        for folder, dirs, files in os.walk(f"{base}/d", topdown=False):
            for name in files:
                os.unlink(os.path.join(folder, name))
            for name in dirs:
                os.rmdir(os.path.join(folder, name))
        os.rmdir(f"{base}/d")
        return os.path.exists(f"{base}/d"), told(lambda base: os.rmdir(f"{base}/d"), base)

    oracle.agrees(program)


def test_a_directory_emptied_here_can_take_new_ones(oracle: PathsOracle) -> None:
    def program(base: str) -> list[str]:
        os.remove(f"{base}/dd/x.txt")
        os.mkdir(f"{base}/dd/new")
        return os.listdir(f"{base}/dd")

    oracle.agrees(program)


def test_markers_of_others_are_removed_with_their_directory(s3_place: Place, s3_server: Any) -> None:
    inner = s3_place.url("m/").partition("://")[2].partition("/")[2]
    s3_server.put(inner, b"")
    with s3_place.scope(also="paths"):
        assert os.path.isdir(s3_place.url("m"))
        os.rmdir(s3_place.url("m"))
        assert not os.path.exists(s3_place.url("m"))


def test_a_bucket_is_neither_made_nor_removed(s3_place: Place) -> None:
    bucket = s3_place.base.rpartition("/")[0]
    with s3_place.scope(also="paths"):
        with pytest.raises(FileNotFoundError):
            os.mkdir("s3://no-such-bucket-here")
        with pytest.raises(PermissionError):
            os.rmdir(bucket)


@pytest.mark.parametrize("name", ["a.txt", "a.txt/", "d", "nope", "a.txt/x"])
def test_unlink(oracle: PathsOracle, name: str) -> None:
    oracle.agrees(lambda base: os.unlink(f"{base}/{name}"))


# ---- scandir and walk


def test_entries_know_everything_from_the_listing(oracle: PathsOracle) -> None:
    def program(base: str) -> Any:
        with os.scandir(f"{base}/d") as entries:
            return sorted(
                (e.name, e.path, os.fspath(e), repr(e), e.is_dir(), e.is_file() and e.stat().st_size) for e in entries
            )

    oracle.agrees(program)


def test_entries_of_bytes_are_bytes(oracle: PathsOracle) -> None:
    oracle.agrees(lambda base: sorted((e.name, e.path) for e in os.scandir(os.fsencode(f"{base}/d"))))


def test_entries_of_a_path_are_spelled_as_it_is(oracle: PathsOracle) -> None:
    oracle.agrees(lambda base: sorted(e.path.replace(str(Path(base)), "") for e in os.scandir(Path(f"{base}/d"))))


def test_a_closed_scan_gives_nothing(remote: Place) -> None:
    remote.put("a", b"x")
    with remote.scope(also="paths"):
        entries = os.scandir(remote.base)
        entries.close()
        assert list(entries) == []


def test_an_entry_has_the_inode_of_its_file(remote: Place) -> None:
    remote.put("a", b"x")
    with remote.scope(also="paths"), os.scandir(remote.base) as entries:
        (entry,) = entries
        assert entry.inode() == os.stat(remote.url("a")).st_ino
        assert os.path.samestat(entry.stat(), os.stat(remote.url("a")))


def _sorted_walk(found: Any) -> Any:
    return [(folder, sorted(dirs), sorted(files)) for folder, dirs, files in found]


@pytest.mark.parametrize("topdown", [True, False])
@pytest.mark.parametrize("spell", [str, os.fsencode, Wrapped])
def test_walk(oracle: PathsOracle, topdown: bool, spell: Callable[[str], Any]) -> None:
    oracle.agrees(lambda base: sorted(_sorted_walk(os.walk(spell(base), topdown))))


def test_walk_goes_where_the_list_says(oracle: PathsOracle) -> None:
    def program(base: str) -> Any:
        seen = []
        for folder, dirs, files in os.walk(base):
            seen.append((folder, sorted(files)))
            dirs[:] = sorted(name for name in dirs if not name.startswith((".", "d")))
        return seen

    oracle.agrees(program)


@pytest.mark.parametrize("name", ["nope", "a.txt", "d/"])
def test_walk_tells_what_is_missing_to_its_callback_alone(oracle: PathsOracle, name: str) -> None:
    def program(base: str) -> Any:
        heard: list[Any] = []
        found = _sorted_walk(os.walk(f"{base}/{name}", onerror=lambda e: heard.append((type(e), e.errno, e.filename))))
        return found, [(kind, number, path.replace(base, "")) for kind, number, path in heard]

    oracle.agrees(program)
    oracle.agrees(lambda base: _sorted_walk(os.walk(f"{base}/{name}")))


def test_walk_lists_each_directory_once(proxy: Proxy, proxy_place: Place) -> None:
    for name in ("a", "d/b", "d/e/c", "f/g"):
        proxy_place.put(name, b"x")
    with proxy_place.scope(also="paths"):
        os.path.exists(proxy_place.base)
        with proxy.counting() as requests:
            sizes = [
                entry.stat().st_size for folder, _, _ in os.walk(proxy_place.base) for entry in os.scandir(folder)
                if entry.is_file()
            ]  # fmt: skip
    assert sizes == [1, 1, 1, 1]
    assert [request.operation for request in requests] == ["ListObjectsV2"] * 8  # four by walk and four by scandir


def test_a_store_that_refuses_is_no_empty_directory(proxy: Proxy, proxy_place: Place) -> None:
    proxy_place.put("d/a", b"x")
    with proxy_place.scope(also="paths"):
        os.path.exists(proxy_place.base)
        proxy.deny(operation="ListObjectsV2")
        with pytest.raises(PermissionError):
            list(os.walk(proxy_place.base))
        with pytest.raises(PermissionError):
            list(Path(proxy_place.base).glob("*"))
        with pytest.raises(PermissionError):
            list(Path(proxy_place.base).rglob("*"))
        with pytest.raises(PermissionError):
            os.path.lexists(proxy_place.url("d"))


def test_iglob_gives_what_glob_gives(oracle: PathsOracle) -> None:
    patterns = ["*", "*/", "**/*.txt", "d/*", "nope*", "br[[]1]/*"]
    oracle.agrees(
        lambda base: (
            {one: sorted(glob.iglob(f"{base}/{one}", recursive=True)) for one in patterns},
            sorted(glob.iglob("*", root_dir=f"{base}/d")),
        )
    )


# ---- shutil

SOURCES = "a.txt empty d nope a.txt/ a.txt/x br[1]/q.txt".split()
TARGETS = "new a.txt ab.txt d d/ nope/ a.txt/ a.txt/x d/e".split()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", ["copyfile", "copy2"])
def test_copies_within_a_store(oracle: PathsOracle, name: str, source: str, target: str) -> None:
    oracle.agrees(lambda base: getattr(shutil, name)(f"{base}/{source}", f"{base}/{target}"))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["copyfile", "copy2", "move"])
def test_copies_from_a_disk(oracle: PathsOracle, tmp_path: Path, name: str, target: str) -> None:
    def program(base: str) -> Any:
        (tmp_path / "l.bin").write_bytes(b"local")
        return getattr(shutil, name)(f"{tmp_path}/l.bin", f"{base}/{target}"), (tmp_path / "l.bin").exists()

    oracle.agrees(program)


@pytest.mark.parametrize("target", ["new", "old", "dir", "nope/"])
@pytest.mark.parametrize("source", ["a.txt", "nope", "d"])
@pytest.mark.parametrize("name", ["copyfile", "copy2", "move", "copytree"])
def test_copies_to_a_disk(oracle: PathsOracle, tmp_path: Path, name: str, source: str, target: str) -> None:
    disk = tmp_path / "disk"

    def program(base: str) -> Any:
        shutil.rmtree(disk, ignore_errors=True)
        (disk / "dir").mkdir(parents=True)
        (disk / "old").write_bytes(b"old")
        outcome = told(lambda base: getattr(shutil, name)(f"{base}/{source}", f"{disk}/{target}"), base)
        if outcome[1] == "Error":
            outcome = ("raised", "Error")
        return outcome, sorted((str(path), path.is_file() and path.read_bytes()) for path in disk.rglob("*"))

    oracle.agrees(program)


def test_copy2_keeps_the_time_on_a_disk(remote: Place, tmp_path: Path) -> None:
    remote.put("a", b"x")
    with remote.scope(also="paths"):
        shutil.copy2(remote.url("a"), tmp_path / "a")
        assert (tmp_path / "a").stat().st_mtime == pytest.approx(os.path.getmtime(remote.url("a")), abs=0.01)


@pytest.mark.parametrize("target", ["new", "d", "new/deep", "a.txt", "d/e/in"])
@pytest.mark.parametrize("options", [{}, {"dirs_exist_ok": True}, {"ignore": shutil.ignore_patterns("*.csv", "e")}])
@pytest.mark.parametrize("source", ["d", "dd", "a.txt", "nope"])
def test_copytree_within_a_store(oracle: PathsOracle, source: str, target: str, options: dict[str, Any]) -> None:
    if (source, target) == ("d", "d/e/in"):
        pytest.skip("on a disk that has no end")
    oracle.agrees(lambda base: shutil.copytree(f"{base}/{source}", f"{base}/{target}", **options))


def test_copytree_from_a_disk_and_back(remote: Place, tmp_path: Path) -> None:
    for name, data in TREE.items():
        path = tmp_path / "from" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    with remote.scope(also="paths"):
        assert shutil.copytree(tmp_path / "from", remote.url("t")) == remote.url("t")
        assert shutil.copytree(remote.url("t"), tmp_path / "to") == tmp_path / "to"
    assert remote.files() == {f"t/{name}": data for name, data in TREE.items()}
    copied = [path for path in (tmp_path / "to").rglob("*") if path.is_file()]
    assert {str(path.relative_to(tmp_path / "to")): path.read_bytes() for path in copied} == TREE


def test_copytree_calls_the_callers_own_copy_function(oracle: PathsOracle) -> None:
    def program(base: str) -> Any:
        seen: list[Any] = []
        shutil.copytree(f"{base}/d", f"{base}/new", copy_function=lambda src, dst: seen.append((src, dst)))
        return sorted(seen)

    oracle.agrees(program)


def test_copytree_tells_what_it_could_not_copy(proxy: Proxy, proxy_place: Place) -> None:
    for name in ("t/a", "t/b", "t/c"):
        proxy_place.put(name, b"x")
    proxy.deny(operation="CopyObject", target="/b")
    with proxy_place.scope(also="paths"), pytest.raises(shutil.Error) as caught:
        shutil.copytree(proxy_place.url("t"), proxy_place.url("u"))
    ((source, target, reason),) = caught.value.args[0]
    assert (source, target) == (proxy_place.url("t/b"), proxy_place.url("u/b"))
    assert "denied" in reason.lower()
    assert sorted(Place(proxy_place.base, "s3").files()) == ["t/a", "t/b", "t/c", "u/a", "u/c"]


@pytest.mark.parametrize("target", ["new", "d", "d/e", "a.txt", "ab.txt", "d/in", "nope/", "d/x.txt"])
@pytest.mark.parametrize("source", ["a.txt", "d", "dd", "nope", "d/e"])
def test_move_within_a_store(oracle: PathsOracle, source: str, target: str) -> None:
    def program(base: str) -> Any:
        outcome = told(lambda base: shutil.move(f"{base}/{source}", f"{base}/{target}"), base)
        return outcome[:3] if outcome[0] == "raised" else outcome

    oracle.agrees(program)


def test_move_between_stores(memory_place: Place, file_place: Place) -> None:
    memory_place.put("t/a", b"x")
    memory_place.put("t/d/b", b"y")
    with remoteio.remote_io(also="paths"):
        assert shutil.move(memory_place.url("t"), file_place.base) == file_place.url("t")
    assert file_place.files() == {"t/a": b"x", "t/d/b": b"y"}
    assert memory_place.files() == {}


def _names_in(file: Any, kind: str) -> list[str]:
    if kind == "zip":
        with zipfile.ZipFile(file) as archive:
            return archive.namelist()
    with tarfile.open(fileobj=file) as packed:
        return packed.getnames()


@pytest.mark.parametrize("kind", ["zip", "gztar"])
def test_make_archive_of_and_on_a_store(remote: Place, tmp_path: Path, kind: str) -> None:
    remote.put("t/a.txt", b"a")
    remote.put("t/d/b.txt", b"b")
    extension = {"zip": ".zip", "gztar": ".tar.gz"}[kind]
    with remote.scope(also="paths"):
        made = shutil.make_archive(remote.url("out/arc"), kind, remote.url("t"))
        assert made == remote.url(f"out/arc{extension}")
        here = shutil.make_archive(str(tmp_path / "local"), kind, remote.url("t"), "d")
        with open(made, "rb") as file:
            names = _names_in(file, kind)
    assert {name.removeprefix("./").rstrip("/") for name in names} - {"", ".", "d"} == {"a.txt", "d/b.txt"}
    assert here == str(tmp_path / f"local{extension}")


# ---- refused


@pytest.mark.parametrize(
    "call",
    [
        lambda url: tempfile.mkstemp(dir=url),
        lambda url: tempfile.mkdtemp(None, None, url),
        lambda url: tempfile.NamedTemporaryFile(dir=url),  # noqa: SIM115
        lambda url: tempfile.TemporaryFile(dir=url),  # noqa: SIM115
        lambda url: tempfile.SpooledTemporaryFile(dir=url),  # noqa: SIM115
        lambda url: tempfile.TemporaryDirectory(dir=url),
        lambda url: os.symlink(__file__, f"{url}/l"),
        lambda url: os.symlink(f"{url}/l", "l"),
        lambda url: os.link(f"{url}/a", f"{url}/l"),
        lambda url: os.open(f"{url}/l", os.O_CREAT | os.O_WRONLY),
        lambda url: Path(f"{url}/l").symlink_to(__file__),
        lambda url: Path(f"{url}/l").hardlink_to(__file__),
    ],
)
def test_what_no_store_can_do_is_refused(memory_place: Place, call: Callable[[str], Any]) -> None:
    with memory_place.scope(also="paths"), pytest.raises(OSError) as caught:
        call(memory_place.base)
    assert caught.value.errno == errno.ENOTSUP
    assert "memory://" in str(caught.value)
    assert memory_place.files() == {}


def test_mapping_a_file_into_memory_by_its_path_is_refused(memory_place: Place) -> None:
    import mmap

    memory_place.put("f", b"12345")
    with memory_place.scope(also="paths"), open(memory_place.url("f"), "rb") as file, pytest.raises(OSError) as caught:
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    assert caught.value.errno == errno.ENOTSUP
    assert "staged_local" in str(caught.value)


def test_temporary_files_beside_a_file_url_are_made(file_place: Place) -> None:
    with file_place.scope(also="paths"):
        made = tempfile.mkdtemp(dir=file_place.base)
        assert os.path.isdir(made)


def test_a_descriptor_reads_a_copy(remote: Place) -> None:
    remote.put("f", b"12345")
    with remote.scope(also="paths"):
        descriptor = os.open(remote.url("f"), os.O_RDONLY)
        folder = os.open(remote.base, os.O_RDONLY)
        os.fsync(folder)
    with open(descriptor, "rb") as file:
        assert file.read() == b"12345"
    os.close(folder)


# ---- the scope


def test_an_unknown_table_is_refused() -> None:
    with pytest.raises(ValueError, match="'path'"):
        remoteio.remote_io(also="path")
    with pytest.raises(TypeError):
        remoteio.remote_io(also=3)  # type: ignore[call-overload]


@pytest.mark.parametrize("also", ["paths", ("paths",), ["paths", "torch"], "all", ("all",), {"paths"}])
def test_the_table_is_asked_for(memory_place: Place, also: Any) -> None:
    memory_place.put("f", b"x")
    with remoteio.remote_io(also=also):
        assert os.path.isfile(memory_place.url("f"))


def test_the_default_is_the_ten_alone(memory_place: Place) -> None:
    memory_place.put("f", b"x")
    before = os.path.isfile, os.stat, Path.touch
    with remoteio.remote_io():
        assert (os.path.isfile, os.stat, Path.touch) == before
        assert not os.path.isfile(memory_place.url("f"))


def test_everything_is_set_back() -> None:
    import pathlib

    places = [(os, name) for name in ("stat", "rename", "scandir", "open", "walk")]
    places += [(os.path, "isfile"), (pathlib.Path, "touch"), (shutil, "move")]  # type: ignore[list-item]
    before = [vars(holder)[name] for holder, name in places]
    with remoteio.remote_io(also="paths"):
        assert all(vars(holder)[name] is not old for (holder, name), old in zip(places, before, strict=True))
    assert [vars(holder)[name] for holder, name in places] == before


def test_a_scope_nested_in_a_wide_one_is_wide(memory_place: Place) -> None:
    memory_place.put("f", b"x")
    with remoteio.remote_io(also="paths"), remoteio.remote_io():
        assert os.path.isfile(memory_place.url("f"))


def test_a_wide_scope_ends_within_a_narrow_one(memory_place: Place) -> None:
    memory_place.put("f", b"x")
    native = os.path.isfile
    with remoteio.remote_io():
        with remoteio.remote_io(also="paths"):
            kept = os.path.isfile
            assert os.path.isfile(memory_place.url("f"))
        assert os.path.isfile is native
        assert not kept(memory_place.url("f"))
        assert os.path.exists(memory_place.url("f"))


def test_another_threads_table_is_not_ours(memory_place: Place) -> None:
    import threading

    memory_place.put("f", b"x")
    entered, leave = threading.Event(), threading.Event()

    def wide() -> None:
        with remoteio.remote_io(also="paths"):
            entered.set()
            leave.wait()

    thread = threading.Thread(target=wide)
    thread.start()
    entered.wait()
    try:
        with remoteio.remote_io():
            assert not os.path.isfile(memory_place.url("f"))
    finally:
        leave.set()
        thread.join()


def test_workers_enter_with_the_table(memory_place: Place) -> None:
    import pickle

    memory_place.put("f", b"x")
    with remoteio.remote_io(also="paths"), remoteio.remote_io() as inner:
        data = pickle.dumps(inner)
    with pickle.loads(data):
        assert os.path.isfile(memory_place.url("f"))


def test_status_tells_which_table_answered(memory_place: Place) -> None:
    memory_place.put("f", b"x")
    with remoteio.remote_io(also="paths"):
        os.path.isfile(memory_place.url("f"))
        found = remoteio.status()
    assert found.tables["isfile"] == "paths"
    assert found.tables["exists"] == ""
    assert any(line.split()[:3] == ["isfile", "paths", "memory"] for line in str(found).splitlines())


class Virtual:
    """A path as universal_pathlib has them: no ``os.PathLike``."""

    protocol = "memory"

    def __init__(self, url: str) -> None:
        self.url = url

    def __vfspath__(self) -> str:
        return self.url.partition("://")[2]

    def __str__(self) -> str:
        return self.url


def test_paths_of_universal_pathlib_are_taken(memory_place: Place) -> None:
    memory_place.put("f", b"x")
    with remoteio.remote_io(also="paths"):
        f, g, base = (
            cast(str, Virtual(url)) for url in (memory_place.url("f"), memory_place.url("g"), memory_place.base)
        )
        assert os.path.isfile(f)
        assert os.listdir(base) == ["f"]
        assert shutil.copy(f, g) == str(g)
        with open(g) as file:
            assert file.read() == "x"


# ---- file URLs


def test_walk_of_a_file_url_keeps_its_spelling_and_tells_its_errors(file_place: Place) -> None:
    file_place.put("d/e/x.txt", b"x")
    heard: list[Any] = []
    with file_place.scope(also="paths"):
        found = list(os.walk(file_place.base, onerror=heard.append))
        list(os.walk(file_place.url("nothing"), onerror=heard.append))
        list(os.walk(file_place.url("nothing")))
    assert found == [
        (file_place.base, ["d"], []),
        (file_place.url("d"), ["e"], []),
        (file_place.url("d/e"), [], ["x.txt"]),
    ]
    assert [(type(error), error.filename) for error in heard] == [(FileNotFoundError, file_place.url("nothing"))]


def test_a_strict_realpath_of_a_file_url_that_is_missing(file_place: Place) -> None:
    file_place.put("a", b"x")
    with file_place.scope(also="paths"):
        assert os.path.realpath(file_place.url("a"), strict=True) == file_place.url("a")
        with pytest.raises(FileNotFoundError) as caught:
            os.path.realpath(file_place.url("b"), strict=True)
    assert caught.value.filename == file_place.url("b")


def test_touch_of_a_file_url(file_place: Place) -> None:
    with file_place.scope(also="paths"):
        Path(file_place.url("a")).touch()
        with pytest.raises(FileExistsError):
            Path(file_place.url("a")).touch(exist_ok=False)
    assert file_place.files() == {"a": b""}


def test_a_descriptor_of_a_file_is_none_of_a_directory(remote: Place) -> None:
    remote.put("d/a", b"text")
    with remote.scope(also="paths"):
        with pytest.raises(NotADirectoryError):
            os.open(remote.url("d/a"), os.O_RDONLY | os.O_DIRECTORY)
        descriptor = os.open(remote.url("d/a"), os.O_RDONLY)
        assert os.read(descriptor, 10) == b"text"
        os.close(descriptor)


def test_a_walk_by_descriptors_is_refused(memory_place: Place) -> None:
    memory_place.put("d/f", b"x")
    with remoteio.remote_io(also="paths"), pytest.raises(OSError, match=r"use os\.walk") as caught:
        os.fwalk(memory_place.url("d"))
    assert (caught.value.errno, caught.value.filename) == (errno.ENOTSUP, memory_place.url("d"))


def test_a_walk_by_descriptors_is_the_old_one_on_a_disk(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    with remoteio.remote_io(also="paths"):
        assert [files for _, _, files, _ in os.fwalk(tmp_path)] == [["f"]]

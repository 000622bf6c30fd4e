from __future__ import annotations

import functools
import http.server
import mmap
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from remoteio import _locks, _staging_remote, _stores, cache, cli, staged_local
from remoteio._settings import Settings
from remoteio.errors import StagingError
from tests import servers
from tests.conftest import Place
from tests.staging_help import ROOT, ended, left_in, options, run, start, tree, write


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for what staging writes where there is no cache."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    for name in ("LOCAL_CACHE_DIR", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cache."""
    return tmp_path / "cache"


def read(url: str, folder: Path | None = None, place: Place | None = None) -> bytes:
    with staged_local(url, "r", cache_dir=folder, **(options(place) if place else {})) as path:
        return Path(path).read_bytes()


def data_of(folder: Path, name: str) -> Path:
    """Where the cache has a file of this name."""
    (found,) = [path for path in folder.rglob(name) if "data" in path.parts]
    return found


# ---- reuse


def test_an_entry_is_reused_while_the_store_says_that_it_is_the_same(
    proxy_place: Place, folder: Path, proxy: servers.Proxy
) -> None:
    url = proxy_place.put("x", b"1")
    read(url, folder, proxy_place)
    proxy.reset()
    assert read(url, folder, proxy_place) == b"1"
    assert proxy.operations == ["HeadObject"]


def test_a_directory_costs_one_listing(proxy_place: Place, folder: Path, proxy: servers.Proxy) -> None:
    for number in range(5):
        proxy_place.put(f"run/{number}", b"1")
    for _ in range(2):
        proxy.reset()
        with staged_local(proxy_place.url("run/"), "r", cache_dir=folder, **options(proxy_place)):
            pass
    assert proxy.operations == ["ListObjectsV2"]


def test_the_environment_names_the_cache(s3_place: Place, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_CACHE_DIR", str(folder))
    with staged_local(s3_place.put("x", b"1"), "r") as path:
        assert path.startswith(str(folder))
    assert os.path.exists(path)


def test_another_content_of_the_same_size_is_fetched(s3_place: Place, folder: Path) -> None:
    url = s3_place.put("x", b"1")
    assert read(url, folder) == b"1"
    s3_place.put("x", b"2")
    assert read(url, folder) == b"2"


def test_the_old_version_goes_when_nobody_uses_it(s3_place: Place, folder: Path) -> None:
    url = s3_place.put("x", b"1")
    with staged_local(url, "r", cache_dir=folder) as path:
        s3_place.put("x", b"2")
        with staged_local(url, "r", cache_dir=folder) as newer:
            assert Path(newer).read_bytes() == b"2"
        assert Path(path).read_bytes() == b"1"
    assert not os.path.exists(path)
    assert data_of(folder, "x").read_bytes() == b"2"


def test_an_object_that_is_gone_is_not_served_from_the_cache(s3_place: Place, folder: Path) -> None:
    url = s3_place.put("x", b"1")
    read(url, folder)
    s3_place.fs().rm_file(url)
    with pytest.raises(FileNotFoundError):
        read(url, folder)


def test_one_basename_of_two_urls_is_two_entries(s3_place: Place, folder: Path) -> None:
    urls = [s3_place.put(f"{name}/model.pt", name.encode()) for name in "ab"]
    assert [read(url, folder) for url in urls] == [b"a", b"b"]
    assert len(cache.list(folder)) == 2


def test_one_url_of_two_endpoints_is_two_entries(s3_place: Place, folder: Path, proxy: servers.Proxy) -> None:
    url = s3_place.put("x", b"1")
    read(url, folder)
    read(url, folder, Place(s3_place.base, "s3", proxy.storage_options))
    assert proxy.tally["GetObject"] == 1


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ({"anon": True}, False),
        ({"client_kwargs": {"region_name": "eu-south-1"}}, False),
        ({"secret": "another"}, True),
        ({"token": "another"}, True),
        ({"config_kwargs": {"read_timeout": 5}}, True),
        ({"max_concurrency": 2}, True),
    ],
)
def test_options_that_change_what_is_read_make_another_entry(
    s3_place: Place, s3_server: servers.Server, options: dict[str, object], same: bool
) -> None:
    usual = s3_server.storage_options()["s3"]
    url = _stores.parse(s3_place.url("x"))
    assert url is not None
    names = set()
    for given in (usual, {**usual, **options}):
        settings = Settings(storage_options=({"s3": given},))
        location = _stores.resolve(url, settings)
        names.add(_staging_remote.entry_name(_staging_remote.Remote(location, False, True), settings))
    assert len(names) == (1 if same else 2)
    assert not any("another" in name for name in names)


def test_what_only_its_time_could_tell_is_fetched_each_time(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "www").mkdir()
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "www"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for content in ("one", "two"):
            write(tmp_path / "www" / "x", content)
            os.utime(tmp_path / "www" / "x", (1, 1))
            assert read(f"http://127.0.0.1:{server.server_port}/x", folder) == content.encode()
        server.shutdown()


def test_without_a_cache_the_entry_lives_until_its_last_user_leaves(s3_place: Place, scratch: Path) -> None:
    url = s3_place.put("x", b"1")
    first, second = staged_local(url, "r"), staged_local(url, "r")
    path = first.__enter__()
    assert second.__enter__() == path
    first.__exit__(None, None, None)
    assert Path(path).read_bytes() == b"1"
    second.__exit__(None, None, None)
    assert left_in(scratch) == []


def test_a_mapping_made_in_the_block_stays_readable(s3_place: Place) -> None:
    url = s3_place.put("x", b"content")
    with staged_local(url, "r") as path, open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    assert not os.path.exists(path)
    assert mapped[:] == b"content"


def test_a_memory_store_is_not_shared_between_processes(folder: Path) -> None:
    program = """
        import sys, fsspec
        from remoteio import staged_local
        fsspec.filesystem("memory").pipe_file("/t/x", sys.argv[1].encode())
        with staged_local("memory://t/x", "r", cache_dir=sys.argv[2]) as path:
            print(open(path).read())
    """
    assert [run(program, word, str(folder)).strip() for word in "ab"] == ["a", "b"]


# ---- damage


def _truncate(path: Path) -> None:
    os.truncate(path, 1)


def _rewrite(path: Path) -> None:
    times = os.stat(path)
    path.write_bytes(b"X" * times.st_size)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _replace(path: Path) -> None:
    os.unlink(path)
    path.write_bytes(b"1" * 10)


def _link(path: Path) -> None:
    os.rename(path, f"{path}.away")
    os.symlink(f"{path}.away", path)


def _add(path: Path) -> None:
    (path.parent / "foreign").write_bytes(b"")


@pytest.mark.parametrize("damage", [_truncate, _rewrite, _replace, _link, os.unlink, _add])
def test_damage_is_noticed_and_fetched_again(s3_place: Place, folder: Path, damage: object) -> None:
    s3_place.put("run/x", b"1" * 10)
    for turn in range(2):
        with staged_local(s3_place.url("run"), "r", cache_dir=folder) as path:
            assert tree(path) == {"x": b"1" * 10}
        if not turn:
            inner = data_of(folder, "x")
            os.chmod(inner.parent, 0o700)
            os.chmod(inner, 0o600)
            damage(inner)  # type: ignore[operator]


def test_an_edit_in_the_very_moment_of_the_fetch_is_noticed(s3_place: Place, folder: Path) -> None:
    url = s3_place.put("x", b"1" * 10)
    for _ in range(20):
        with staged_local(url, "r", cache_dir=folder) as path:
            assert Path(path).read_bytes() == b"1" * 10
            os.chmod(path, 0o600)
            descriptor = os.open(path, os.O_WRONLY)
            os.pwrite(descriptor, b"X", 5)
            os.close(descriptor)


def test_a_half_written_entry_is_never_taken(s3_place: Place, folder: Path) -> None:
    url = s3_place.put("x", b"1" * 10)
    read(url, folder)
    version = data_of(folder, "x").parent.parent
    (version / "manifest.json").write_bytes(b'{"finger')
    assert read(url, folder) == b"1" * 10


def test_what_was_fetched_may_not_be_written_to(s3_place: Place) -> None:
    s3_place.put("run/x", b"1")
    with staged_local(s3_place.url("run"), "r") as path:
        assert os.stat(f"{path}/x").st_mode & 0o777 == 0o444
        assert os.stat(path).st_mode & 0o222 == 0


def test_the_copy_to_work_on_is_ones_own(s3_place: Place) -> None:
    url = s3_place.put("x", b"1")
    with staged_local(url, "r") as shared, staged_local(url) as own:
        write(own, b"2")
        assert Path(shared).read_bytes() == b"1"
        assert os.stat(own).st_mode & 0o200


def test_the_object_changed_in_the_middle_of_the_fetch_is_an_error_and_never_a_mix(
    proxy_place: Place, proxy: servers.Proxy
) -> None:
    size = 24 * 2**20
    url = proxy_place.put("x", b"a" * size)
    proxy.before(lambda: proxy_place.put("x", b"b" * size), operation="GetObject", times=1)
    with pytest.raises(OSError, match="replaced"):
        read(url, None, proxy_place)
    assert read(url, None, proxy_place) == b"b" * size


# ---- what dead processes leave

HOLD = """
    import sys, time
    from remoteio import staged_local
    with staged_local(sys.argv[1], sys.argv[2]) as path:
        print(path, flush=True)
        time.sleep(60)
"""


@pytest.mark.parametrize("mode", ["r", "r+", "w"])
def test_the_next_use_removes_what_a_killed_process_left(s3_place: Place, scratch: Path, mode: str) -> None:
    url = s3_place.put("x", b"1")
    process = start(HOLD, url, mode)
    with ended(process):
        assert process.stdout
        assert process.stdout.readline()
    assert left_in(scratch)
    with staged_local(url, "w"):
        pass
    with staged_local(url, "r"):
        pass
    assert left_in(scratch) == []


def test_what_a_process_of_another_container_uses_is_left_alone_until_its_lock_is_free(
    s3_place: Place, folder: Path
) -> None:
    url = s3_place.put("x", b"1")
    read(url, folder)
    theirs = folder / f"remoteio-{os.getuid()}" / "tmp" / "0a0b0c0d-1-1-abc"
    theirs.mkdir()
    lock = _locks.Lock(str(theirs / "owner"))
    lock.take()
    read(url, folder)
    assert theirs.exists()
    lock.release()
    read(url, folder)
    assert not theirs.exists()


def test_a_later_process_of_the_same_number_is_another_one() -> None:
    space, pid, start, *_ = _locks.identity().split("-")
    assert _locks.is_alive(f"{space}-{pid}-{start}-more") is True
    assert _locks.is_alive(f"{space}-{pid}-{int(start) - 1}-more") is False
    assert _locks.is_alive(f"0a0b0c0d-{pid}-{start}") is None


def test_an_early_leaver_removes_nothing_that_another_process_reads(s3_place: Place) -> None:
    url = s3_place.put("x", b"1")
    process = start(HOLD, url, "r")
    with ended(process):
        assert process.stdout
        path = process.stdout.readline().strip()
        with staged_local(url, "r") as same:
            assert same == path
        assert Path(path).read_bytes() == b"1"


# ---- for people


@pytest.fixture
def filled(s3_place: Place, folder: Path) -> list[str]:
    """The URLs of three entries of 1,000 bytes, the first the least recently used."""
    urls = [s3_place.put(f"{name}/data", name.encode() * 1000) for name in "abc"]
    for number, url in enumerate(urls):
        read(url, folder)
        (entry,) = [entry for entry in cache.list(folder) if entry.url == url]
        os.utime(Path(entry.folder) / "used", (number, number))
    return urls


def test_list_names_the_entries_the_oldest_first(filled: list[str], folder: Path) -> None:
    found = cache.list(folder)
    assert [entry.url for entry in found] == filled
    assert not any(entry.in_use for entry in found)
    assert all(1000 <= entry.size < 2000 for entry in found)


def test_size_is_all_of_them(filled: list[str], folder: Path) -> None:
    assert 3000 <= cache.size(folder) < 6000


def test_clear_removes_one_url(filled: list[str], folder: Path) -> None:
    assert cache.clear(filled[1], folder) >= 1000
    assert [entry.url for entry in cache.list(folder)] == [filled[0], filled[2]]


@pytest.mark.parametrize("scheme", ["S3", "s3a"])
def test_clear_knows_every_spelling_of_a_scheme(filled: list[str], folder: Path, scheme: str) -> None:
    assert cache.clear(f"{scheme}{filled[0].removeprefix('s3')}", folder) > 0
    assert filled[0] not in [entry.url for entry in cache.list(folder)]


def test_a_cache_below_a_link_to_nothing_is_refused(s3_place: Place, tmp_path: Path) -> None:
    url = s3_place.put("a", b"1")
    os.symlink(tmp_path / "unmounted", tmp_path / "disk")
    with pytest.raises(StagingError, match="leads nowhere"), staged_local(url, "r", cache_dir=tmp_path / "disk/cache"):
        pass
    with pytest.raises(FileNotFoundError), staged_local(url, "r", cache_dir="/proc/nowhere"):
        pass


def test_caches_are_cleared_by_several_at_once(s3_place: Place, folder: Path) -> None:
    for number in range(20):
        read(s3_place.put(f"x{number}", b"1"), folder)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: cache.clear(cache_dir=folder), range(8)))
    assert cache.list(folder) == []


def test_clear_removes_all(filled: list[str], folder: Path) -> None:
    cache.clear(cache_dir=folder)
    assert cache.list(folder) == []


def test_clear_never_touches_an_entry_in_use(filled: list[str], folder: Path) -> None:
    with staged_local(filled[0], "r", cache_dir=folder) as path:
        cache.clear(cache_dir=folder)
        cache.clear(filled[0], folder)
        assert Path(path).read_bytes() == b"a" * 1000
        assert [entry.url for entry in cache.list(folder)] == filled[:1]


def test_limit_removes_the_least_recently_used(filled: list[str], folder: Path) -> None:
    cache.limit(cache.size(folder) - 1500, folder)
    assert [entry.url for entry in cache.list(folder)] == [filled[2]]


def test_use_makes_an_entry_recent(filled: list[str], folder: Path) -> None:
    read(filled[0], folder)
    cache.limit(2000, folder)
    assert [entry.url for entry in cache.list(folder)] == [filled[0]]


def test_limit_never_touches_an_entry_in_use(filled: list[str], folder: Path) -> None:
    with staged_local(filled[0], "r", cache_dir=folder) as path:
        cache.limit(0, folder)
        assert Path(path).read_bytes() == b"a" * 1000
        assert [(entry.url, entry.in_use) for entry in cache.list(folder)] == [(filled[0], True)]


def test_a_cache_that_was_never_used_is_empty(folder: Path) -> None:
    assert (cache.size(folder), list(cache.list(folder)), cache.clear(cache_dir=folder)) == (0, [], 0)


def test_the_command_does_the_same(filled: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cache", "list", "--cache-dir", str(folder)]) == 0
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == filled
    assert cli.main(["cache", "size", "--cache-dir", str(folder)]) == 0
    assert int(capsys.readouterr().out.replace(",", "")) == cache.size(folder)
    assert cli.main(["cache", "clear", filled[0], "--cache-dir", str(folder)]) == 0
    assert "bytes freed" in capsys.readouterr().out
    assert cli.main(["cache", "limit", "0.5K", "--cache-dir", str(folder)]) == 0
    assert cache.list(folder) == []


def test_the_command_runs_as_a_module(folder: Path) -> None:
    program = [sys.executable, "-m", "remoteio", "cache", "size", "--cache-dir", str(folder)]
    done = subprocess.run(program, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ROOT}, check=True)
    assert done.stdout == "0\n"


def test_the_command_says_why_it_cannot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert cli.main(["cache", "list", "--cache-dir", str(tmp_path / "file")]) == 1
    assert "remoteio:" in capsys.readouterr().err


def test_a_wrong_size_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["cache", "limit", "much"])
    assert "is no size" in capsys.readouterr().err


# ---- broken locks


@pytest.mark.parametrize("how", ["granted to everybody", "ENOSYS", "ENOLCK"])
def test_without_locks_the_bytes_are_right_and_nothing_is_shared(
    s3_place: Place, folder: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    import errno
    import fcntl

    def flock(descriptor: int, operation: int) -> None:
        if how != "granted to everybody":
            raise OSError(getattr(errno, how), how)

    monkeypatch.setattr(fcntl, "flock", flock)
    url = s3_place.put("x", b"1")
    with staged_local(url, "r", cache_dir=folder) as path, staged_local(url, "r", cache_dir=folder) as other:
        assert path != other
        assert Path(path).read_bytes() == Path(other).read_bytes() == b"1"
    with staged_local(url, cache_dir=folder) as path:
        write(path, b"2")
    assert s3_place.read("x") == b"2"
    assert not list((folder / f"remoteio-{os.getuid()}" / "tmp").iterdir())

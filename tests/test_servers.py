"""The servers and the proxy do what the other tests rely on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import servers
from tests.conftest import Place


def test_a_place_is_an_empty_directory(place: Place) -> None:
    fs = place.fs()
    assert fs.isdir(place.base)
    assert place.files() == {}


def test_what_is_put_is_read(place: Place) -> None:
    place.put("a b/c#%.txt", "x")
    assert place.read("a b/c#%.txt") == b"x"
    assert place.files() == {"a b/c#%.txt": b"x"}


def test_moto_holds_keys_that_seaweedfs_cannot(moto_place: Place) -> None:
    moto_place.put("a\\b//c", b"x")
    assert moto_place.files() == {"a\\b//c": b"x"}


def test_the_proxy_counts(proxy: servers.Proxy, proxy_place: Place) -> None:
    proxy_place.put("x", b"1")
    proxy_place.fs().cat_file(proxy_place.url("x"))
    assert proxy.tally["PutObject"] == 1
    assert proxy.tally["GetObject"] == 1


def test_the_proxy_denies_what_matches_and_only_that(proxy: servers.Proxy, proxy_place: Place) -> None:
    proxy_place.put("x", b"1")
    proxy_place.put("y", b"2")
    proxy.deny(operation="GetObject", target=r"/x$")
    with pytest.raises(PermissionError):
        proxy_place.read("x")
    assert proxy_place.read("y") == b"2"


def test_the_proxy_cuts_a_response_at_the_byte(proxy: servers.Proxy, proxy_place: Place) -> None:
    import http.client
    import urllib.request

    name = proxy_place.put("big", b"x" * 1_000_000).partition("://")[2]
    address = proxy_place.fs().sign(name)
    proxy.cut_response(1000, operation="GetObject")
    with pytest.raises((ConnectionError, http.client.IncompleteRead)), urllib.request.urlopen(address) as answer:
        answer.read()


def test_the_proxy_caps_each_connection(proxy: servers.Proxy, proxy_place: Place) -> None:
    proxy_place.put("big", b"x" * 400_000)
    proxy.cap(1_000_000)
    start = time.monotonic()
    proxy_place.read("big")
    assert 0.3 < time.monotonic() - start < 15


def test_a_server_leaves_nothing_behind(tmp_path: object) -> None:
    with servers.SeaweedFS() as server:
        folder, pid = server.folder, server.process.pid if server.process else 0
        ports = dict(server.ports)
    assert not os.path.exists(folder)
    assert not servers._runs(pid)
    left = [name for name in os.listdir("/tmp") if any(str(port + 10_000) in name for port in ports.values())]
    assert left == []


def test_the_runner_ends_its_servers_when_it_is_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.servers", "run", "--only", "gcs", "--", "sleep", "60"]
    runner = subprocess.Popen(command, cwd=Path(__file__).parent.parent, env={**os.environ, "TMPDIR": str(tmp_path)})
    end = time.monotonic() + 60
    while time.monotonic() < end and len(_children(runner.pid)) < 2:
        time.sleep(0.05)
    children = _children(runner.pid)
    assert len(children) == 2
    runner.terminate()
    assert runner.wait(120) == 143
    assert not any(servers._runs(pid) for pid in children)
    assert os.listdir(tmp_path) == []


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

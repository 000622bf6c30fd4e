"""Taking turns without the kernel's locks."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from remoteio._turns import Presence, Turn, is_free
from tests.staging_help import ended, run, start

ADD = """
    import os, sys
    from remoteio._turns import Turn
    folder, file, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
    for _ in range(times):
        turn = Turn(folder)
        turn.wait(lambda: None)
        number = int(open(file).read())
        os.sched_yield()
        open(file, "w").write(str(number + 1))
        turn.release()
"""


def never() -> None:
    raise BlockingIOError


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Where turns are taken."""
    (tmp_path / "turns").mkdir()
    return str(tmp_path / "turns")


def test_no_two_processes_are_inside_at_once(folder: str, tmp_path: Path) -> None:
    file = tmp_path / "number"
    file.write_text("0")
    processes = [start(ADD, folder, str(file), "100") for _ in range(4)]
    with ended(*processes):
        for process in processes:
            assert process.wait(timeout=120) == 0
    assert file.read_text() == "400"
    assert os.listdir(folder) == []


def test_no_two_threads_are_inside_at_once(folder: str) -> None:
    inside, most = [0], [0]

    def work() -> None:
        for _ in range(20):
            turn = Turn(folder)
            turn.wait(lambda: None)
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.0005)
            inside[0] -= 1
            turn.release()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert most == [1]


def test_who_is_held_off_may_give_up_and_leaves_nothing(folder: str) -> None:
    first = Turn(folder)
    first.wait(never)
    with pytest.raises(BlockingIOError):
        Turn(folder).wait(never)
    assert len(os.listdir(folder)) == 1
    first.release()
    assert os.listdir(folder) == []


def test_whoever_is_still_choosing_is_waited_for(folder: str) -> None:
    other = Turn(folder)
    Path(folder, f"choosing-{other._name}").touch()
    with pytest.raises(BlockingIOError):
        Turn(folder).wait(never)


def test_the_dead_are_not_waited_for(folder: str) -> None:
    run(
        """
        import os, sys
        from remoteio._turns import Turn
        Turn(sys.argv[1]).wait(lambda: None)
        open(os.path.join(sys.argv[1], "choosing-" + Turn(sys.argv[1])._name), "w")
        """,
        folder,
    )
    assert len(os.listdir(folder)) == 2
    turn = Turn(folder)
    turn.wait(never)
    turn.release()
    assert os.listdir(folder) == []


def test_a_forked_child_gives_nothing_back(folder: str) -> None:
    turn = Turn(folder)
    turn.wait(never)
    presence = Presence(folder, ".member")
    child = os.fork()
    if child == 0:
        turn.release()
        presence.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert len(os.listdir(folder)) == 2


def test_a_presence_ends_with_its_release(folder: str) -> None:
    presence = Presence(folder, ".member")
    assert not is_free(presence.path)
    presence.release()
    assert is_free(presence.path)


def test_a_presence_ends_with_its_process(folder: str) -> None:
    run("import sys; from remoteio._turns import Presence; Presence(sys.argv[1], '.member')", folder)
    (name,) = os.listdir(folder)
    assert is_free(os.path.join(folder, name))

"""A child made by ``fork`` goes on as its parent's thread was, whatever other threads were doing."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import remoteio
from remoteio import _counters, _entries

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork"),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]


def is_inside() -> bool:
    """Whether this thread is in a scope: the root of the memory store is a directory there."""
    return os.path.isdir("memory://")


def in_child(work: Callable[[], Any], seconds: float = 20) -> Any:
    """The result of a function in a forked child; an exception is raised here."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 warns of other threads, which is the point here
        pid = os.fork()
    if pid == 0:
        try:
            try:
                result: Any = (True, work())
            except BaseException as error:  # everything is told to the parent
                result = (False, repr(error))
            os.write(writer, pickle.dumps(result))
        finally:
            os._exit(0)
    os.close(writer)
    alarm = threading.Timer(seconds, os.kill, (pid, signal.SIGKILL))
    with remoteio.native_io():
        alarm.start()
    try:
        data = b"".join(iter(lambda: os.read(reader, 65536), b""))
    finally:
        alarm.cancel()
        os.waitpid(pid, 0)
        os.close(reader)
    assert data, "the child hung, or died"
    good, result = pickle.loads(data)
    assert good, result
    return result


def test_child_of_an_inside_thread_is_inside() -> None:
    with remoteio.remote_io():
        assert in_child(is_inside) is True


def test_child_of_an_outside_thread_is_outside_and_clean() -> None:
    before = os.listdir
    assert in_child(lambda: (is_inside(), os.listdir is before)) == (False, True)


def test_child_leaves_the_scope_it_was_made_in() -> None:
    before = os.listdir
    scope = remoteio.remote_io()

    def work() -> tuple[bool, bool, bool]:
        inside = is_inside()
        scope.__exit__(None, None, None)
        return inside, is_inside(), os.listdir is before

    with scope:
        assert in_child(work) == (True, False, True)
        assert is_inside()


def test_child_of_nested_scopes_leaves_them_one_by_one() -> None:
    outer, inner = remoteio.remote_io(), remoteio.remote_io()

    def work() -> list[bool]:
        seen = [is_inside()]
        for scope in (outer, inner):
            scope.__exit__(None, None, None)
            seen.append(is_inside())
        return seen

    with outer, inner:
        assert in_child(work) == [True, True, False]


@pytest.fixture
def other_thread_inside() -> Iterator[None]:
    """Another thread is in a scope of its own."""
    entered, leave = threading.Event(), threading.Event()

    def work() -> None:
        with remoteio.remote_io():
            entered.set()
            leave.wait(120)

    thread = threading.Thread(target=work)
    thread.start()
    entered.wait(120)
    yield
    leave.set()
    thread.join()


def test_scopes_of_other_threads_do_not_survive(other_thread_inside: None) -> None:
    before = sys.modules["posix"].listdir
    assert os.listdir is not before
    assert in_child(lambda: (is_inside(), len(_entries.open_entries()), os.listdir is before)) == (False, 0, True)
    assert os.listdir is not before


def test_own_scope_survives_beside_those_of_other_threads(other_thread_inside: None) -> None:
    with remoteio.remote_io():
        assert in_child(lambda: (is_inside(), len(_entries.open_entries()))) == (True, 1)


def test_child_can_enter_again(other_thread_inside: None) -> None:
    def work() -> tuple[bool, bool]:
        with remoteio.remote_io():
            inside = is_inside()
        return inside, is_inside()

    assert in_child(work) == (True, False)


def test_child_of_a_thread_born_inside_is_inside_and_stays_so() -> None:
    def work() -> None:
        results.append(in_child(lambda: (is_inside(), len(_entries.open_entries()))))

    results: list[Any] = []
    with remoteio.remote_io():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert results == [(True, 1)]


def test_child_of_a_bound_call_comes_back_to_the_callers_scope() -> None:
    def work() -> Any:
        return in_child(is_inside), os.getpid()

    with remoteio.remote_io():
        bound = remoteio.bind(work)
    with remoteio.remote_io():
        pid = os.getpid()
        reader, writer = os.pipe()

        def fork_inside() -> int:
            return os.fork()

        child = remoteio.bind(fork_inside)()
        if child == 0:
            os.write(writer, b"1" if is_inside() else b"0")
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reader, 1) == b"1"
        assert bound()[1] == pid
        os.close(reader)
        os.close(writer)


def test_threads_started_in_the_child_are_inside() -> None:
    def work() -> bool:
        seen: list[bool] = []
        thread = threading.Thread(target=lambda: seen.append(is_inside()))
        thread.start()
        thread.join()
        return seen[0]

    with remoteio.remote_io():
        assert in_child(work) is True


def test_grandchild() -> None:
    with remoteio.remote_io():
        assert in_child(lambda: in_child(is_inside)) is True


def test_fork_at_any_moment_of_other_threads_entering_and_counting() -> None:
    def churn() -> None:
        while not stop.is_set():
            with remoteio.remote_io():
                _counters.count("exists", "nothing", calls=1)

    def work() -> tuple[bool, bool, bool]:
        outside = is_inside()
        with remoteio.remote_io():
            inside = is_inside()
            _counters.count("exists", "nothing", calls=1)
        return outside, inside, os.listdir is original

    original = sys.modules["posix"].listdir
    stop = threading.Event()
    threads = [threading.Thread(target=churn) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        end = time.monotonic() + 4
        for _ in range(60):
            assert in_child(work) == (False, True, True)
            if time.monotonic() > end:
                break
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert os.listdir is original


def test_multiprocessing_by_fork() -> None:
    import multiprocessing

    context = multiprocessing.get_context("fork")
    with remoteio.remote_io(), context.Pool(1) as pool:
        assert pool.apply(is_inside) is True

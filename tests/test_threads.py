"""Which threads, tasks and processes are inside of a scope."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import inspect
import os
import pickle
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any

import pytest

import remoteio
from remoteio import _stack
from remoteio.errors import ScopeError


def is_inside() -> bool:
    """Whether this thread is in a scope: the root of the memory store is a directory there."""
    return os.path.isdir("memory://")


class Asked:
    """A thread that answers, each time it is asked, whether it is inside."""

    def __init__(self, cls: type[threading.Thread] = threading.Thread) -> None:
        self._questions: list[threading.Event] = []
        self._ask = threading.Semaphore(0)
        self._told = threading.Semaphore(0)
        self._answer = False
        self._ends = False
        self.thread = cls(target=self._work, daemon=True)

    def start(self) -> Asked:
        self.thread.start()
        return self

    def _work(self) -> None:
        while True:
            self._ask.acquire()
            if self._ends:
                return
            self._answer = is_inside()
            self._told.release()

    def is_inside(self) -> bool:
        self._ask.release()
        assert self._told.acquire(timeout=120)
        return self._answer

    def end(self) -> None:
        self._ends = True
        self._ask.release()
        self.thread.join(120)


def in_a_thread(work: Callable[[], Any]) -> Any:
    """The result of a function in a thread started now."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


class TestThreads:
    """``threading.Thread``."""

    def test_started_inside_is_inside(self) -> None:
        with remoteio.remote_io():
            assert in_a_thread(is_inside) is True

    def test_started_before_is_outside(self) -> None:
        asked = Asked().start()
        with remoteio.remote_io():
            assert not asked.is_inside()
        asked.end()

    def test_made_before_and_started_inside_is_inside(self) -> None:
        asked = Asked()
        with remoteio.remote_io():
            assert asked.start().is_inside()
        asked.end()

    def test_made_inside_and_started_afterwards_is_outside(self) -> None:
        with remoteio.remote_io():
            asked = Asked()
        assert not asked.start().is_inside()
        asked.end()

    def test_is_inside_until_the_block_ends(self) -> None:
        with remoteio.remote_io():
            asked = Asked().start()
            assert asked.is_inside()
        assert not asked.is_inside()
        with remoteio.remote_io():
            assert not asked.is_inside()
        asked.end()

    def test_born_in_an_inner_scope_falls_back_to_the_outer(self) -> None:
        with remoteio.remote_io(directory_markers=False):
            with remoteio.remote_io(directory_markers=True):
                asked = Asked().start()
                assert asked.is_inside()
            assert asked.is_inside()
        assert not asked.is_inside()
        asked.end()

    def test_settings_are_those_of_the_scope_it_was_born_in(self) -> None:
        with remoteio.remote_io(directory_markers=True):
            assert in_a_thread(_stack.current).directory_markers is True

    def test_grandchild_is_inside(self) -> None:
        with remoteio.remote_io():
            assert in_a_thread(lambda: in_a_thread(is_inside)) is True

    def test_inheritance_can_be_refused(self) -> None:
        with remoteio.remote_io(inherit_threads=False):
            assert is_inside()
            assert in_a_thread(is_inside) is False

    def test_refusal_of_an_inner_scope_leaves_the_outer_inherited(self) -> None:
        with remoteio.remote_io(), remoteio.remote_io(inherit_threads=False):
            assert in_a_thread(is_inside) is True

    def test_started_in_a_native_block_is_native_for_good(self) -> None:
        with remoteio.remote_io():
            with remoteio.native_io():
                asked = Asked().start()
                assert not asked.is_inside()
            assert not asked.is_inside()
            asked.end()

    def test_may_be_native_by_itself(self) -> None:
        def work() -> tuple[bool, bool]:
            with remoteio.native_io():
                native = is_inside()
            return native, is_inside()

        with remoteio.remote_io():
            assert in_a_thread(work) == (False, True)

    def test_own_scope_of_a_thread_is_its_own(self) -> None:
        def work() -> bool:
            with remoteio.remote_io():
                entered.set()
                leave.wait(120)
                return is_inside()

        entered, leave = threading.Event(), threading.Event()
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(work)
            entered.wait(120)
            assert not is_inside()
            leave.set()
            assert future.result() is True

    def test_run_overridden_by_a_subclass(self) -> None:
        class Running(threading.Thread):
            inside = False

            def run(self) -> None:
                self.inside = is_inside()

        with remoteio.remote_io():
            thread = Running()
            thread.start()
            thread.join()
        assert thread.inside

    def test_start_overridden_by_a_subclass(self) -> None:
        class Starting(threading.Thread):
            def start(self) -> None:
                super().start()

        with remoteio.remote_io():
            asked = Asked(Starting).start()
            assert asked.is_inside()
        asked.end()

    def test_timer(self) -> None:
        seen: list[bool] = []
        with remoteio.remote_io():
            timer = threading.Timer(0, lambda: seen.append(is_inside()))
            timer.start()
            timer.join()
        assert seen == [True]

    def test_started_twice_is_still_refused(self) -> None:
        with remoteio.remote_io():
            thread = threading.Thread(target=int)
            thread.start()
            thread.join()
            with pytest.raises(RuntimeError, match="once"):
                thread.start()

    def test_scope_is_not_kept_by_the_thread(self) -> None:
        with remoteio.remote_io():
            thread = threading.Thread(target=is_inside)
            thread.start()
            thread.join()
        assert _stack.BIRTHMARK not in vars(thread)

    def test_scope_cannot_be_left_by_another_thread(self) -> None:
        def leave() -> type[BaseException] | None:
            try:
                scope.__exit__(None, None, None)
            except ScopeError as error:
                return type(error)
            return None

        scope = remoteio.remote_io()
        with scope:
            assert in_a_thread(leave) is ScopeError
            assert is_inside()

    def test_no_dummy_thread_is_registered_for_a_foreign_one(self) -> None:
        import _thread

        done = threading.Event()
        seen: list[bool] = []

        def work() -> None:
            seen.append(is_inside())
            done.set()

        with remoteio.remote_io():
            before = threading.active_count()
            _thread.start_new_thread(work, ())
            done.wait(120)
            assert threading.active_count() == before
        assert seen == [False]

    def test_io_thread_of_fsspec_is_never_inside(self) -> None:
        with remoteio.remote_io():
            thread = threading.Thread(target=lambda: seen.append(is_inside()), name="fsspecIO")
            seen: list[bool] = []
            thread.start()
            thread.join()
        assert seen == [False]

    @pytest.mark.parametrize(
        ("owner", "name"), [(threading.Thread, "start"), (ThreadPoolExecutor, "submit")], ids=["start", "submit"]
    )
    def test_hooks_look_like_the_originals_and_go_with_the_scope(self, owner: type, name: str) -> None:
        before = owner.__dict__[name]
        shown = (inspect.signature(before).parameters.keys(), before.__doc__, before.__qualname__)
        with remoteio.remote_io():
            hook = owner.__dict__[name]
            assert hook is not before
            assert (inspect.signature(hook).parameters.keys(), hook.__doc__, hook.__qualname__) == shown
        assert owner.__dict__[name] is before

    def test_many_threads_entering_and_leaving_at_once(self) -> None:
        def work() -> None:
            for _ in range(100):
                with remoteio.remote_io():
                    if not is_inside():
                        failures.append("outside in its own scope")
                if is_inside():
                    failures.append("inside after its scope")

        failures: list[str] = []
        before = os.path.isdir
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert os.path.isdir is before

    def test_entries_are_not_kept_by_an_ended_thread(self) -> None:
        with remoteio.remote_io() as scope:
            in_a_thread(is_inside)
        kept = weakref.ref(scope)
        del scope
        gc.collect()
        assert kept() is None


class TestPools:
    """Thread pools: a task is inside exactly when its submitter was."""

    def test_submitted_inside_is_inside(self) -> None:
        with ThreadPoolExecutor(1) as pool, remoteio.remote_io():
            assert pool.submit(is_inside).result()

    def test_worker_made_outside(self) -> None:
        with ThreadPoolExecutor(1) as pool:
            assert not pool.submit(is_inside).result()
            with remoteio.remote_io():
                assert pool.submit(is_inside).result()
            assert not pool.submit(is_inside).result()

    def test_worker_made_inside_does_not_carry_the_scope_to_tasks_from_outside(self) -> None:
        with ThreadPoolExecutor(1) as pool:
            asked = Asked().start()
            with remoteio.remote_io():
                assert pool.submit(is_inside).result()
                futures: list[Any] = []
                outside = threading.Thread(target=lambda: futures.append(pool.submit(is_inside)))
                with remoteio.native_io():
                    outside.start()
                outside.join()
                assert not futures[0].result()
            asked.end()

    def test_task_that_waited_beyond_the_block_is_outside(self) -> None:
        go = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            with remoteio.remote_io():
                pool.submit(go.wait, 20)
                waiting = pool.submit(is_inside)
            go.set()
            assert not waiting.result()

    def test_task_queued_before_the_block_is_outside(self) -> None:
        go = threading.Event()
        with ThreadPoolExecutor(2) as pool:
            for _ in range(2):
                pool.submit(go.wait, 20)
            waiting = pool.submit(is_inside)
            with remoteio.remote_io():
                go.set()
                assert not waiting.result()

    def test_map(self) -> None:
        with ThreadPoolExecutor(2) as pool, remoteio.remote_io():
            assert all(pool.map(lambda _: is_inside(), range(4)))

    def test_arguments_results_and_errors_pass(self) -> None:
        def work(a: int, *, b: int) -> int:
            return a // b

        with ThreadPoolExecutor(1) as pool, remoteio.remote_io():
            assert pool.submit(work, 6, b=3).result() == 2
            with pytest.raises(ZeroDivisionError):
                pool.submit(work, 6, b=0).result()

    def test_submit_overridden_by_a_subclass(self) -> None:
        class Pool(ThreadPoolExecutor):
            def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
                return super().submit(fn, *args, **kwargs)

        with Pool(1) as pool, remoteio.remote_io():
            assert pool.submit(is_inside).result()

    def test_scope_that_refuses_threads_refuses_tasks(self) -> None:
        with ThreadPoolExecutor(1) as pool, remoteio.remote_io(inherit_threads=False):
            assert not pool.submit(is_inside).result()

    def test_asyncio_to_thread(self) -> None:
        async def main() -> bool:
            return await asyncio.to_thread(is_inside)

        with remoteio.remote_io():
            assert asyncio.run(main())

    def test_pool_of_multiprocessing(self) -> None:
        with remoteio.remote_io(), ThreadPool(2) as pool:
            assert all(pool.map(lambda _: is_inside(), range(4)))


class TestBind:
    """``bind``."""

    def test_carries_the_scope_into_a_thread_started_before(self) -> None:
        def work() -> None:
            ready.wait(120)
            seen.append(bound[0]())

        ready = threading.Event()
        seen: list[bool] = []
        bound: list[Callable[[], bool]] = []
        thread = threading.Thread(target=work)
        thread.start()
        with remoteio.remote_io():
            bound.append(remoteio.bind(is_inside))
            ready.set()
            thread.join()
        assert seen == [True]

    def test_carries_what_is_not_inherited(self) -> None:
        with remoteio.remote_io(inherit_threads=False):
            assert in_a_thread(remoteio.bind(is_inside)) is True

    def test_is_native_once_the_block_has_ended(self) -> None:
        with remoteio.remote_io():
            bound = remoteio.bind(is_inside)
        with remoteio.remote_io():
            assert bound() is False

    def test_bound_outside_is_outside(self) -> None:
        bound = remoteio.bind(is_inside)
        with remoteio.remote_io():
            assert bound() is False
            assert is_inside()

    def test_caller_is_as_before_afterwards(self) -> None:
        with remoteio.remote_io():
            bound = remoteio.bind(is_inside)
            with remoteio.native_io():
                assert bound() is True
                assert not is_inside()

    def test_coroutine_function(self) -> None:
        async def work() -> bool:
            await asyncio.sleep(0)
            return is_inside()

        with remoteio.remote_io():
            bound = remoteio.bind(work)
            assert in_a_thread(lambda: asyncio.run(bound())) is True

    def test_name_is_kept(self) -> None:
        assert remoteio.bind(is_inside).__name__ == "is_inside"

    def test_generator_function_is_refused(self) -> None:
        def generate() -> Any:
            yield

        with pytest.raises(TypeError, match="generator"):
            remoteio.bind(generate)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_worker_of_a_process_pool_enters_with_the_initializer(method: str) -> None:
    import multiprocessing

    context = multiprocessing.get_context(method)
    with (
        remoteio.remote_io(directory_markers=True) as scope,
        concurrent.futures.ProcessPoolExecutor(
            1, mp_context=context, initializer=scope.enter_worker, initargs=(0,)
        ) as pool,
    ):
        assert pool.submit(is_inside).result(120)
        settings = pool.submit(_stack.current).result(120)
        assert settings is not None
        assert settings.directory_markers


def test_function_of_the_ten_can_be_sent_to_a_worker() -> None:
    with remoteio.remote_io():
        sent = pickle.loads(pickle.dumps((os.listdir, os.path.exists, open)))
        assert sent == (os.listdir, os.path.exists, open)

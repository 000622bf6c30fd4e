"""Scopes as decorators."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import remoteio
from remoteio import _entries, _stack


def is_inside() -> bool:
    """Whether this thread is in a scope: the root of the memory store is a directory there."""
    return os.path.isdir("memory://")


@remoteio.remote_io
def bare() -> bool:
    """A decorated function."""
    return is_inside()


@remoteio.remote_io(directory_markers=True)
def called(a: int, *, b: int = 2) -> tuple[bool, int]:
    """A function decorated with options."""
    settings = _stack.current()
    assert settings is not None
    return settings.directory_markers, a + b


class TestFunctions:
    """Plain functions and methods."""

    def test_bare_decorator(self) -> None:
        assert bare() is True
        assert not is_inside()

    def test_decorator_with_options_passes_arguments_and_result(self) -> None:
        assert called(1, b=3) == (True, 4)

    def test_metadata_is_kept(self) -> None:
        assert bare.__name__ == "bare"
        assert bare.__doc__ == "A decorated function."
        assert list(inspect.signature(called).parameters) == ["a", "b"]

    def test_exception_leaves_the_scope(self) -> None:
        @remoteio.remote_io
        def fail() -> None:
            raise KeyError

        with pytest.raises(KeyError):
            fail()
        assert not is_inside()

    def test_recursion(self) -> None:
        @remoteio.remote_io
        def down(depth: int) -> bool:
            return down(depth - 1) if depth else is_inside()

        assert down(5)
        assert not is_inside()

    def test_method_static_method_and_class_method(self) -> None:
        class Things:
            @remoteio.remote_io
            def method(self) -> bool:
                return is_inside()

            @remoteio.remote_io
            @staticmethod
            def static() -> bool:
                return is_inside()

            @remoteio.remote_io
            @classmethod
            def of_class(cls) -> tuple[type, bool]:
                return cls, is_inside()

        assert Things().method()
        assert Things.static()
        assert Things().static()
        assert Things.of_class() == (Things, True)

    def test_partial(self) -> None:
        assert remoteio.remote_io(functools.partial(called, 1))() == (True, 3)

    def test_same_scope_as_decorator_and_context(self) -> None:
        scope = remoteio.remote_io()
        with scope:
            assert scope(is_inside)()
            assert is_inside()


class TestRefused:
    """What cannot be decorated is a TypeError at decoration."""

    def test_generator_function(self) -> None:
        with pytest.raises(TypeError, match="generator function"):

            @remoteio.remote_io
            def generate() -> Iterator[int]:
                yield 1

    def test_async_generator_function(self) -> None:
        with pytest.raises(TypeError, match="async generator function"):

            @remoteio.remote_io
            async def generate() -> AsyncIterator[int]:
                yield 1

    def test_class(self) -> None:
        with pytest.raises(TypeError, match="class"):

            @remoteio.remote_io
            class Thing:
                pass

    def test_partial_of_a_generator_function(self) -> None:
        def generate() -> Iterator[int]:
            yield 1

        with pytest.raises(TypeError, match="generator function"):
            remoteio.remote_io(functools.partial(generate))

    def test_callable_object_that_generates(self) -> None:
        class Generating:
            def __call__(self) -> Iterator[int]:
                yield 1

        with pytest.raises(TypeError, match="generator function"):
            remoteio.remote_io(Generating())

    @pytest.mark.parametrize("wrong", [3, "name", ["s3"]])
    def test_what_cannot_be_called(self, wrong: Any) -> None:
        with pytest.raises(TypeError, match="a function is needed"):
            remoteio.remote_io(wrong)


class TestCoroutines:
    """A coroutine is inside while it runs, and other tasks are not while it waits."""

    def test_is_inside_and_returns(self) -> None:
        @remoteio.remote_io
        async def work(a: int) -> tuple[bool, int]:
            return is_inside(), a

        assert asyncio.run(work(3)) == (True, 3)

    def test_stays_a_coroutine_function(self) -> None:
        @remoteio.remote_io
        async def work() -> None:
            """Documented."""

        assert inspect.iscoroutinefunction(work)
        assert work.__doc__ == "Documented."

    def test_other_tasks_never_see_it(self) -> None:
        @remoteio.remote_io
        async def work() -> list[bool]:
            seen = []
            for _ in range(5):
                seen.append(is_inside())
                await asyncio.sleep(0)
            return seen

        async def other() -> list[bool]:
            seen = []
            for _ in range(5):
                seen.append(is_inside())
                await asyncio.sleep(0)
            return seen

        async def main() -> list[list[bool]]:
            return list(await asyncio.gather(work(), other(), work(), other()))

        assert asyncio.run(main()) == [[True] * 5, [False] * 5, [True] * 5, [False] * 5]
        assert not _entries.open_entries()

    def test_scope_is_installed_once_for_the_whole_coroutine(self) -> None:
        @remoteio.remote_io
        async def work() -> bool:
            before = os.listdir
            waiting.set()
            await go.wait()
            return os.listdir is before

        async def main() -> bool:
            task = asyncio.create_task(work())
            await waiting.wait()
            assert len(_entries.open_entries()) == 1
            assert not is_inside()
            go.set()
            return await task

        waiting, go = asyncio.Event(), asyncio.Event()
        assert asyncio.run(main())

    def test_exception_passes_and_ends_it(self) -> None:
        @remoteio.remote_io
        async def work() -> None:
            await asyncio.sleep(0)
            raise KeyError("x")

        with pytest.raises(KeyError, match="x"):
            asyncio.run(work())
        assert not _entries.open_entries()

    def test_exception_thrown_in_can_be_handled_inside(self) -> None:
        async def failing() -> None:
            await asyncio.sleep(0)
            raise KeyError

        @remoteio.remote_io
        async def work() -> bool:
            try:
                await failing()
            except KeyError:
                return is_inside()
            return False

        assert asyncio.run(work())

    def test_cancellation_reaches_it_and_its_finally_is_inside(self) -> None:
        seen: list[bool] = []

        @remoteio.remote_io
        async def work() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                seen.append(is_inside())

        async def main() -> None:
            task = asyncio.create_task(work())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        assert seen == [True]
        assert not _entries.open_entries()

    def test_cancellation_that_is_swallowed(self) -> None:
        @remoteio.remote_io
        async def work() -> str:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await asyncio.sleep(0)
                return "swallowed"
            return "slept"

        async def main() -> str:
            task = asyncio.create_task(work())
            await asyncio.sleep(0)
            task.cancel()
            return await task

        assert asyncio.run(main()) == "swallowed"

    def test_timeout(self) -> None:
        @remoteio.remote_io
        async def work() -> None:
            await asyncio.sleep(60)

        with pytest.raises(asyncio.TimeoutError):
            asyncio.run(asyncio.wait_for(work(), 0.01))

    def test_closed_before_its_end(self) -> None:
        seen: list[bool] = []

        @remoteio.remote_io
        async def work() -> None:
            try:
                await asyncio.sleep(0)
            finally:
                seen.append(is_inside())

        coroutine = work()
        coroutine.send(None)
        coroutine.close()
        assert seen == [True]
        assert not _entries.open_entries()

    def test_never_awaited_opens_nothing(self) -> None:
        @remoteio.remote_io
        async def work() -> None:
            """Nothing."""

        coroutine = work()
        assert not _entries.open_entries()
        coroutine.close()

    def test_one_awaits_another(self) -> None:
        @remoteio.remote_io(directory_markers=True)
        async def inner() -> bool:
            await asyncio.sleep(0)
            settings = _stack.current()
            assert settings is not None
            return settings.directory_markers

        @remoteio.remote_io
        async def outer() -> tuple[bool, bool]:
            found = await inner()
            settings = _stack.current()
            assert settings is not None
            return found, settings.directory_markers

        assert asyncio.run(outer()) == (True, False)

    def test_task_made_by_it_is_outside(self) -> None:
        async def child() -> bool:
            return is_inside()

        @remoteio.remote_io
        async def work() -> bool:
            return await asyncio.create_task(child())

        assert asyncio.run(work()) is False

    def test_callable_object_with_an_async_call(self) -> None:
        class Working:
            async def __call__(self) -> bool:
                return is_inside()

        assert asyncio.run(remoteio.remote_io(Working())())

    def test_native_block_around_a_coroutine(self) -> None:
        @remoteio.native_io()
        async def work() -> bool:
            await asyncio.sleep(0)
            return is_inside()

        with remoteio.remote_io():
            assert asyncio.run(work()) is False

"""When what was written is published: how the block ended, however the handle is closed."""

# ruff: noqa: SIM115 - how and when a file is closed is what these programs are about

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import textwrap
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Place


def left_by(place: Place, program: Callable[[str], Any], **options: Any) -> bytes:
    """What ``f`` holds after a program that may raise KeyError; it held ``old`` before."""
    url = place.put("f", b"old")
    with place.scope(**options), contextlib.suppress(KeyError):
        program(url)
    return place.read("f")


# ---- ways in which an exception closes a file


def by_with(url: str) -> None:
    with open(url, "w") as file:
        file.write("new")
        raise KeyError


def by_finally(url: str) -> None:
    file = open(url, "w")
    try:
        file.write("new")
        raise KeyError
    finally:
        file.close()


def by_closing(url: str) -> None:
    with contextlib.closing(open(url, "wb", 0)) as file:
        file.write(b"new")
        raise KeyError


def by_exit_stack(url: str) -> None:
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open(url, "w"))
        file.write("new")
        raise KeyError


def by_generator(url: str) -> None:
    @contextlib.contextmanager
    def writer() -> Iterator[Any]:
        file = open(url, "w")
        try:
            yield file
        finally:
            file.close()

    with writer() as file:
        file.write("new")
        raise KeyError


def inside_another_handler(url: str) -> None:
    try:
        raise ValueError
    except ValueError:
        by_with(url)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "program", [by_with, by_finally, by_closing, by_exit_stack, by_generator, inside_another_handler]
)
def test_an_exception_on_its_way_leaves_the_old(program: Callable[[str], None], memory_place: Place) -> None:
    assert left_by(memory_place, program) == b"old"


# ---- blocks that end well although an exception is about


def opened_in_a_handler(url: str) -> None:
    try:
        raise ValueError
    except ValueError:
        with open(url, "w") as file:
            file.write("new")


def closed_in_the_handler_it_was_opened_in(url: str) -> None:
    try:
        raise ValueError
    except ValueError:
        file = open(url, "w")
        file.write("new")
        file.close()


def an_exception_caught_inside(url: str) -> None:
    with open(url, "w") as file:
        try:
            raise ValueError
        except ValueError:
            file.write("new")


def suppressed_by_an_inner_block(url: str) -> None:
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open(url, "w"))
        stack.enter_context(contextlib.suppress(KeyError))
        file.write("new")
        raise KeyError


def raised_after_the_close(url: str) -> None:
    with open(url, "w") as file:
        file.write("new")
        file.close()
        raise KeyError


def dropped(url: str) -> None:
    open(url, "w").write("new")


def dropped_in_a_cycle(url: str) -> None:
    file: Any = open(url, "w")
    file.write("new")
    file.me = file.buffer.me = file.buffer.raw.me = file
    del file
    gc.collect()


def detached(url: str) -> None:
    file = open(url, "w")
    file.write("new")
    buffer = file.detach()
    del file
    buffer.close()


def detached_twice_and_dropped(url: str) -> None:
    buffer: Any = open(url, "w+").detach()
    raw = buffer.detach()
    del buffer
    raw.write(b"new")
    del raw
    gc.collect()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    "program",
    [
        opened_in_a_handler,
        closed_in_the_handler_it_was_opened_in,
        an_exception_caught_inside,
        suppressed_by_an_inner_block,
        raised_after_the_close,
        dropped,
        dropped_in_a_cycle,
        detached,
        detached_twice_and_dropped,
    ],
)
def test_a_block_that_ends_well_publishes(program: Callable[[str], None], memory_place: Place) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert left_by(memory_place, program) == b"new"


def test_the_exception_at_open_does_not_keep_the_handle_alive(memory_place: Place) -> None:
    gc.collect()
    gc.disable()
    try:
        with memory_place.scope(), pytest.warns(ResourceWarning):
            try:
                raise ValueError
            except ValueError:
                file = open(memory_place.url("f"), "w")
            del file
        assert memory_place.files() == {"f": b""}
    finally:
        gc.enable()


# ---- what is told


def closed_in_a_handler(url: str) -> None:
    file = open(url, "w")
    try:
        raise KeyError
    except KeyError:
        file.close()


def test_a_handle_closed_in_a_handler_is_discarded_with_a_warning(memory_place: Place) -> None:
    with pytest.warns(RuntimeWarning, match="not published: it was closed while KeyError") as caught:
        assert left_by(memory_place, closed_in_a_handler) == b"old"
    assert caught[0].filename == __file__


def abandoned(url: str) -> None:
    def lines() -> Iterator[str]:
        with open(url, "w") as file:
            for line in ("one", "two"):
                file.write(line)
                yield line

    for _ in lines():
        break


def test_a_generator_that_is_left_early_publishes_nothing_and_says_so(memory_place: Place) -> None:
    with pytest.warns(RuntimeWarning, match="not published: the generator"):
        assert left_by(memory_place, abandoned) == b"old"


@pytest.mark.parametrize("program", [by_with, by_closing, by_exit_stack])
def test_a_with_block_needs_no_warning(program: Callable[[str], None], memory_place: Place) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert left_by(memory_place, program) == b"old"


# ---- on_error


@pytest.mark.parametrize(
    ("on_error", "name", "kept"),
    [
        ({"*.log": "commit"}, "a.log", True),
        ({"*.log": "commit"}, "a.txt", False),
        ({"*": "commit", "*.pt": "discard"}, "a.pt", False),
        ({"*.pt": "discard", "*": "commit"}, "a.pt", False),
        ("commit", "a.pt", True),
        ("discard", "a.log", False),
    ],
)
def test_on_error_decides_by_the_name(on_error: Any, name: str, kept: bool, memory_place: Place) -> None:
    with memory_place.scope(on_error=on_error), contextlib.suppress(KeyError), open(memory_place.url(name), "w"):
        raise KeyError
    assert list(memory_place.files()) == [name] * kept


# ---- the end of a program, and its children


def after(body: str, folder: Path, **environment: str) -> tuple[str, str]:
    """What ``f`` holds after a program of its own, and what that said; it held ``old`` before."""
    (folder / "f").write_text("old")
    url = f"{folder.as_uri()}/f"
    head = f"import gc, os, sys\nfrom remoteio import remote_io\nURL = {url!r}\n"
    enter = "" if "remote_io(" in body else "remote_io().__enter__()\n"
    done = subprocess.run(
        [sys.executable, "-c", head + enter + textwrap.dedent(body)], capture_output=True, text=True, timeout=120
    )
    assert sorted(path.name for path in folder.iterdir()) == ["f"]
    return (folder / "f").read_text(), done.stderr


OPEN = "file = open(URL, 'w'); file.write('new')\n"


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (OPEN, "new"),
        (OPEN + "sys.exit(0)", "new"),
        (OPEN + "1 / 0", "old"),
        (OPEN + "raise KeyboardInterrupt", "old"),
        (OPEN + "try: 1 / 0\nexcept ZeroDivisionError: pass", "new"),
        ("remote_io(on_error={'f': 'commit'}).__enter__()\n" + OPEN + "1 / 0", "new"),
        ("with open(URL, 'w') as file:\n    file.write('new'); sys.exit(0)", "old"),
        ("class A: pass\na = A(); a.me = a\na.file = open(URL, 'w'); a.file.write('new')", "new"),
        (OPEN + "os.kill(os.getpid(), 9)", "old"),
    ],
)
def test_a_handle_still_open_at_the_end(body: str, left: str, tmp_path: Path) -> None:
    assert after(body, tmp_path)[0] == left


def test_a_failure_at_the_end_is_told_and_does_not_stop_the_others(tmp_path: Path) -> None:
    body = """
        folder = os.path.dirname(URL[7:])
        os.mkdir(folder + "/gone")
        bad = open(os.path.dirname(URL) + "/gone/x", "w")
        file = open(URL, "w"); file.write("new")
        os.rmdir(folder + "/gone")
    """
    left, said = after(body, tmp_path)
    assert left == "new"
    assert "was not published" in said
    assert "FileNotFoundError" in said


def test_a_thread_finishes_its_file_after_the_main_one(tmp_path: Path) -> None:
    body = """
        import threading, time
        def write():
            file = open(URL, "w")
            time.sleep(0.3)
            file.write("new")
            file.close()
        threading.Thread(target=write).start()
    """
    assert after(body, tmp_path) == ("new", "")


def test_readers_that_are_left_open_end_quietly(tmp_path: Path) -> None:
    body = """
        with open("memory://end/f", "w") as file:
            file.write("x" * 100)
        one = open("memory://end/f"); one.read(1)
        two = open("memory://end/f", "rb"); two.read(1)
        three = open("memory://end/f", "rb", 0); three.read(1)
        sys.keep = two
    """
    assert after(body, tmp_path)[1] == ""


def test_a_store_reached_by_name_is_written_to_at_the_end(s3_place: Place) -> None:
    url = s3_place.put("f", b"old")
    endpoint = os.environ["AWS_ENDPOINT_URL"].replace("127.0.0.1", "localhost")
    program = f"from remoteio import remote_io\nremote_io().__enter__()\nfile = open({url!r}, 'w'); file.write('new')"
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "AWS_ENDPOINT_URL": endpoint})
    assert s3_place.read("f") == b"new"


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_handle_dropped_in_the_stores_own_thread_is_published(s3_place: Place) -> None:
    import threading

    from remoteio import url_to_fs

    url = s3_place.put("f", b"old")
    with s3_place.scope():
        kept = [open(url, "w")]
        kept[0].write("new")
        dropped = threading.Event()
        url_to_fs(url)[0].loop.call_soon_threadsafe(lambda: (kept.clear(), dropped.set()))
        assert dropped.wait(120)
        for thread in threading.enumerate():
            if thread.name == "remoteio-publish":
                thread.join()
    assert s3_place.read("f") == b"new"


FORKED = {
    "ends": "sys.exit(0)",
    "raises": "raise SystemExit(3)",
    "closes": "file.close(); os._exit(0)",
    "drops": "del file; gc.collect(); os._exit(0)",
    "is killed": "os.kill(os.getpid(), 9)",
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("size", [3, 9 * 2**20])
@pytest.mark.parametrize("child", FORKED.values(), ids=FORKED)
def test_a_child_never_publishes_what_it_inherited(child: str, size: int, tmp_path: Path) -> None:
    body = f"""
        file = open(URL, "w")
        file.write("n" * {size})
        if not os.fork():
            {child}
        os.wait()
        print(open(URL).read(), file=sys.stderr)
        file.write("tail")
        file.close()
    """
    left, said = after(body, tmp_path)
    assert left == "n" * size + "tail"
    assert said == "old\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_that_writes_on_is_told(tmp_path: Path) -> None:
    body = """
        file = open(URL, "w", buffering=1)
        if not os.fork():
            try:
                file.write("child\\n")
            except OSError as error:
                print(error.strerror, file=sys.stderr)
            os._exit(0)
        os.wait()
        file.write("parent\\n")
        file.close()
    """
    left, said = after(body, tmp_path)
    assert left == "parent\n"
    assert "open the file again in this one" in said


def test_a_block_left_by_raising_again_what_was_handled_keeps_the_old_file(memory_place: Place) -> None:
    memory_place.put("a.zip", b"old")
    with memory_place.scope(), pytest.raises(KeyError):
        try:
            raise KeyError
        except KeyError:
            with zipfile.ZipFile(memory_place.url("a.zip"), "w") as archive:
                archive.writestr("a", "b")
                raise
    assert memory_place.read("a.zip") == b"old"


def test_a_block_inside_an_except_that_ends_well_is_published(memory_place: Place) -> None:
    with memory_place.scope():
        try:
            raise KeyError
        except KeyError:
            with zipfile.ZipFile(memory_place.url("a.zip"), "w") as archive:
                archive.writestr("a", "b")
    assert memory_place.read("a.zip").startswith(b"PK")

"""``logging`` on a URL, and what the end of the last scope tells of threads."""

from __future__ import annotations

import logging
import logging.handlers
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import remoteio
from tests.conftest import Place


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """A logger of this test's own."""
    made = logging.getLogger("tests.test_logging")
    made.propagate = False
    made.setLevel(logging.INFO)
    yield made
    for handler in list(made.handlers):
        made.removeHandler(handler)
        handler.close()


def test_a_log_file_is_written(place: Place, logger: logging.Logger) -> None:
    with place.scope(also="paths"):
        handler = logging.FileHandler(place.url("run.log"))
        logger.addHandler(handler)
        logger.info("one")
        logger.info("two")
        handler.close()
    assert place.files() == {"run.log": b"one\ntwo\n"}


CONFIGURED = """
import logging, sys
from remoteio import remote_io
with remote_io():
    logging.basicConfig(filename=sys.argv[1], level=logging.INFO)
    logging.info("hello")
    logging.shutdown()
"""


def test_basic_config_opens_its_file_while_it_holds_the_lock_of_logging(s3_place: Place) -> None:
    done = subprocess.run([sys.executable, "-c", CONFIGURED, s3_place.url("run.log")], timeout=120, check=False)
    assert done.returncode == 0
    assert s3_place.files() == {"run.log": b"INFO:root:hello\n"}


def test_a_log_file_is_appended_to(place: Place, logger: logging.Logger) -> None:
    with place.scope(also="paths"):
        for text in ("one", "two"):
            handler = logging.FileHandler(place.url("run.log"), delay=True)
            logger.addHandler(handler)
            logger.info(text)
            logger.removeHandler(handler)
            handler.close()
    assert place.files() == {"run.log": b"one\ntwo\n"}


def test_log_files_are_rotated(place: Place, logger: logging.Logger) -> None:
    with place.scope(also="paths"):
        handler = logging.handlers.RotatingFileHandler(place.url("run.log"), maxBytes=10, backupCount=2)
        logger.addHandler(handler)
        for number in range(5):
            logger.info("line %d", number)
        handler.close()
    assert place.files() == {"run.log": b"line 4\n", "run.log.1": b"line 3\n", "run.log.2": b"line 2\n"}


def test_log_files_are_rotated_by_time(place: Place, logger: logging.Logger) -> None:
    with place.scope(also="paths"):
        handler = logging.handlers.TimedRotatingFileHandler(place.url("run.log"), when="h", backupCount=1)
        logger.addHandler(handler)
        logger.info("one")
        handler.doRollover()
        logger.info("two")
        handler.close()
    files = place.files()
    assert files.pop("run.log") == b"two\n"
    assert list(files.values()) == [b"one\n"]


def test_a_log_is_kept_that_is_full_while_an_exception_is_handled(place: Place, logger: logging.Logger) -> None:
    with place.scope(also="paths"):
        handler = logging.handlers.RotatingFileHandler(place.url("run.log"), maxBytes=10, backupCount=1)
        logger.addHandler(handler)
        logger.info("before")
        try:
            raise LookupError
        except LookupError:
            logger.error("failed")
        handler.close()
    assert place.files() == {"run.log": b"failed\n", "run.log.1": b"before\n"}


@pytest.mark.parametrize("also", [None, "paths"])
def test_a_log_is_published_when_its_block_fails(memory_place: Place, logger: logging.Logger, also: Any) -> None:
    with pytest.raises(LookupError), memory_place.scope(also=also):
        handler = logging.FileHandler(memory_place.url("run.log"))
        logger.addHandler(handler)
        try:
            logger.info("one")
            raise LookupError
        finally:
            handler.close()
    assert memory_place.files() == {"run.log": b"one\n"}


@pytest.mark.parametrize("also", [None, "paths"])
def test_what_a_scope_says_of_its_files_holds_for_logs(memory_place: Place, logger: logging.Logger, also: Any) -> None:
    with memory_place.scope(also=also, on_error={"*.log": "discard"}):
        handler = logging.FileHandler(memory_place.url("run.log"))
        logger.addHandler(handler)
        logger.info("one")
        with pytest.warns(RuntimeWarning, match="not published"):
            try:
                raise LookupError
            except LookupError:
                handler.close()
    assert memory_place.files() == {}


# ---- threads that outlive the last scope


def _ended_with(work: Any) -> list[str]:
    """The messages of the ResourceWarnings of a scope in which something is done."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with remoteio.remote_io():
            work()
    return [str(warning.message) for warning in caught if warning.category is ResourceWarning]


def test_threads_that_are_still_inside_are_named() -> None:
    leave = threading.Event()
    threads = [threading.Thread(target=leave.wait, name=f"loader-{n}") for n in range(2)]

    def work() -> None:
        for thread in threads:
            thread.start()

    (message,) = _ended_with(work)
    leave.set()
    for thread in threads:
        thread.join()
    assert "loader-0, loader-1" in message


def test_threads_that_have_ended_are_not_named() -> None:
    def work() -> None:
        thread = threading.Thread(target=time.sleep, args=(0,))
        thread.start()
        thread.join()

    assert _ended_with(work) == []


def test_threads_that_were_never_inside_are_not_named() -> None:
    leave = threading.Event()
    before = threading.Thread(target=leave.wait)
    before.start()
    outside = threading.Thread(target=leave.wait)

    def work() -> None:
        with remoteio.native_io():
            outside.start()

    messages = _ended_with(work)
    leave.set()
    before.join()
    outside.join()
    assert messages == []


def test_the_last_scope_alone_tells() -> None:
    leave = threading.Event()
    thread = threading.Thread(target=leave.wait, name="loader")

    def work() -> None:
        assert _ended_with(thread.start) == []

    (message,) = _ended_with(work)
    leave.set()
    thread.join()
    assert "loader" in message


def test_a_pools_worker_is_named_while_it_works_inside() -> None:
    leave = threading.Event()
    with ThreadPoolExecutor(1, "worker") as pool:
        (message,) = _ended_with(lambda: pool.submit(leave.wait))
        leave.set()
    assert "worker_0" in message


def test_an_idle_worker_is_not_named() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert _ended_with(lambda: pool.submit(time.sleep, 0).result()) == []


def test_it_is_told_at_the_line_of_the_scope() -> None:
    leave = threading.Event()
    thread = threading.Thread(target=leave.wait)
    with pytest.warns(ResourceWarning) as caught, remoteio.remote_io():
        thread.start()
    leave.set()
    thread.join()
    assert caught[0].filename == __file__


def test_the_thread_of_progress_bars_is_not_named() -> None:
    leave = threading.Event()
    monitor = threading.Thread(target=leave.wait, name="tqdm_monitor", daemon=True)
    messages = _ended_with(monitor.start)
    leave.set()
    monitor.join()
    assert messages == []


# ---- what the stores' own libraries log meanwhile

BUSY = """
import logging, os, sys
from remoteio import remote_io
level, how, url = sys.argv[1:]
with remote_io(flush_interval_s=0 if how == "flush" else None):
    os.path.exists(url)  # the store is in use, and its libraries log whatever they do
    logging.basicConfig(filename=f"{url}/run.log", level=level)
    logging.warning("said")
    if how == "shutdown":
        logging.shutdown()
    elif how == "use":
        open(f"{url}/other", "w").close()
"""


@pytest.mark.parametrize("how", ["at-exit", "shutdown", "flush", "use"])
@pytest.mark.parametrize("level", ["INFO", "DEBUG"])
def test_libraries_may_log_into_the_file_that_is_being_published(s3_place: Place, level: str, how: str) -> None:
    command = [sys.executable, "-c", BUSY, level, how, s3_place.base]
    done = subprocess.run(command, timeout=120, check=True, capture_output=True, text=True)
    assert "Logging error" not in done.stderr
    assert b"WARNING:root:said\n" in s3_place.files()["run.log"]


@pytest.mark.parametrize("interval", [None, 0.01])
def test_threads_log_while_another_publishes(s3_place: Place, logger: logging.Logger, interval: float | None) -> None:
    with s3_place.scope(flush_interval_s=interval):
        handler = logging.FileHandler(s3_place.url("run.log"), "w")
        logger.addHandler(handler)

        def work(name: int) -> None:
            for number in range(50):
                logger.info("%d.%d", name, number)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        handler.close()
    lines = s3_place.files()["run.log"].decode().split()
    assert sorted(lines) == sorted(f"{name}.{number}" for name in range(3) for number in range(50))


def test_a_log_that_is_closed_while_another_thread_logs_keeps_what_it_had(
    s3_place: Place, logger: logging.Logger
) -> None:
    leave = threading.Event()
    with s3_place.scope():
        handler = logging.FileHandler(s3_place.url("run.log"), "w")
        logger.addHandler(handler)
        for number in range(50):
            logger.info("early %d", number)

        def work() -> None:
            while not leave.is_set():
                logger.info("late")

        thread = threading.Thread(target=work)
        thread.start()
        handler.acquire()  # as a handler is closed: under its lock
        handler.close()
        logger.removeHandler(handler)
        handler.release()
        leave.set()
        thread.join()
    assert s3_place.files()["run.log"].count(b"early") == 50

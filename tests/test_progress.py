from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import sys
import termios
import threading
from typing import Any

import pytest

from remoteio._progress import Meter, Progress


class Heard:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.files = 0

    def add(self, count: int) -> None:
        self.counts.append(count)

    def file_done(self) -> None:
        self.files += 1


def test_a_callable_gets_done_total_and_url() -> None:
    calls: list[tuple[int, int, str]] = []
    progress = Progress(lambda *call: calls.append(call), "s3://b/k", 30, 1, "fetching")
    progress.add(10)
    progress.add(20)
    assert calls == [(0, 30, "s3://b/k"), (10, 30, "s3://b/k"), (30, 30, "s3://b/k")]


def test_bytes_that_go_again_are_taken_back() -> None:
    calls: list[int] = []
    progress = Progress(lambda done, total, url: calls.append(done), "s3://b/k", 30, 1, "fetching")
    progress.add(20)
    progress.add(-5)
    assert calls[-1] == 15


def test_no_bar_is_drawn_into_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(None, "s3://b/k", 30, 2, "fetching")
    progress.add(30)
    progress.close()
    assert capsys.readouterr() == ("", "")


def test_true_draws_bars_of_bytes_and_files(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(True, "s3://b/k", 30, 2, "fetching")
    progress.add(30)
    progress.file_done()
    progress.close()
    drawn = capsys.readouterr().err
    assert "fetching s3://b/k" in drawn
    assert "files" in drawn


def test_false_draws_nothing_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _drawn_on_a_terminal(monkeypatch, False) == b""


def test_none_draws_bars_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert b"fetching" in _drawn_on_a_terminal(monkeypatch, None)


def _drawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch, wish: bool | None) -> bytes:
    reading, writing = pty.openpty()
    fcntl.ioctl(writing, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with os.fdopen(writing, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        progress = Progress(wish, "s3://b/k", 30, 1, "fetching")
        progress.add(30)
        progress.close()
        terminal.flush()
        os.set_blocking(reading, False)
        try:
            return os.read(reading, 4096)
        except BlockingIOError:
            return b""
        finally:
            os.close(reading)


def test_without_tqdm_true_is_silent(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    progress = Progress(True, "s3://b/k", 30, 2, "fetching")
    progress.add(30)
    progress.close()
    assert capsys.readouterr() == ("", "")


def test_a_closed_stderr_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    Progress(None, "s3://b/k", 30, 1, "fetching").add(30)


def test_notes_of_other_threads_are_told_in_the_one_that_asks() -> None:
    meter, heard, told_in = Meter(), Heard(), []

    def work() -> None:
        meter.moved(5)
        meter.moved(6)
        meter.finished("/tmp/x")

    other = threading.Thread(target=work)
    other.start()
    other.join()

    def done(path: str) -> Any:
        told_in.append((path, threading.current_thread()))

    meter.tell(heard, done)
    assert (heard.counts, heard.files) == ([11], 1)
    assert told_in == [("/tmp/x", threading.current_thread())]


def test_a_note_is_told_once() -> None:
    meter, heard = Meter(), Heard()
    meter.moved(5)
    meter.tell(heard, None)
    meter.tell(heard, None)
    assert heard.counts == [5]

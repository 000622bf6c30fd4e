"""Whether what was written is published: how a handle's block ended.

A handle remembers which exception was being handled when it was opened. At ``close()``
another one means that the block did not end well, and nothing is published. This holds
through everything that closes a file while an exception passes: ``with``, ``finally``,
``contextlib.closing``, ``ZipFile``, ``tarfile``, ``gzip``.
"""

from __future__ import annotations

import fnmatch
import itertools
import opcode
import os
import sys
import threading
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

from remoteio import _urls
from remoteio._settings import Settings
from remoteio._urls import Url

__all__ = ["Ending", "in_io_thread", "start_thread", "warn_unclosed"]

IO_THREAD = "fsspecIO"
_MARK = "_remoteio_seen_at_open"
_marks = itertools.count(1)


class Ending:
    """How one handle's block ends.

    Attributes:
        owner: The process that opened the handle; no other publishes it.
    """

    def __init__(self, url: Url, settings: Settings) -> None:
        self.owner = os.getpid()
        self._url = url
        self._settings = settings
        self._mark = _mark(sys.exc_info()[1])
        self._verdict: bool | None = None

    @property
    def is_foreign(self) -> bool:
        """Whether this is another process than the one that opened the handle: a child made by ``fork``."""
        return os.getpid() != self.owner

    @property
    def decided(self) -> bool:
        """Whether the handle is being closed, and how is known."""
        return self._verdict is not None

    def publish(self) -> bool:
        """Whether to publish; undecided handles end well."""
        return not self.is_foreign and self._verdict is not False

    def drop(self) -> None:
        """The handle was dropped without being closed: published, as a local file is flushed then."""
        self._decide(True)

    def discard(self) -> None:
        """Publish nothing, whatever else is decided."""
        self._verdict = False

    def leave(self, error: BaseException | None) -> None:
        """The handle's own ``with`` block ended, by this exception or well."""
        if self._verdict is None:
            self._decide(error is None or self._commits_on_error())
            if isinstance(error, GeneratorExit) and not self._verdict:
                self._warn("the generator that was writing it was closed before its end")

    def close(self) -> None:
        """``close()`` was called: the exception being handled tells whether all is well."""
        if self._verdict is not None:
            return
        error = sys.exc_info()[1]
        if error is None or (_mark_of(error) == self._mark and not _is_leaving_by(error)):
            self._decide(True)
            return
        self._decide(self._commits_on_error())
        if not self._verdict and not self.is_foreign and not _in_exit_method(error):
            self._warn(f"it was closed while {type(error).__name__} was being handled")

    def end_of_program(self, failed: bool) -> None:
        """The program ends and the handle is still open."""
        if self._verdict is None:
            self._decide(not failed or self._commits_on_error())

    def _decide(self, publish: bool) -> None:
        if self._verdict is None:
            self._verdict = publish

    def _commits_on_error(self) -> bool:
        """What ``on_error`` says of this file: of the patterns that match its name, the longest decides."""
        name = _urls.basename(self._url.rest)
        matching = [pattern for pattern in self._settings.on_error if fnmatch.fnmatchcase(name, pattern)]
        return bool(matching) and self._settings.on_error[max(matching, key=len)] == "commit"

    def warn_of_map(self) -> None:
        """The handle is closed, and a memory map of it is alive."""
        message = f"{self._url.shown} is closed and still mapped: what is written to the map from now on is lost"
        warnings.warn(message, RuntimeWarning, stacklevel=_frames_to_user())

    def _warn(self, why: str) -> None:
        message = f"{self._url.shown} was not published: {why}"
        warnings.warn(message, RuntimeWarning, stacklevel=_frames_to_user())


def _mark(error: BaseException | None) -> object:
    """Make an exception known again without holding on to it (its traceback would keep the handle alive)."""
    if error is None:
        return None
    return error.__dict__.setdefault(_MARK, next(_marks)), _times_raised(error)


def _mark_of(error: BaseException) -> object:
    # 0 is nobody's mark, and None that of a handle that was opened while all was well
    return error.__dict__.get(_MARK, 0), _times_raised(error)


def _times_raised(error: BaseException) -> int:
    """Grows when an exception that was being handled is raised once more, inside the block of the handle."""
    count = 0
    trace = error.__traceback__
    while trace is not None:
        count += 1
        trace = trace.tb_next
    return count


def _is_leaving_by(error: BaseException) -> bool:
    """Whether a ``with`` block ends by this very exception: an ``__exit__`` that was handed it is calling us."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in ("__exit__", "__aexit__"):
            given = frame.f_locals.values()
            if any(value is error or (isinstance(value, tuple) and error in value) for value in given):
                return True
        frame = frame.f_back
    return False


def _in_exit_method(error: BaseException) -> bool:
    """Whether a ``with`` block ends and closes us: then the exception goes on and tells everything itself."""
    passed = set()
    trace = error.__traceback__
    while trace is not None:
        passed.add(trace.tb_frame)
        trace = trace.tb_next
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame not in passed:
        if frame.f_code.co_name in ("__exit__", "__aexit__"):
            return True
        frame = frame.f_back
    # An __exit__ made in C has no frame; but the block that handles the exception stands at its call.
    return frame is not None and frame.f_code.co_code[frame.f_lasti] == opcode.opmap["WITH_EXCEPT_START"]


def _frames_to_user() -> int:
    """The ``stacklevel``, for a warning of the calling function, of the first frame outside of this package."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "remoteio":
        frame = frame.f_back
        level += 1
    return level


def warn_unclosed(source: object) -> None:
    """Say, as a local file does, that a handle was dropped without being closed."""
    # Resources warnings are often errors in tests; here one can only be printed, as from any finaliser.
    try:
        warnings.warn(f"unclosed file {source!r}", ResourceWarning, stacklevel=_frames_to_user(), source=source)
    except Warning:
        sys.unraisablehook(_unraisable(source))


def _unraisable(source: object) -> Any:
    kind, value, trace = sys.exc_info()
    from types import SimpleNamespace

    return SimpleNamespace(exc_type=kind, exc_value=value, exc_traceback=trace, err_msg=None, object=source)


def in_io_thread() -> bool:
    """Whether this is the thread in which the stores' own work runs; it must never wait for itself."""
    return threading.current_thread().name == IO_THREAD


def start_thread(work: Callable[[], None]) -> None:
    """Do something in a thread that the end of the program waits for."""
    threading.Thread(target=work, name="remoteio-publish").start()

"""``open`` on a URL: arguments as the built-in takes them, and the handle that it would give."""

from __future__ import annotations

import errno
import io
import locale
import logging
import os
import stat
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import IO, Any, NoReturn, cast

from remoteio import _handles, _lookup, _probe
from remoteio._publish import IO_THREAD, Ending
from remoteio._reader import BUFFER_SIZE, LocalReader, RangedReader, RawReader, StreamedReader
from remoteio._settings import Settings
from remoteio._spool import Spool
from remoteio._store import Info
from remoteio._stores import Location
from remoteio._urls import Url, redact

__all__ = ["open"]

_BINARY_LINES = "line buffering (buffering=1) isn't supported in binary mode, the default buffer size will be used"


def open(
    file: Url,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: Callable[[str, int], int] | None = None,
    *,
    settings: Settings,
    stacklevel: int = 2,
) -> IO[Any]:
    """Open a URL as the built-in opens a local file.

    Args:
        file: The URL.
        mode: As for the built-in, in any order of letters.
        buffering: As for the built-in; -1 takes a buffer that suits a network.
        encoding: As for the built-in.
        errors: As for the built-in.
        newline: As for the built-in.
        closefd: Must be true, as for the built-in with a name.
        opener: Must be None: there is no descriptor that it could return.
        settings: The scope's options.
        stacklevel: The stacklevel that a warning given in this very function needs to name
            the caller's line.

    Returns:
        A ``TextIOWrapper``, ``BufferedReader``, ``BufferedWriter``, ``BufferedRandom`` or
        ``RawIOBase``, as the built-in would.

    Raises:
        OSError: As the built-in: missing, a directory, below a file, there already, denied.
        ValueError: As the built-in; also for an ``opener``.
        LookupError: There is no such encoding.

    Source:
        https://docs.python.org/3/library/functions.html#open
    """
    _check_arguments(mode, buffering, encoding, errors, newline, closefd)
    if opener is not None:
        raise ValueError(f"opener cannot be used with a URL, which has no file descriptor: {file.shown}")
    binary = "b" in mode
    if binary and buffering == 1:
        warnings.warn(_BINARY_LINES, RuntimeWarning, stacklevel)
    location = _lookup.locate(file, settings)
    writes = any(letter in mode for letter in "wax+")  # what is left reads, also the "U" of Python 3.10
    if writes:
        settings = _for_caller(location, settings, _caller())
    found = _probe.before_writing(location, mode) if writes else None
    # The handle is built in a call of its own, after everything that can fail: an exception on the way here
    # may have left a reference cycle behind, which must not hold on to the handle.
    raw = _open_spool(location, mode, found, settings) if writes else _open_reader(location, settings)
    try:
        return _layer(raw, mode, buffering, encoding, errors, newline, stacklevel + 1)
    except BaseException:
        if isinstance(raw, Spool):
            raw.ending.discard()
        raw.close()
        raise


def _caller() -> FrameType:
    """The frame of the function that calls ``open``."""
    frame = sys._getframe(2)
    # The function that stands in the built-in's place has globals of its own, without a name.
    while frame.f_back is not None and frame.f_globals.get("__name__", "remoteio").partition(".")[0] == "remoteio":
        frame = frame.f_back
    return frame


def _for_caller(location: Location, settings: Settings, caller: FrameType) -> Settings:
    """What holds for a file that is written, by what opens it.

    Raises:
        OSError: numpy opens it by its name, to change it by a memory map that outlives the file.
    """
    module, function = caller.f_globals.get("__name__", ""), caller.f_code.co_name
    if module == "logging" and function == "_open":
        _leave_out_the_stores(caller.f_locals["self"])
        # A log is closed wherever it is full, in the middle of an ``except`` too, and what was logged until an error
        # is the last thing that should be lost with it.
        return replace(settings, on_error={"*": "commit", **settings.on_error})
    by_name = function == "open_memmap" or (function == "__new__" and module.endswith("memmap"))
    if by_name and module.startswith("numpy"):
        detail = "numpy maps it and closes it, so that no change could be published: give staged_local's path to numpy"
        raise location.error(errno.ENOTSUP, detail)
    return settings


def _leave_out_the_stores(handler: logging.Handler) -> None:
    """Keep what the stores' libraries log in their own thread out of a log on a store.

    That thread would wait for whoever publishes the log, and is waited for. The handler is being made: the list of its
    filters is not there yet.
    """

    def not_of_the_stores(record: logging.LogRecord) -> Any:
        return record.threadName != IO_THREAD and type(handler).filter(handler, record)

    handler.filter = not_of_the_stores  # type: ignore[method-assign]


class _Accepted(Exception):
    """The built-in took the arguments, and was about to open the file."""


def _refuse_to_open(path: Any, flags: int) -> NoReturn:
    raise _Accepted


def _check_arguments(mode: Any, buffering: Any, encoding: Any, errors: Any, newline: Any, closefd: Any) -> None:
    """Have the built-in itself judge the arguments, so that the classes, texts and order of its errors are right."""
    if isinstance(buffering, int) and buffering == 1:
        buffering = -1  # its warning would name the wrong line; `open` gives it
    try:
        io.open(os.devnull, mode, buffering, encoding, errors, newline, closefd, _refuse_to_open)  # noqa: UP020, SIM115
    except _Accepted:
        return


# ---- the raw layer


def _open_reader(location: Location, settings: Settings) -> io.RawIOBase:
    name = _name(location.url)
    if location.url.is_local:
        return _open_local(location, name)
    info = _lookup.file(location)
    streamed = info.size is None or not location.store.can_range
    reader = StreamedReader(location, name) if streamed else RangedReader(location, info, name)
    # numpy reads through the descriptor, and libraries of its kind are that table's.
    reader.gives_descriptor = "torch" in settings.also
    return reader


def _open_local(location: Location, name: Any) -> io.RawIOBase:
    try:
        return LocalReader(location.url.local_path, name)
    except OSError as error:
        number = error.errno or errno.EIO
    raise location.error(number)


def _open_spool(location: Location, mode: str, found: Info | None, settings: Settings) -> io.RawIOBase:
    if location.url.is_local and _is_device(location.key):
        return _open_device(location, mode)
    spool = Spool(location, _name(location.url), mode, found, settings, Ending(location.url, settings))
    _handles.cover(spool, spool)
    return spool


def _is_device(path: str) -> bool:
    """Whether a local path is something that is written to, never replaced."""
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False


def _open_device(location: Location, mode: str) -> io.RawIOBase:
    raw = io.FileIO(location.key, "".join(letter for letter in mode if letter not in "bt"))
    raw.name = _name(location.url)
    return raw


class _SecretName(str):
    """A name with credentials in it: the caller's own text, but not to be shown."""

    def __repr__(self) -> str:
        return repr(redact(str(self)))


def _name(url: Url) -> Any:
    """The ``name`` of the handle: what the caller gave, as a local file keeps it."""
    name = os.fspath(url.given)
    if isinstance(name, str) and redact(name) != name:
        return _SecretName(name)
    return name


# ---- the layers above


def _layer(
    raw: io.RawIOBase,
    mode: str,
    buffering: int,
    encoding: str | None,
    errors: str | None,
    newline: str | None,
    stacklevel: int,
) -> IO[Any]:
    """Put the layers on a raw file that the built-in puts on a local one, in its order."""
    binary = "b" in mode
    lines = buffering == 1
    if buffering == 0:
        if not binary:
            raise ValueError("can't have unbuffered text I/O")
        if isinstance(raw, RawReader):
            raw.unbuffered = True
        return cast(IO[Any], raw)
    buffer = _buffered(raw, mode, BUFFER_SIZE if buffering < 0 or lines else buffering)
    if binary:
        return cast(IO[Any], buffer)
    if encoding is None and sys.flags.warn_default_encoding:
        # The built-in's own warning would name the line below.
        warnings.warn("'encoding' argument not specified", EncodingWarning, stacklevel)
    if encoding in (None, "locale") and sys.version_info < (3, 11):
        # Python 3.10 would ask for the file's descriptor, to see whether it is a terminal.
        encoding = locale.getpreferredencoding(False)
    elif encoding is None and sys.flags.warn_default_encoding:
        encoding = "utf-8" if sys.flags.utf8_mode else "locale"
    cls = _handles.SpoolText if isinstance(raw, Spool) else io.TextIOWrapper
    text = cls(buffer, encoding, errors, newline, lines)
    text.mode = mode  # type: ignore[misc]  # the built-in sets it too
    if isinstance(raw, Spool):
        _handles.cover(raw, text)
    return text


def _buffered(raw: Any, mode: str, size: int) -> Any:
    if not isinstance(raw, Spool):
        if "+" in mode:
            return io.BufferedRandom(raw, size)
        return (io.BufferedWriter if raw.writable() else io.BufferedReader)(raw, size)
    layer = (_handles.SpoolRandom if "+" in mode else _handles.SpoolWriter)(raw, size)
    _handles.cover(raw, layer)
    return layer

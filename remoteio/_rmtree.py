"""Removing a whole tree, with the callbacks of ``shutil.rmtree``."""

from __future__ import annotations

import errno
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from remoteio import _lookup
from remoteio._settings import Settings
from remoteio._store import Info
from remoteio._stores import Location
from remoteio._urls import Url

# (the os function that failed, the path it failed on, the exception)
OnExc = Callable[[Callable[..., Any], Any, BaseException], Any]
OnError = Callable[[Callable[..., Any], Any, Any], Any]

# Since Python 3.13 a null byte in the path is not handed to the callbacks any more.
_HANDED: tuple[type[Exception], ...] = (OSError,) if sys.version_info >= (3, 13) else (OSError, ValueError)


def rmtree(
    path: Url,
    ignore_errors: bool = False,
    onerror: OnError | None = None,
    *,
    onexc: OnExc | None = None,
    dir_fd: int | None = None,
    settings: Settings,
) -> None:
    """Delete everything below a directory, and the directory.

    Args:
        path: The directory.
        ignore_errors: Go on after failures and say nothing of them.
        onerror: Called for each failure with the function, the path and ``sys.exc_info()``.
        onexc: Called for each failure with the function, the path and the exception;
            where both are given it alone is called.
        dir_fd: Refused.
        settings: Those of the scope.

    Raises:
        FileNotFoundError: There is nothing.
        NotADirectoryError: It is a file.
        PermissionError: It is a bucket or the root of a store, and the scope was not
            entered with ``allow_bucket_delete=True``. With it the bucket is emptied, and stays.
        NotImplementedError: ``dir_fd`` was given.

    Source: ``shutil.rmtree`` of the running Python: which function, path and exception
    its callbacks get.
    """
    _lookup.refuse_dir_fd(dir_fd, path)
    given = os.fspath(path.given)
    shown = os.fsdecode(given) if isinstance(path.given, bytes) else path.given
    report = _reporter(ignore_errors, onerror, onexc)
    try:
        location = _lookup.locate(path, settings)
        entries = _entries(location)
    except _HANDED as error:
        report(os.lstat, shown, error)
        return
    if entries is None:
        # A file: it can be opened, but neither listed nor removed as a directory.
        for function in (os.scandir, os.rmdir):
            _raise_into(report, function, shown, location.error(errno.ENOTDIR))
        return
    if location.is_root and not settings.allow_bucket_delete:
        detail = "a bucket or the root of a store is emptied only under remote_io(allow_bucket_delete=True)"
        _raise_into(report, os.rmdir, shown, location.error(errno.EPERM, detail))
        return
    _remove(location, entries, os.fsdecode(given), shown, report)


def _reporter(ignore_errors: bool, onerror: OnError | None, onexc: OnExc | None) -> OnExc:
    """The one function that gets every failure, while it is being handled."""
    if ignore_errors:
        return _ignore
    if onexc is not None:
        return onexc
    if onerror is None:
        return _reraise
    old_style = onerror

    def with_exc_info(function: Callable[..., Any], path: Any, error: BaseException) -> None:
        old_style(function, path, (type(error), error, error.__traceback__))

    return with_exc_info


def _ignore(function: Callable[..., Any], path: Any, error: BaseException) -> None:
    """Let a failure pass."""


def _reraise(function: Callable[..., Any], path: Any, error: BaseException) -> None:
    raise error


def _raise_into(report: OnExc, function: Callable[..., Any], path: Any, error: OSError) -> None:
    """Hand over a failure as if it were raised here: callbacks may look at ``sys.exc_info()`` or re-raise."""
    try:
        raise error
    except OSError as raised:
        report(function, path, raised)


def _entries(location: Location) -> Iterator[Info] | None:
    """Everything below a directory; None for a file.

    Raises:
        FileNotFoundError: There is nothing.
        NotADirectoryError: A file is used as a directory.
    """
    walked = location.store.walk(location.key)
    first = next(walked, None)
    if first is not None:
        return itertools.chain((first,), walked)
    return iter(()) if _lookup.entry(location).is_dir else None


def _remove(location: Location, entries: Iterator[Info], text: str, shown: Any, report: OnExc) -> None:
    """Delete what is listed, page by page, and go on after failures as far as the callback lets it."""
    store, start = location.store, f"{location.key.rstrip('/')}/" if location.key else ""
    kept: list[str] = []
    failures = store.delete_many(store.with_folders(location.key, (info.key for info in entries)))
    while True:
        try:
            failed = next(failures, None)
        except OSError as error:  # the listing broke off; what the callbacks raise below goes its way
            report(os.scandir, shown, error)
            return
        if failed is None:
            break
        kept.append(failed[0].removeprefix(start))
        _raise_into(report, os.unlink, os.path.join(text, kept[-1]), failed[1])
    try:
        store.forget_directories(location.key)
    except OSError as error:
        report(os.rmdir, shown, error)
    if kept and report is not _ignore:
        _report_kept(location, kept, text, shown, report)
    elif location.url.rest.rpartition("/")[2] == ".":  # a directory is not removed by this name of it
        _raise_into(report, os.rmdir, shown, location.error(errno.EINVAL))


def _report_kept(location: Location, kept: Iterable[str], text: str, shown: Any, report: OnExc) -> None:
    """For every directory that still holds something, tell the failure that removing it would have met."""
    folders = {""}
    for name in kept:
        folder = name.rstrip("/")
        while "/" in folder:
            folder = folder.rpartition("/")[0]
            folders.add(folder)
    for folder in sorted(folders, key=lambda one: (-len(one.split("/")), not one, one)):
        one = location.child(folder) if folder else location
        if one.store.is_prefix(one.key):  # unless the callback has removed what was in it
            path = os.path.join(text, folder) if folder else shown
            _raise_into(report, os.rmdir, path, one.error(errno.ENOTEMPTY))

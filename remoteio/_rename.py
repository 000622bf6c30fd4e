"""``os.rename`` and ``os.replace`` on a URL: copied on the server, verified, and only then removed.

At no moment are both the old and the new gone. What stood at the new name stays until the
copy has taken its place, whole.

Source: rename(2) on Linux, for what is refused and with which errno.
"""

from __future__ import annotations

import errno
import os
import threading
from typing import Any

from remoteio import _lookup, _probe, _vanished
from remoteio._settings import Settings
from remoteio._store import Info
from remoteio._stores import Location, resolve
from remoteio._urls import Url, redact

__all__ = ["rename"]

NAMED = 20  # names in a message


def rename(
    src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None, settings: Settings
) -> None:
    """Move a file or a directory within one store; a file that is there is replaced.

    A file costs one copy on the server. Of a directory every file is copied first, and the
    old ones are removed when all are there: a failure before that takes the copies back.

    Args:
        src: What is moved.
        dst: Its new name. The directory it lies in need not exist.
        src_dir_fd: Refused.
        dst_dir_fd: Refused.
        settings: Those of the scope.

    Raises:
        FileNotFoundError: There is nothing to move, or the bucket is missing.
        IsADirectoryError: A file would replace a directory.
        NotADirectoryError: A directory would replace a file, or a file is used as a directory.
        OSError: EXDEV between two stores, or a store and the local disk, as between two
            disks; ENOTEMPTY where a directory would replace one that holds something; EINVAL
            into itself; any other where the store failed. The message then says what was moved.
    """
    for url, descriptor in ((src, src_dir_fd), (dst, dst_dir_fd)):
        if isinstance(url, Url):
            _lookup.refuse_dir_fd(descriptor, url)
    try:
        _rename(src, dst, settings)
    except OSError as error:
        if error.filename2 is None:
            error.filename, error.filename2 = _shown(src), _shown(dst)
        raise


def _shown(path: Any) -> Any:
    return path.shown if isinstance(path, Url) else os.fspath(path)


def _rename(src: Any, dst: Any, settings: Settings) -> None:
    if not (isinstance(src, Url) and isinstance(dst, Url)) or src.is_local or dst.is_local:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    source, target = _lookup.locate(src, settings), resolve(dst, settings)
    if not source.store.same_store(target.store):
        raise source.error(errno.EXDEV)
    try:
        info = _lookup.entry(source)
    except FileNotFoundError:
        _refuse_file_above(target)  # rename(2) resolves both names before it looks what they are
        raise
    if source.is_root or target.is_root:
        raise source.error(errno.EBUSY, "a bucket or the root of a store keeps its name and place")
    if info.is_dir:
        _rename_directory(source, target)
    else:
        _rename_file(source, target, info)


def _refuse_file_above(target: Location) -> None:
    if _lookup.file_above(target) is not None:
        raise target.error(errno.ENOTDIR)


# ---- a file


def _rename_file(source: Location, target: Location, info: Info) -> None:
    if target.wants_directory:
        raise target.error(errno.ENOTDIR)
    if source.key == target.key:
        return
    if source.key.startswith(f"{target.key}/"):
        raise target.error(errno.ENOTEMPTY)
    _probe.before_writing(target, "wb")
    if source.store.move(source.key, target.key):
        return
    target.store.copy(source.key, target.key, info)
    _verify(target, info, target.store.head(target.key))
    _remove_source(source, target)


def _verify(target: Location, wanted: Info, found: Info | None) -> None:
    if found is None or (wanted.size is not None and found.size != wanted.size):
        size = "nothing" if found is None else f"{found.size} bytes"
        raise target.error(errno.EIO, f"the copy was to have {wanted.size} bytes and has {size}; nothing was removed")


def _remove_source(source: Location, target: Location) -> None:
    try:
        source.store.delete(source.key)
    except OSError as error:
        error.strerror = f"{error.strerror} (it was copied, and the old one could not be removed)"
        raise
    _vanished.note_removal(source)


# ---- a directory


def _rename_directory(source: Location, target: Location) -> None:
    if source.key == target.key:
        return
    _refuse_file_above(target)
    if target.key.startswith(f"{source.key}/"):
        raise source.error(errno.EINVAL)
    _check_place(target)
    if source.store.move(source.key, target.key):
        return
    entries = list(source.store.walk(source.key))
    files = [info for info in entries if not info.is_dir]
    _copy_all(source, target, files)
    _make_directories(source, target, entries)
    _remove_all(source, target, entries)


def _check_place(target: Location) -> None:
    """Refuse a target that is a file, or a directory with something in it."""
    store, key = target.store, target.key
    own = f"{key}/"
    for info in store.walk(key):
        if info.key != own:
            raise target.error(errno.ENOTEMPTY)
    if store.head(key) is not None and not store.is_prefix(key):
        raise target.error(errno.ENOTDIR)


def _moved_key(source: Location, target: Location, key: str) -> str:
    return target.key + key[len(source.key) :]


def _copy_all(source: Location, target: Location, files: list[Info]) -> None:
    """Copy every file and see that all are there; on a failure leave none of the copies."""
    done: list[str] = []
    stop = threading.Event()
    by_key = {info.key: info for info in files}

    def copy(key: str) -> BaseException | None:
        if stop.is_set():
            return None
        try:
            target.store.copy(key, _moved_key(source, target, key), by_key[key])
        except OSError as error:
            stop.set()
            return error
        done.append(key)
        return None

    try:
        failures = [error for error in _lookup.together(copy, list(by_key)) if error is not None]
        if failures:
            raise failures[0]
        _verify_all(source, target, files)
    except BaseException as error:
        stop.set()
        _take_back(source, target, done, error)
        raise


def _verify_all(source: Location, target: Location, files: list[Info]) -> None:
    found = {info.key: info for info in target.store.walk(target.key) if not info.is_dir}
    for info in files:
        key = _moved_key(source, target, info.key)
        _verify(target, info, found.get(key))


def _take_back(source: Location, target: Location, done: list[str], error: BaseException) -> None:
    """Remove the copies after a failure, and let its message say what is where."""
    left = [key for key, _ in target.store.delete_many([_moved_key(source, target, key) for key in list(done)])]
    if not isinstance(error, OSError):
        return
    said = f"nothing was moved, and {len(done) - len(left)} of the files copied were taken back"
    if left:
        said = f"nothing was moved, but these copies could not be removed again: {_names(target, left)}"
    error.strerror = f"{error.strerror} ({said})"


def _make_directories(source: Location, target: Location, entries: list[Info]) -> None:
    """Make the directories that are more than the prefixes of files: those with a marker, and those made here."""
    store = target.store
    if not entries:
        store.make_directory(target.key)
    for info in entries:
        if info.is_dir:
            has_marker = info.version is not None or info.mtime is not None
            store.make_directory(_moved_key(source, target, info.key.rstrip("/")), marker=has_marker)


def _remove_all(source: Location, target: Location, entries: list[Info]) -> None:
    keys = source.store.with_folders(source.key, (info.key for info in entries))
    failures = dict(source.store.delete_many(keys))
    if not failures:
        source.store.forget_directories(source.key)
        _vanished.note_removal(source)
        return
    moved = [info.key for info in entries if info.key not in failures and not info.is_dir]
    error = next(iter(failures.values()))
    raise OSError(
        error.errno,
        f"{error.strerror} (moved: {_names(source, moved) or 'nothing'}; all are at the new place,"
        f" and these at the old one too: {_names(source, list(failures))})",
        source.url.shown,
        None,
        target.url.shown,
    )


def _names(location: Location, keys: list[str]) -> str:
    start = f"{location.key}/"
    names = [redact(key.removeprefix(start)) for key in keys]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more

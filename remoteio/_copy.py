"""``shutil.copy`` where at least one side is on a store."""

from __future__ import annotations

import errno
import io
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from remoteio import _lookup, _transfer
from remoteio._settings import Settings
from remoteio._store import Info
from remoteio._stores import Location, resolve
from remoteio._urls import Url

BLOCK = 2**20


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two arguments.

    Attributes:
        given: What the caller gave, and gets back.
        location: Where it is on a store; None for a local path.
        path: The local path, a descriptor included; None on a store.
    """

    given: Any
    location: Location | None
    path: Any


def copy(src: Any, dst: Any, *, follow_symlinks: bool = True, settings: Settings) -> Any:
    """Copy one file, between any two places.

    Within one store the server copies. A local destination appears by a rename, with its
    old permission bits if it existed. On a failure the destination is as it was.

    Args:
        src: A file: a ``Url``, or a local path as ``shutil.copy`` takes it.
        dst: A file, or a directory that gets a file of the source's name.
        follow_symlinks: For a local source; a store can hold no link.
        settings: Those of the scope.

    Returns:
        The destination as it was given, joined with the name where it is a directory.

    Raises:
        FileNotFoundError: The source, the bucket or the directory to copy into is missing.
        IsADirectoryError: The source is a directory, or the name is one in the destination.
        SameFileError: Both are one file, however they are spelled.
        SpecialFileError: A local side is a named pipe.

    Source: ``shutil.copy`` and ``shutil.copyfile``, whose order of checks is kept.
    """
    source = _side(src, settings, must_exist=True)
    target = _side(dst, settings, must_exist=False)
    landed = _is_directory(target)
    if landed:
        target = _into(target, os.path.basename(source.given))
    _copy_file(source, target, follow_symlinks, landed)
    return target.given


def copyfile(src: Any, dst: Any, *, follow_symlinks: bool = True, settings: Settings) -> Any:
    """Copy one file to exactly the name that is given, otherwise like `copy`.

    Args:
        src: A file: a ``Url``, or a local path as ``shutil.copyfile`` takes it.
        dst: A file.
        follow_symlinks: For a local source; a store can hold no link.
        settings: Those of the scope.

    Returns:
        The destination as it was given.

    Raises:
        IsADirectoryError: One of them is a directory.
        FileNotFoundError: The source or the bucket is missing.
        SameFileError: Both are one file, however they are spelled.
        SpecialFileError: One of them is a named pipe.

    Source: ``shutil.copyfile``.
    """
    source = _side(src, settings, must_exist=True)
    target = _side(dst, settings, must_exist=False)
    if target.location is not None and _is_directory(target):
        if source.location is not None:
            _source_info(source.location, target.location)
        raise target.location.error(errno.EISDIR)
    _copy_file(source, target, follow_symlinks, landed=False)
    return target.given


def _copy_file(source: _Side, target: _Side, follow_symlinks: bool, landed: bool) -> None:
    for side in (source, target):
        _refuse_pipe(side)
    if source.location is None:
        assert target.location is not None
        _upload(source.path, target.location, follow_symlinks, landed)
        return
    info = _source_info(source.location, target.location)
    if target.location is None:
        with _local_target(target.path) as file:
            _transfer.fetch_into(source.location, info, file)
        return
    _check_target(target.location, landed)
    _between(source.location, target.location, info)


def _side(given: Any, settings: Settings, *, must_exist: bool) -> _Side:
    if not isinstance(given, Url):
        return _Side(given, None, given)
    if given.is_local:
        return _Side(given.given, None, given.local_path)
    return _Side(given.given, _lookup.locate(given, settings) if must_exist else resolve(given, settings), None)


def _is_directory(side: _Side) -> bool:
    if side.location is None:
        found = _stat(side.path)
        return found is not None and stat.S_ISDIR(found.st_mode)
    try:
        return side.location.store.is_prefix(side.location.key)
    except PermissionError:  # who may write need not be allowed to list
        return False


def _into(side: _Side, name: str | bytes) -> _Side:
    """The entry of a directory under which a file lands; joining refuses str with bytes, as it does locally."""
    given = os.path.join(side.given, name)
    text = os.fsdecode(name)
    if side.location is None:
        return _Side(given, None, os.path.join(os.fsdecode(side.path), text))
    if text in ("", ".", ".."):  # the source is spelled as a directory, which its check will tell
        return _Side(given, side.location, None)
    child = side.location.child(text)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise side.location.error(errno.EILSEQ, "the name of the source is no UTF-8") from None
    return _Side(given, child, None)


def _refuse_pipe(side: _Side) -> None:
    found = _stat(side.path) if side.location is None else None
    if found is not None and stat.S_ISFIFO(found.st_mode):
        raise shutil.SpecialFileError(f"`{os.fsdecode(side.path)}` is a named pipe")


def _stat(path: Any) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:  # whatever it is, opening the file tells
        return None


def _source_info(source: Location, target: Location | None) -> Info:
    found = _lookup.entry(source)
    # A file spelled as a directory is nothing that exists, so not the same either.
    may_be_same = target is not None and (found.is_dir or not target.wants_directory)
    if target is not None and may_be_same and source.key == target.key and source.store.same_store(target.store):
        raise shutil.SameFileError(f"{source.url.shown!r} and {target.url.shown!r} are the same file")
    if found.is_dir:
        raise source.error(errno.EISDIR)
    return found


# ---- onto a store


def _check_target(target: Location, landed: bool) -> None:
    """Refuse what could not be opened for writing."""
    store = target.store
    if target.is_root:
        raise target.error(errno.ENOENT, "buckets are never created")
    if target.url.rest.endswith("/"):
        raise target.error(errno.ENOENT, "the directory does not exist")
    if target.wants_directory:
        _lookup.entry(target)
    try:
        if landed:
            if store.is_prefix(target.key):
                raise target.error(errno.EISDIR)
            return
        above = _lookup.ancestors(target)[-1:]
        if above and store.head(above[0]) is not None and not store.is_prefix(above[0]):
            raise target.error(errno.ENOTDIR)
    except PermissionError:  # who may write need not be allowed to read
        return


def _upload(path: Any, target: Location, follow_symlinks: bool, landed: bool) -> None:
    if not follow_symlinks and _is_link(path):
        raise target.error(errno.ENOTSUP, "a store holds no symbolic links; copy with follow_symlinks=True")
    with io.BufferedReader(io.FileIO(path)) as reader:
        _check_target(target, landed)
        found = os.fstat(reader.fileno())
        if stat.S_ISREG(found.st_mode) and found.st_size:
            _transfer.publish(target, cast(BinaryIO, reader), found.st_size)
            return
        # A device, or one of /proc's files, which are longer than they say.
        with tempfile.TemporaryFile() as spool:
            shutil.copyfileobj(reader, spool, BLOCK)
            _transfer.publish(target, cast(BinaryIO, spool), spool.tell())


def _is_link(path: Any) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(path).st_mode)
    except (OSError, TypeError):  # TypeError: a descriptor is no link
        return False


def _between(source: Location, target: Location, info: Info) -> None:
    if source.store.same_store(target.store):
        try:
            target.store.copy(source.key, target.key, info)
            return
        except PermissionError:
            # One server, two identities: neither alone may do both, each may do its half.
            if source.store is target.store:
                raise
        except OSError:
            _require_bucket(target)
            raise
    with tempfile.TemporaryFile() as spool:
        _transfer.fetch_into(source, info, cast(BinaryIO, spool))
        spool.seek(0, os.SEEK_END)
        _transfer.publish(target, cast(BinaryIO, spool), spool.tell())


def _require_bucket(target: Location) -> None:
    """After a failed copy: some servers have another word for a missing bucket."""
    if target.store.has_buckets and not target.store.is_prefix(target.key.partition("/")[0]):
        raise target.error(errno.ENOENT, "there is no such bucket") from None


# ---- onto the local disk


@contextmanager
def _local_target(path: Any) -> Iterator[BinaryIO]:
    """A seekable file whose content becomes that of ``path`` if nothing is raised, by a rename."""
    name = os.fsdecode(path)
    if name.endswith("/"):
        raise FileNotFoundError(errno.ENOENT, "Directory does not exist", path)
    if os.path.basename(name) in (".", ".."):
        os.stat(path)  # raises what opening it raises, where it is no directory
    real = os.path.realpath(name)  # a link stays, and what it points to is replaced
    old = _stat(real)
    if old is not None and stat.S_ISDIR(old.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if old is not None and not os.access(real, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    if old is not None and not stat.S_ISREG(old.st_mode):
        with tempfile.TemporaryFile() as spool:
            yield cast(BinaryIO, spool)
            _pour(spool, real)
        return
    temporary = os.path.join(os.path.dirname(real), f".{secrets.token_hex(8)}.tmp")
    try:
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    try:
        with os.fdopen(handle, "w+b") as file:
            yield cast(BinaryIO, file)
            if old is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode))
        os.replace(temporary, real)
    except BaseException:
        os.unlink(temporary)
        raise


def _pour(spool: Any, path: str) -> None:
    """Write into a device, which cannot be replaced."""
    spool.seek(0)
    with io.FileIO(path, "w") as device, io.BufferedWriter(device) as writer:
        shutil.copyfileobj(spool, writer, BLOCK)

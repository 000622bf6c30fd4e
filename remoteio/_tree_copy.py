"""``shutil.copy2``, ``copystat``, ``copymode``, ``copytree`` and ``move`` where at least one side is a URL."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from remoteio import _copy, _stat
from remoteio._settings import Settings
from remoteio._urls import Url

__all__ = ["copy2", "copymode", "copystat", "copytree", "move"]

WORKERS = 16

# What a rename says before it has done anything. Any other failure is not made better by copying.
_REFUSALS = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.ENOENT, errno.EEXIST}
)

CopyFunction = Callable[[Any, Any], Any]


def copy2(src: Any, dst: Any, *, follow_symlinks: bool = True, settings: Settings) -> Any:
    """``copy``; and a local destination gets the time of the object.

    Args:
        src: A file: a ``Url`` or a local path.
        dst: A file, or a directory that gets a file of the source's name.
        follow_symlinks: For a local source; a store can hold no link.
        settings: Those of the scope.

    Returns:
        The destination as it was given, joined with the name where it is a directory.

    Raises:
        OSError: As for ``copy``.
    """
    landed = _copy.copy(src, dst, follow_symlinks=follow_symlinks, settings=settings)
    if isinstance(src, Url) and not src.is_local and not (isinstance(dst, Url) and not dst.is_local):
        path = os.fspath(landed)
        if isinstance(dst, Url):
            # As it was given, with a name behind it or not.
            path = os.fsdecode(path).replace(os.fsdecode(os.fspath(dst.given)), dst.local_path, 1)
        copystat(src, path, settings=settings)
    return landed


def copystat(src: Any, dst: Any, *, follow_symlinks: bool = True, settings: Settings) -> None:
    """Give a local file the time of an object. A store takes neither times nor modes: there nothing is done.

    Raises:
        FileNotFoundError: One of them is missing; the one on a store is not looked for if it is the destination.
    """
    if isinstance(dst, Url) and not dst.is_local:
        return
    path = dst.local_path if isinstance(dst, Url) else dst
    if isinstance(src, Url) and not src.is_local:
        found = _stat.stat(src, settings=settings)
        if found.st_mtime_ns:
            os.utime(path, ns=(found.st_mtime_ns, found.st_mtime_ns))


def copymode(src: Any, dst: Any, *, follow_symlinks: bool = True, settings: Settings) -> None:
    """Do nothing: a store has no modes to give or take."""


# ---- trees: the standard library's own code, which finds everything it calls answered for URLs


class _Crew:
    """Copies the files of a tree side by side, for a ``copytree`` that thinks it copies them one by one."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(WORKERS, "remoteio-copytree")
        self._copies: list[tuple[Any, Any, Future[Any]]] = []

    def copy(self, src: Any, dst: Any) -> Any:
        """Begin one copy."""
        self._copies.append((src, dst, self._pool.submit(shutil.copy2, src, dst)))
        return dst

    def failures(self) -> list[tuple[Any, Any, str]]:
        """Wait for all, and tell what failed as ``shutil.Error`` tells it."""
        found: list[tuple[Any, Any, str]] = []
        for src, dst, future in self._copies:
            try:
                future.result()
            except shutil.Error as error:
                found.extend(error.args[0] if isinstance(error.args[0], list) else [(src, dst, str(error))])
            except OSError as error:
                found.append((src, dst, str(error)))
        return found

    def end(self) -> None:
        """Begin no more copies, and wait for those that run."""
        self._pool.shutdown(cancel_futures=True)


def _is_standard(copy_function: Any) -> bool:
    named = (getattr(copy_function, "__module__", None), getattr(copy_function, "__name__", None))
    return named in (("shutil", "copy"), ("shutil", "copy2"))


def copytree(
    src: Any,
    dst: Any,
    symlinks: bool = False,
    ignore: Any = None,
    copy_function: Any = None,
    ignore_dangling_symlinks: bool = False,
    dirs_exist_ok: bool = False,
    *,
    original: Callable[..., Any],
    settings: Settings,
) -> Any:
    """Copy a tree, between any two places; files side by side, unless ``copy_function`` is the caller's own.

    Args:
        src: The tree.
        dst: Its new place; must not exist, unless ``dirs_exist_ok``.
        symlinks: As for the original. A store takes no links.
        ignore: As for the original.
        copy_function: As for the original.
        ignore_dangling_symlinks: As for the original.
        dirs_exist_ok: As for the original.
        original: Does it.
        settings: Those of the scope.

    Returns:
        The destination as it was given.

    Raises:
        FileExistsError: The destination is there.
        shutil.Error: With what could not be copied; the rest was.

    Source: ``shutil.copytree``.
    """
    given = [path.given if isinstance(path, Url) else path for path in (src, dst)]
    if not _is_standard(copy_function):
        return original(*given, symlinks, ignore, copy_function, ignore_dangling_symlinks, dirs_exist_ok)
    crew = _Crew()
    try:
        errors: list[Any] = []
        try:
            original(*given, symlinks, ignore, crew.copy, ignore_dangling_symlinks, dirs_exist_ok)
        except shutil.Error as error:
            errors = list(error.args[0])
        errors += crew.failures()
    finally:
        crew.end()
    if errors:
        raise shutil.Error(errors)
    return given[1]


def move(src: Any, dst: Any, copy_function: Any = None, *, settings: Settings) -> Any:
    """Move a file or a tree: renamed within a store, otherwise copied and then removed.

    Args:
        src: What is moved.
        dst: Its new name, or a directory that takes it in.
        copy_function: As for ``shutil.move``; by default ``copy2``.
        settings: Those of the scope.

    Returns:
        Where it is now; None where it was there.

    Raises:
        shutil.Error: The directory to take it in has something of that name, or lies in it.
        OSError: It was not moved.

    Source: ``shutil.move``.
    """
    source, target = (path.given if isinstance(path, Url) else path for path in (src, dst))
    landed = target
    if os.path.isdir(target):
        if _is_same(source, target):
            return None  # as shutil.move does
        landed = os.path.join(target, os.path.basename(os.fspath(source).rstrip(_slash(source))))
        if os.path.exists(landed):
            raise shutil.Error(f"Destination path '{os.fsdecode(landed)}' already exists")
    try:
        os.rename(source, landed)
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
        _copy_and_remove(source, target, landed, shutil.copy2 if _is_standard(copy_function) else copy_function)
    return landed


def _slash(path: Any) -> Any:
    return b"/" if isinstance(os.fspath(path), bytes) else "/"


def _is_same(one: Any, other: Any) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:  # one is missing: what follows tells
        return False


def _copy_and_remove(source: Any, target: Any, landed: Any, copy_function: CopyFunction) -> None:
    if not os.path.isdir(source):
        copy_function(source, landed)
        os.unlink(source)
        return
    one, other = (f"{os.fsdecode(os.path.abspath(path)).rstrip('/')}/" for path in (source, target))
    if other.startswith(one):
        raise shutil.Error(f"Cannot move a directory '{os.fsdecode(source)}' into itself '{os.fsdecode(target)}'.")
    shutil.copytree(source, landed, copy_function=copy_function, symlinks=True)
    shutil.rmtree(source)

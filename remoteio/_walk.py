"""Going through a tree: ``os.walk``, ``glob.iglob``, and what ``pathlib.Path`` has of the kind.

The standard library takes every failed listing for an empty directory. Here that holds for
what is missing only: a store that cannot be asked is an error, as for ``glob.glob``.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

from remoteio import _glob, _scan, _stores
from remoteio._settings import Settings
from remoteio._telling import failures_told
from remoteio._urls import Url

__all__ = ["find_paths", "iglob", "walk", "walk_paths"]

OnError = Callable[[OSError], object]
_END: Any = object()


def walk(
    top: Url,
    topdown: bool = True,
    onerror: OnError | None = None,
    followlinks: bool = False,
    *,
    original: Callable[..., Any],
    settings: Settings,
) -> Iterator[tuple[Any, list[Any], list[Any]]]:
    """Each directory with its directories and files, from the top or from the bottom; one listing per directory.

    Args:
        top: Where it begins.
        topdown: Whether a directory comes before what lies in it; the list of directories
            may then be changed meanwhile, and says where to go.
        onerror: Called with every OSError; by default what is missing is left out, and any
            other error is raised.
        followlinks: Of meaning for ``file://`` alone.
        original: Answers for ``file://``.
        settings: Those of the scope.

    Source: ``os.walk``.
    """
    if top.is_local:
        return _walk_local(top, topdown, onerror, followlinks, original)
    return _walk(top, topdown, onerror, settings)


def _walk(
    top: Url, topdown: bool, onerror: OnError | None, settings: Settings
) -> Iterator[tuple[Any, list[Any], list[Any]]]:
    # As os.walk does: paths are still to be listed, triples are done and wait for what lies below them.
    stack: list[Any] = [top]
    while stack:
        item = stack.pop()
        if isinstance(item, tuple):
            yield item
            continue
        given = os.fspath(item.given)
        listed = _listed(item, onerror, settings)
        if listed is None:
            continue
        dirs, files = listed
        if topdown:
            yield given, dirs, files
        else:
            stack.append((given, dirs, files))
        below = [_stores.parse(os.path.join(given, name), settings) for name in dirs]
        stack.extend(url for url in reversed(below) if url is not None)


def _listed(url: Url, onerror: OnError | None, settings: Settings) -> tuple[list[Any], list[Any]] | None:
    dirs: list[Any] = []
    files: list[Any] = []
    try:
        for entry in _scan.scandir(url, original=os.scandir, settings=settings):
            (dirs if entry.is_dir() else files).append(entry.name)
    except OSError as error:
        if onerror is not None:
            onerror(error)
        elif not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise
        return None
    return dirs, files


def _walk_local(
    top: Url, topdown: bool, onerror: OnError | None, followlinks: bool, original: Callable[..., Any]
) -> Iterator[tuple[Any, list[Any], list[Any]]]:
    path, given = top.answer(top.local_path), os.fspath(top.given)

    def respelled(text: Any) -> Any:
        return given + text[len(path) :]

    def hear(error: OSError) -> None:
        if onerror is not None:
            error.filename = respelled(error.filename)
            onerror(error)

    for folder, dirs, files in original(path, topdown, hear, followlinks):
        yield respelled(folder), dirs, files


def iglob(pathname: Any, *, settings: Settings, **options: Any) -> Iterator[Any]:
    """What ``glob`` gives, one by one; the store is asked when the first is.

    Args:
        pathname: The pattern.
        settings: Those of the scope.
        options: As for ``glob``.
    """
    yield from _glob.glob(pathname, settings=settings, **options)


# ---- pathlib, whose own code goes on working on the patched functions of os


def find_paths(self: Url, *args: Any, original: Callable[..., Any], settings: Settings, **kwargs: Any) -> Iterator[Any]:
    """``Path.glob`` and ``Path.rglob`` of a collapsed URL, with the store's failures told.

    Args:
        self: The path.
        args: As for the original.
        original: The method.
        settings: Those of the scope.
        kwargs: As for the original.
    """
    return _told(functools.partial(original, self.given, *args, **kwargs))


def walk_paths(
    self: Url,
    top_down: bool = True,
    on_error: OnError | None = None,
    follow_symlinks: bool = False,
    *,
    original: Callable[..., Any],
    settings: Settings,
) -> Iterator[Any]:
    """``Path.walk``, in the same way; ``on_error`` is called with every failure.

    Args:
        self: The path.
        top_down: As for ``walk``.
        on_error: As for ``walk``.
        follow_symlinks: Of meaning for ``file://`` alone.
        original: The method.
        settings: Those of the scope.
    """
    walk = functools.partial(original, self.given, top_down, on_error, follow_symlinks)
    return iter(walk()) if on_error is not None else _told(walk)


def _told(make: Callable[[], Any]) -> Iterator[Any]:
    with failures_told():  # some versions tell a wrong pattern at the call, others at the first step
        found = iter(make())
    return _each(found)


def _each(found: Iterator[Any]) -> Iterator[Any]:
    while True:
        with failures_told():
            item = next(found, _END)
        if item is _END:
            return
        yield item

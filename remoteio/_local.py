"""Calls that end at the original: local paths, and ``file://`` URLs by their paths."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from remoteio._urls import Url

__all__ = ["by_local_paths", "open_locally"]

_MODES = frozenset("rwaxbt+")


def open_locally(original: Callable[..., Any], args: tuple[Any, ...], *, stacklevel: int) -> Any:
    """The built-in ``open``, with the warnings it gives attributed to the line that called its replacement.

    Args:
        original: The built-in.
        args: All its eight arguments, in order.
        stacklevel: How far away that line is, counted from here.
    """
    file, mode, buffering, encoding, errors, newline, closefd, opener = args
    if not _is_well_formed(mode):
        return original(*args)
    if "b" in mode:
        if buffering == 1 and encoding is None and errors is None and newline is None:
            warnings.warn(
                "line buffering (buffering=1) isn't supported in binary mode, the default buffer size will be used",
                RuntimeWarning,
                stacklevel,
            )
            buffering = -1  # what the built-in goes on with
        return original(file, mode, buffering, encoding, errors, newline, closefd, opener)
    if encoding is not None or not sys.flags.warn_default_encoding:
        return original(*args)
    encoding = "utf-8" if sys.flags.utf8_mode and sys.version_info >= (3, 11) else "locale"
    handle = original(file, mode, buffering, encoding, errors, newline, closefd, opener)
    try:
        warnings.warn("'encoding' argument not specified", EncodingWarning, stacklevel)
    except EncodingWarning:
        handle.close()
        raise
    return handle


def _is_well_formed(mode: Any) -> bool:
    """Whether the built-in takes this mode; if not, it says so itself, without a warning."""
    if not isinstance(mode, str) or not _MODES.issuperset(mode) or len(set(mode)) != len(mode):
        return False
    return sum(letter in mode for letter in "rwax") == 1 and not ("b" in mode and "t" in mode)


def by_local_paths(
    original: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    urls: Mapping[int | str, Url],
) -> Any:
    """Call the original on the paths of ``file://`` URLs, and spell its answer as the caller did.

    Args:
        original: The original.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        urls: The URLs among the arguments, by position or name.

    Raises:
        OSError: As the original's, with the URL in ``filename``.
    """
    given = [*args]
    named = dict(kwargs)
    for where, url in urls.items():
        path = _local_argument(url)
        if isinstance(where, int):
            given[where] = path
        else:
            named[where] = path
    plain = [arg for where, arg in enumerate(args) if where not in urls]
    speller = _Speller([url for where, url in urls.items() if where != "root_dir"], plain)
    _wrap_callbacks(given, named, speller)
    try:
        return speller.value(original(*given, **named))
    except OSError as error:
        # Set to None it would be told: only what there is is spelled anew.
        if error.filename is not None:
            error.filename = speller.value(error.filename)
        if error.filename2 is not None:
            error.filename2 = speller.value(error.filename2)
        raise


class _LocalPath:
    """The path of a URL that was given as a path-like object: what refuses such objects must meet one."""

    def __init__(self, url: Url) -> None:
        self.url = url

    def __fspath__(self) -> str | bytes:
        return os.fsencode(self.url.local_path) if self.url.as_bytes else self.url.local_path


def _local_argument(url: Url) -> Any:
    path = _LocalPath(url)
    return path.__fspath__() if isinstance(url.given, (str, bytes)) else path


class _Speller:
    """Turns paths of the original's back into URLs, spelled as the caller's were."""

    def __init__(self, urls: list[Url], plain: list[Any]) -> None:
        self._urls = urls
        self._plain = [value for value in plain if isinstance(value, (str, bytes))]

    def value(self, value: Any) -> Any:
        """One path, or several; anything else is given back."""
        if isinstance(value, _LocalPath):
            return value.url.given
        if isinstance(value, Iterator):
            return map(self.value, value)
        if isinstance(value, list):
            return [self.value(item) for item in value] if self._urls and _are_whole(value) else value
        if not isinstance(value, (str, bytes)) or value in self._plain:
            return value
        text = os.fsdecode(value)
        for url in self._urls:
            if text == url.local_path and isinstance(value, bytes) == url.as_bytes:
                return url.given
        for url in self._urls:
            if _related(text, url.local_path):
                # Of the kind that the original gave: rmtree tells its callbacks text where it was given bytes.
                return os.fsencode(url.spell(text)) if isinstance(value, bytes) else url.spell(text)
        return value


def _are_whole(names: list[Any]) -> bool:
    """Whether a list is of whole paths, as glob's, and not of bare names, as listdir's."""
    return any(("/" if isinstance(name, str) else b"/") in name for name in names)


def _related(one: str, other: str) -> bool:
    """Whether one path lies above or below the other, or is a match of it as a pattern."""
    other = re.sub("//+", "/", other)  # as glob's results are
    stem = other
    for letter in "*?[":
        stem = stem.partition(letter)[0]
    stem = stem.rpartition("/")[0] + "/" if stem != other else other.rstrip("/") + "/"
    return f"{one.rstrip('/')}/".startswith(stem) or other.startswith(f"{one.rstrip('/')}/")


def _wrap_callbacks(given: list[Any], named: dict[str, Any], speller: _Speller) -> None:
    """The callbacks of rmtree hear of URLs too."""

    def heard(callback: Callable[..., Any]) -> Callable[..., Any]:
        def hear(function: Any, path: Any, info: Any) -> Any:
            error = info[1] if isinstance(info, tuple) else info
            if isinstance(error, OSError):
                error.filename = speller.value(error.filename)
            return callback(function, speller.value(path), info)

        return hear

    for name in ("onerror", "onexc"):
        if callable(named.get(name)):
            named[name] = heard(named[name])
    # Of the ten only rmtree has a callable among its positional arguments.
    given[:] = [heard(value) if position > 1 and callable(value) else value for position, value in enumerate(given)]

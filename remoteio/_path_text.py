"""The functions of ``os.path`` and ``pathlib`` that work on the text of a path: they leave a URL as it is."""

from __future__ import annotations

import os
from typing import Any

from remoteio import _stat
from remoteio._settings import Settings
from remoteio._urls import Url

__all__ = ["absolute", "isabs", "itself", "realpath"]


def itself(path: Url, *, settings: Settings) -> Any:
    """The path as it was given, as text: the answer of ``abspath``, ``normpath`` and ``expanduser``.

    ``.`` and ``..`` are resolved when the path is used.
    """
    return os.fspath(path.given)


def isabs(s: Url, *, settings: Settings) -> bool:
    """True: a URL does not begin at the working directory."""
    return True


def realpath(filename: Url, *, strict: Any = False, settings: Settings) -> Any:
    """The path as it was given, as text.

    Raises:
        FileNotFoundError: There is nothing, and it is ``strict``.
        NotADirectoryError: A file is used as a directory, and it is ``strict``.
    """
    if strict is True:
        _require(filename, settings)
    return os.fspath(filename.given)


def absolute(self: Url, *, settings: Settings) -> Any:
    """The very ``Path``: it names its place whatever the working directory is."""
    return self.given


def _require(url: Url, settings: Settings) -> None:
    if not url.is_local:
        _stat.stat(url, settings=settings)
        return
    try:
        os.stat(url.local_path)
    except OSError as error:
        error.filename = url.shown
        raise

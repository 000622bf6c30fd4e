"""What cannot be done with a URL, refused with a reason instead of done to a local path of that name."""

from __future__ import annotations

import errno
import io
import os
from typing import Any, NoReturn

from remoteio._settings import Settings
from remoteio._urls import Url

__all__ = ["fwalk", "link", "spooled", "symlink", "temporary"]


def fwalk(top: Url, *args: Any, settings: Settings, **kwargs: Any) -> NoReturn:
    """Refuse a walk by descriptors.

    Raises:
        OSError: ENOTSUP.
    """
    _refuse("directories of a store have no descriptors; use os.walk", top)


def link(src: Any, dst: Any, *, settings: Settings, **kwargs: Any) -> NoReturn:
    """Refuse a hard link.

    Raises:
        OSError: ENOTSUP.
    """
    _refuse("a store holds no links; copy the file", src, dst)


def symlink(src: Any, dst: Any, *args: Any, settings: Settings, **kwargs: Any) -> NoReturn:
    """Refuse a symbolic link.

    Raises:
        OSError: ENOTSUP.
    """
    _refuse("a store holds no links, and no local link leads to one; copy the file", src, dst)


def temporary(*args: Any, settings: Settings, **kwargs: Any) -> NoReturn:
    """Refuse a temporary file or directory on a store.

    Raises:
        OSError: ENOTSUP.
    """
    url = next(value for value in (*args, *kwargs.values()) if isinstance(value, Url))
    _refuse("temporary files are local; make one without dir= and copy it when it is done", url)


def spooled(self: Any, *args: Any, settings: Settings, **kwargs: Any) -> NoReturn:
    """Refuse a temporary file in memory that could go to a store.

    Raises:
        OSError: ENOTSUP.
    """
    self._file = io.BytesIO()  # what its finalizer looks at
    temporary(*args, settings=settings, **kwargs)


def _refuse(why: str, path: Any, other: Any = None) -> NoReturn:
    names = [one.shown if isinstance(one, Url) else one for one in (path, other)]
    said = f"{os.strerror(errno.ENOTSUP)} ({why})"
    if other is None:
        raise OSError(errno.ENOTSUP, said, names[0])
    raise OSError(errno.ENOTSUP, said, os.fspath(names[0]), None, os.fspath(names[1]))

"""``shutil.make_archive`` with a URL for the archive, for what goes into it, or for both."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

from remoteio._urls import Url

__all__ = ["make_archive"]


def make_archive(
    base_name: Any,
    format: Any,
    root_dir: Any = None,
    base_dir: Any = None,
    *args: Any,
    original: Callable[..., Any],
    settings: Any,
    **kwargs: Any,
) -> Any:
    """Archive a tree: packed in a local directory, into which what is remote is fetched first.

    Args:
        base_name: The archive's name without its extension.
        format: As for the original.
        root_dir: What is archived.
        base_dir: The part of it that is; a relative path.
        args: As for the original.
        original: Packs.
        settings: Those of the scope.
        kwargs: As for the original.

    Returns:
        The archive's name.

    Raises:
        OSError: ENOTSUP where ``base_dir`` is a URL: nobody could say under which names its files go in.
    """
    if isinstance(base_dir, Url):
        raise OSError(
            errno.ENOTSUP,
            f"{os.strerror(errno.ENOTSUP)} (give the URL as root_dir, and a relative base_dir)",
            base_dir.shown,
        )
    with contextlib.ExitStack() as stack:
        if isinstance(root_dir, Url) and root_dir.is_local:
            root_dir = root_dir.local_path
        if isinstance(root_dir, Url):
            fetched = stack.enter_context(tempfile.TemporaryDirectory(prefix="remoteio-"))
            inner = os.path.join(fetched, "root")
            shutil.copytree(_given(root_dir), inner)
            root_dir = inner
        if not isinstance(base_name, Url):
            return original(base_name, format, root_dir, base_dir, *args, **kwargs)
        if base_name.is_local:
            made = original(base_name.local_path, format, root_dir, base_dir, *args, **kwargs)
            return _given(base_name) + made[len(base_name.local_path) :]
        packed = stack.enter_context(tempfile.TemporaryDirectory(prefix="remoteio-"))
        name = os.fsdecode(os.fspath(base_name.given))
        made = original(os.path.join(packed, os.path.basename(name)), format, root_dir, base_dir, *args, **kwargs)
        target = os.path.join(os.path.dirname(name), os.path.basename(made))
        if os.path.exists(made):  # not with dry_run
            shutil.copyfile(made, target)
        return target


def _given(url: Url) -> Any:
    return os.fsdecode(os.fspath(url.given))

"""Letting a store's failure pass through code that takes every OSError for "nothing here"."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from remoteio._glob_tree import StoreFailedError

__all__ = ["failures_told", "told_apart"]


class _Mode(threading.local):
    failures_told = False


_mode = _Mode()


@contextlib.contextmanager
def failures_told() -> Iterator[None]:
    """A block in which every failure of a store is raised at the block's end, whoever would swallow it on the way.

    Raises:
        OSError: What `told_apart` has kept from being swallowed.
    """
    before, _mode.failures_told = _mode.failures_told, True
    try:
        yield
    except StoreFailedError as failed:
        error = failed.error
    else:
        return
    finally:
        _mode.failures_told = before
    raise error


@contextlib.contextmanager
def told_apart() -> Iterator[None]:
    """A question to a store: what is missing is an OSError as ever, another failure may be told in a way of its own."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        if _mode.failures_told:
            raise StoreFailedError(error) from error
        raise

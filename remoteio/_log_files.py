"""Log files on a store: what was logged until an error is the last thing that should be lost with it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from remoteio import _stack
from remoteio._dispatch import Row

__all__ = ["HOOKS"]


def _hook_open(original: Callable[..., Any]) -> Callable[..., Any]:
    """A log is closed wherever it is full, in the middle of an ``except`` too: it is published all the same."""

    @functools.wraps(original)
    def _open(self: Any) -> Any:
        settings = _stack.current()
        if settings is None or "paths" not in settings.also:
            return original(self)
        with _stack.overlaid(replace(settings, on_error={"*": "commit", **settings.on_error})):
            return original(self)

    del _open.__wrapped__
    return _open


HOOKS = (Row(("logging:FileHandler._open",), (), _hook_open),)

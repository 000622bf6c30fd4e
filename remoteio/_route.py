"""What becomes of a call that may concern a URL: the original, or the answer of a store."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from remoteio import _counters, _local, _stack, _urls
from remoteio._patches import Patch
from remoteio._replacement import FRAMES_TO_CALLER
from remoteio._settings import Settings
from remoteio._urls import Url

__all__ = ["route"]

_answers: dict[str, Callable[..., Any]] = {}


def route(patch: Patch, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer one call of a replacement.

    Args:
        patch: Which of the patched functions.
        original: The original, which gets exactly what was given where no URL was.
        args: The positional arguments.
        kwargs: The keyword arguments.
    """
    settings = _stack.current()
    if settings is not None and (not patch.table or patch.table in settings.also):
        urls = _urls_among(patch, args, kwargs, settings)
        if urls:
            if not patch.takes_local and all(url.is_local for url in urls.values()):
                return _local.by_local_paths(original, args, kwargs, urls)
            answer = _answers.get(patch.answer) or _answers.setdefault(patch.answer, patch.load())
            given = [urls.get(position, value) for position, value in enumerate(args)]
            named: dict[str, Any] = {name: urls.get(name, value) for name, value in kwargs.items()}
            _counters.count(patch.label or patch.name, next(iter(urls.values())).scheme, calls=1)
            if patch.wants_stacklevel:
                named["stacklevel"] = FRAMES_TO_CALLER
            if patch.wants_original:
                named["original"] = original
            try:
                return answer(*given, **named, settings=settings)
            except OSError as error:
                if isinstance(error.filename, str) and any(url.as_bytes for url in urls.values()):
                    error.filename = os.fsencode(error.filename)  # as the original's: of the kind that was given
                raise
    if patch.name == "open" and len(args) == 8:  # the built-in's own signature, not a foreign function's
        return _local.open_locally(original, args, stacklevel=FRAMES_TO_CALLER)
    return original(*args, **kwargs)


def _urls_among(
    patch: Patch, args: tuple[Any, ...], kwargs: dict[str, Any], settings: Settings
) -> dict[int | str, Url]:
    """The URLs among the arguments, by position or name."""
    found: dict[int | str, Url] = {}
    for parameter in patch.urls:
        where: int | str
        if parameter.position is not None and parameter.position < len(args):
            where, value = parameter.position, args[parameter.position]
        elif parameter.name in kwargs:
            where, value = parameter.name, kwargs[parameter.name]
        else:
            continue
        if _looks_like_one(value):
            from remoteio import _stores  # loaded at the first entry; not with the package, which stays light

            url = _stores.parse(value, settings)
            if url is not None:
                found[where] = url
    return found


def _looks_like_one(value: Any) -> bool:
    if isinstance(value, str):
        return ":/" in value
    if isinstance(value, bytes):
        return b":/" in value
    if isinstance(value, os.PathLike):
        try:
            return _looks_like_one(os.fspath(value))
        except Exception:  # noqa: BLE001 - whatever it raises, the original meets it too, and answers for it
            return False
    return _urls.is_virtual(value)

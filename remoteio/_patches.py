"""The table of what is patched: which name of which module is answered by which function."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["TEN", "Parameter", "Patch"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter that can be a URL.

    Attributes:
        name: Its name in the standard library's signature.
        position: Its place among the positional arguments; None where it is keyword-only.
    """

    name: str
    position: int | None


@dataclass(frozen=True, slots=True)
class Patch:
    """One function of the standard library, and who answers for it on a URL.

    Attributes:
        name: The bare name.
        places: Where it is looked up, as ``module:name`` or ``module:class.name``; the first
            is the one that people write. Each is replaced around whatever stands there.
        sources: Further places that hold the original and are never written to; what they
            hold is covered where other modules bound it early.
        urls: The parameters that can be URLs.
        answer: The function that answers, as ``module:name``. It takes the original's
            parameters, and ``settings``.
        wants_stacklevel: Whether the answer is told how far away its caller is, for warnings.
        table: The word of ``remote_io(also=...)`` that brings it in; none for the ten.
        takes_local: Whether the answer takes ``file://`` URLs too. Otherwise the original
            answers for them, by their paths.
        wants_original: Whether the answer is handed the original, as ``original``.
        label: How ``status`` names it; none where that is the bare name.
    """

    name: str
    places: tuple[str, ...]
    urls: tuple[Parameter, ...]
    answer: str
    sources: tuple[str, ...] = ()
    wants_stacklevel: bool = False
    table: str = ""
    takes_local: bool = False
    wants_original: bool = False
    label: str = ""

    def load(self) -> Callable[..., Any]:
        """The answering function; its module is imported when it is first needed."""
        module, _, name = self.answer.partition(":")
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return found


def _one(name: str) -> tuple[Parameter, ...]:
    return (Parameter(name, 0),)


TEN: tuple[Patch, ...] = (
    Patch(
        "open",
        ("builtins:open", "io:open", "pathlib:_NormalAccessor.open"),
        _one("file"),
        "remoteio._files:open",
        wants_stacklevel=True,
        takes_local=True,
    ),
    Patch("makedirs", ("os:makedirs",), _one("name"), "remoteio._tree:makedirs"),
    Patch("isdir", ("os.path:isdir", "genericpath:isdir"), _one("s"), "remoteio._tree:isdir"),
    Patch(
        "listdir",
        ("os:listdir", "pathlib:_NormalAccessor.listdir"),
        _one("path"),
        "remoteio._tree:listdir",
        sources=("posix:listdir", "nt:listdir"),
    ),
    Patch("remove", ("os:remove",), _one("path"), "remoteio._tree:remove", sources=("posix:remove", "nt:remove")),
    Patch("exists", ("os.path:exists", "genericpath:exists"), _one("path"), "remoteio._tree:exists"),
    Patch("copy", ("shutil:copy",), (Parameter("src", 0), Parameter("dst", 1)), "remoteio._tree:copy"),
    Patch("rmtree", ("shutil:rmtree",), _one("path"), "remoteio._tree:rmtree"),
    Patch(
        "glob",
        ("glob:glob",),
        (Parameter("pathname", 0), Parameter("root_dir", None)),
        "remoteio._glob:glob",
    ),
    Patch("getsize", ("os.path:getsize", "genericpath:getsize"), _one("filename"), "remoteio._tree:getsize"),
)

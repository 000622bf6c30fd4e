"""The tokenizers' own functions that read and write files in Rust, answered for URLs by staged files."""

from __future__ import annotations

import os
from typing import Any

from remoteio import _adapt
from remoteio._settings import Settings
from remoteio._staging import staged_local
from remoteio._urls import Url

__all__ = ["from_file", "save", "save_model"]


def from_file(path: Url, *, settings: Settings) -> Any:
    """``Tokenizer.from_file``."""
    from tokenizers import Tokenizer

    with _adapt.incoming(path, settings, "tokenizers.Tokenizer.from_file") as local:
        return Tokenizer.from_file(local)


def save(self: Any, path: Url, *args: Any, settings: Settings, **kwargs: Any) -> None:
    """``Tokenizer.save``."""
    with _adapt.outgoing(path, settings, "tokenizers.Tokenizer.save") as local:
        self.save(local, *args, **kwargs)


def save_model(self: Any, folder: Url, *args: Any, settings: Settings, **kwargs: Any) -> list[str]:
    """``Model.save``: the vocabulary's files in a folder; their URLs are returned."""
    with staged_local(f"{folder.text.rstrip('/')}/", "w", progress=False) as local:
        paths = self.save(local, *args, **kwargs)
    stem = folder.spell(folder.rest).rstrip("/")
    return [f"{stem}/{os.path.relpath(path, local)}" for path in paths]

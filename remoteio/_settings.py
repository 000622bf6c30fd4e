"""What one scope decides, as plain values that every layer below it can be handed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OptionTable = Mapping[str, Mapping[str, Any]]

ON_ERROR_WORDS = ("discard", "commit")
ALSO_WORDS = ("paths", "torch")


@dataclass(frozen=True, slots=True)
class Settings:
    """The options in force for one call.

    Attributes:
        schemes: The only schemes taken for URLs, in lower case; None means all that
            fsspec knows.
        storage_options: Tables from a scheme or a URL prefix to the options of its store,
            the innermost scope's first.
        on_error: Patterns of base names, each with ``"commit"`` or ``"discard"``: what
            becomes of a written file when its block ends by an exception.
        flush_interval_s: Seconds that must lie between two publications by ``flush()``;
            None means that ``flush()`` publishes nothing.
        directory_markers: Whether ``makedirs`` writes a marker object that others see.
        allow_bucket_delete: Whether ``rmtree`` may empty a bucket or a store's root.
        also: The tables beside the ten that answer, by their words.
    """

    schemes: frozenset[str] | None = None
    storage_options: tuple[OptionTable, ...] = ()
    on_error: Mapping[str, str] = field(default_factory=dict)
    flush_interval_s: float | None = None
    directory_markers: bool = False
    allow_bucket_delete: bool = False
    also: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        # Options hold credentials: only the names of the stores they are for are shown.
        names = [sorted(table) for table in self.storage_options]
        return f"Settings(schemes={self.schemes!r}, storage_options for {names!r}, on_error={self.on_error!r})"


DEFAULT = Settings()


def current() -> Settings:
    """The settings in force here. The scope puts its own answer in this place; without one the default is in force."""
    return DEFAULT

"""The options of one ``remote_io`` call: checked, and laid over the enclosing scope's."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from remoteio._settings import ALSO_WORDS, ON_ERROR_WORDS, OptionTable, Settings
from remoteio._urls import redact

__all__ = ["Options", "is_enabled"]


@dataclass(frozen=True, slots=True)
class Options:
    """What one scope says itself; None where it says nothing.

    Attributes:
        schemes: The only schemes taken for URLs, in lower case.
        storage_options: Tables of store options, the first asked first.
        on_error: Words by pattern of the base name.
        flush_interval_s: Seconds between two publications by ``flush()``.
        directory_markers: Whether ``makedirs`` writes markers.
        allow_bucket_delete: Whether ``rmtree`` may empty a bucket.
        inherit_threads: Whether threads started inside are inside.
        enabled: Whether it does anything.
        also: The tables beside the ten that answer, by their words.
    """

    schemes: frozenset[str] | None = None
    storage_options: tuple[OptionTable, ...] = ()
    on_error: Mapping[str, str] | None = None
    flush_interval_s: float | None = None
    directory_markers: bool | None = None
    allow_bucket_delete: bool | None = None
    inherit_threads: bool = True
    enabled: bool | Literal["env"] = True
    also: frozenset[str] = frozenset()

    @classmethod
    def checked(
        cls,
        *,
        schemes: Iterable[str] | None,
        storage_options: OptionTable | None,
        on_error: str | Mapping[str, str] | None,
        flush_interval_s: float | None,
        directory_markers: bool | None,
        allow_bucket_delete: bool | None,
        inherit_threads: bool,
        enabled: bool | Literal["env"],
        also: str | Iterable[str] | None = None,
    ) -> Options:
        """Check the options as a caller gave them.

        Raises:
            TypeError: One is of the wrong type.
            ValueError: One is out of its range.
        """
        return cls(
            schemes=None if schemes is None else _schemes(schemes),
            storage_options=() if storage_options is None else (_table(storage_options),),
            on_error=None if on_error is None else _words(on_error),
            flush_interval_s=None if flush_interval_s is None else _seconds(flush_interval_s),
            directory_markers=_flag("directory_markers", directory_markers, None),
            allow_bucket_delete=_flag("allow_bucket_delete", allow_bucket_delete, None),
            inherit_threads=bool(_flag("inherit_threads", inherit_threads)),
            enabled=_flag("enabled", enabled, "env"),
            also=frozenset() if also is None else _tables(also),
        )

    def over(self, outer: Settings) -> Settings:
        """The settings in force inside, within a scope with the given ones."""
        if self == _NOTHING_SAID:
            return outer
        said = {
            name: value
            for name in ("schemes", "on_error", "flush_interval_s", "directory_markers", "allow_bucket_delete")
            if (value := getattr(self, name)) is not None
        }
        tables = (*self.storage_options, *outer.storage_options)
        return replace(outer, storage_options=tables, also=outer.also | self.also, **said)

    def in_force(self, settings: Settings) -> Options:
        """The same, with everything said that the enclosing scopes said."""
        return replace(
            self,
            schemes=settings.schemes,
            storage_options=settings.storage_options,
            on_error=dict(settings.on_error),
            flush_interval_s=settings.flush_interval_s,
            directory_markers=settings.directory_markers,
            allow_bucket_delete=settings.allow_bucket_delete,
            also=settings.also,
        )

    def shown(self) -> str:
        """What was said, as it may be printed: store options by name only, they hold credentials."""
        parts = []
        for name in self.__slots__:
            value = getattr(self, name)
            if value == getattr(_NOTHING_SAID, name):
                continue
            if name == "storage_options":
                value = sorted(redact(key) for table in value for key in table)
            elif name in ("schemes", "also"):
                value = sorted(value)
            parts.append(f"{name}={value!r}")
        return ", ".join(parts)


_NOTHING_SAID = Options()


def is_enabled(enabled: bool | Literal["env"]) -> bool:
    """Whether a scope is on; ``"env"`` asks the environment and what is installed."""
    if enabled != "env":
        return bool(enabled)
    if os.environ.get("USE_FSSPEC") == "1":
        return True
    from remoteio import _vendors

    return bool(_vendors.installed())


def _flag(name: str, value: Any, *others: Any) -> Any:
    if isinstance(value, bool) or any(value is other or (other is not None and value == other) for other in others):
        return value
    allowed = " or ".join(repr(choice) for choice in (True, False, *others))
    raise TypeError(f"{name} is {allowed}, not {value!r}")


def _schemes(schemes: Iterable[str]) -> frozenset[str]:
    if isinstance(schemes, (str, bytes)):
        raise TypeError(f"schemes is a collection of names, not one text: write [{schemes!r}]")
    found = list(schemes)
    if not all(isinstance(scheme, str) for scheme in found):
        raise TypeError(f"schemes is a collection of names, not {found!r}")
    if wrong := [scheme for scheme in found if not scheme or ":" in scheme or "/" in scheme]:
        raise ValueError(f"a scheme is the word before ://, not {wrong[0]!r}")
    return frozenset(scheme.lower() for scheme in found)


def _tables(also: str | Iterable[str]) -> frozenset[str]:
    words = (also,) if isinstance(also, str) else also
    allowed = f"also is one or several of {', '.join(map(repr, ALSO_WORDS))}, or 'all'"
    if isinstance(words, bytes) or not isinstance(words, Iterable):
        raise TypeError(f"{allowed}, not {also!r}")
    found = list(words)
    if not all(isinstance(word, str) for word in found):
        raise TypeError(f"{allowed}, not {also!r}")
    if unknown := [word for word in found if word not in (*ALSO_WORDS, "all")]:
        raise ValueError(f"{allowed}, not {unknown[0]!r}")
    return frozenset(ALSO_WORDS if "all" in found else found)


def _table(table: OptionTable) -> OptionTable:
    # The values are never shown: they are credentials.
    if not isinstance(table, Mapping):
        raise TypeError("storage_options is a mapping from a scheme or a URL prefix to options")
    for name, options in table.items():
        if not isinstance(name, str):
            raise TypeError("the keys of storage_options are schemes or URL prefixes")
        if not isinstance(options, Mapping):
            raise TypeError(
                "storage_options maps a scheme or a URL prefix to a mapping of options, "
                f"as in {{'s3': {{...}}}}; that of {name.partition('://')[0]!r} is a {type(options).__name__}"
            )
    return {name: dict(options) for name, options in table.items()}


def _words(on_error: str | Mapping[str, str]) -> Mapping[str, str]:
    words = {"*": on_error} if isinstance(on_error, str) else on_error
    if not isinstance(words, Mapping):
        raise TypeError(f"on_error is a word or a mapping from patterns to words, not {type(on_error).__name__}")
    for pattern, word in words.items():
        if not isinstance(pattern, str):
            raise TypeError(f"the keys of on_error are patterns of base names, not {pattern!r}")
        if word not in ON_ERROR_WORDS:
            raise ValueError(f"on_error is {' or '.join(map(repr, ON_ERROR_WORDS))}, not {word!r}")
    return dict(words)


def _seconds(value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"flush_interval_s is a number of seconds, not {type(value).__name__}")
    if not value >= 0:
        raise ValueError(f"flush_interval_s is at least 0, not {value!r}")
    return float(value)

"""Noticing that something took a URL for a local path: a new entry ``s3:`` in the working directory."""

from __future__ import annotations

import os
import time
import warnings
from dataclasses import dataclass

from remoteio.errors import LocalShadowWarning

__all__ = ["Seen", "look", "warn_of_new"]

ENTRIES = 10_000  # in a larger directory nobody looks
TICK = 100_000_000  # nanoseconds; a change within a file system's tick does not show in the time


@dataclass(frozen=True, slots=True)
class Seen:
    """What the working directory held of names that end in a colon.

    Attributes:
        place: Device and inode of the directory.
        changed: When an entry of it came or went, in nanoseconds.
        names: The names.
        is_lasting: Whether they are the same as long as that time is.
    """

    place: tuple[int, int]
    changed: int
    names: frozenset[str]
    is_lasting: bool


_last: Seen | None = None


def look() -> Seen | None:
    """What is there now; None where nobody can look, or it would take long."""
    global _last
    try:
        here = os.stat(".")
        place, changed = (here.st_dev, here.st_ino), here.st_mtime_ns
        last = _last
        if last is not None and last.is_lasting and (last.place, last.changed) == (place, changed):
            return last
        names: set[str] = set()
        with os.scandir(".") as entries:
            for count, entry in enumerate(entries):
                if count >= ENTRIES:
                    return None
                if entry.name.endswith(":"):
                    names.add(entry.name)
    except OSError:
        return None
    _last = Seen(place, changed, frozenset(names), time.time_ns() - changed > TICK)
    return _last


def warn_of_new(before: Seen | None, stacklevel: int) -> None:
    """Warn of what came since, if it is named like a scheme.

    Args:
        before: What was there.
        stacklevel: As for ``warnings.warn``, counted from the caller.
    """
    after = look() if before is not None else None
    if before is None or after is None or before.place != after.place or after.names <= before.names:
        return
    from remoteio import _stores

    found = sorted(name for name in after.names - before.names if _stores.known(name[:-1].lower()))
    if found:
        warnings.warn(
            f"the working directory has gained {', '.join(found)}: something that this scope does not answer for took"
            " a URL for a local path; remote_io(also='all') answers for more, and staged_local(url) gives a local file",
            LocalShadowWarning,
            stacklevel + 1,
        )

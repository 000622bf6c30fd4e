"""How often each function was answered, and how many bytes went either way."""

from __future__ import annotations

import os
import threading
from typing import NamedTuple

__all__ = ["Counts", "count", "snapshot"]


class Counts(NamedTuple):
    """What one function did on one scheme, in this process.

    Attributes:
        calls: Calls that were answered from a store.
        bytes_read: Bytes fetched from the store.
        bytes_written: Bytes published to the store.
    """

    calls: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


# Reentrant: a signal handler of this very thread may be answered while it counts.
_lock = threading.RLock()
_counts: dict[tuple[str, str], Counts] = {}


def count(function: str, scheme: str, calls: int = 0, bytes_read: int = 0, bytes_written: int = 0) -> None:
    """Add to the counts of a function on a scheme.

    Args:
        function: The bare name of one of the ten, ``"open"`` or ``"listdir"``.
        scheme: The scheme in lower case.
        calls: Calls to add.
        bytes_read: Bytes to add.
        bytes_written: Bytes to add.
    """
    with _lock:
        had = _counts.get((function, scheme)) or Counts()
        _counts[function, scheme] = Counts(
            had.calls + calls, had.bytes_read + bytes_read, had.bytes_written + bytes_written
        )


def snapshot() -> dict[tuple[str, str], Counts]:
    """The counts so far, by function and scheme."""
    with _lock:
        return dict(_counts)


def _after_fork_in_child() -> None:
    # Another thread may have held the lock; no entry can be half written, each is replaced as a whole.
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

"""What ``status()`` tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from remoteio._counters import Counts

__all__ = ["Status"]


@dataclass(frozen=True, slots=True)
class Status:
    """What is installed in this process now, and what was done so far. Prints as a table.

    Attributes:
        places: Each patched name with ``"ours"``, ``"foreign"`` (someone patched over ours
            meanwhile) or ``"not installed"`` (outside of every scope, or set back by someone).
        scopes: Open scopes, of all threads.
        threads: Threads that have entered them.
        inside: Whether the asking thread is in one.
        counts: Calls and bytes by function and scheme, since the process began.
        tables: Of each function the word of ``remote_io(also=...)`` whose table answers for
            it; the empty word stands for the ten.
        engines: What moves the bytes of ``staged_local``, and whether it is used or why not.
    """

    places: Mapping[str, Literal["ours", "foreign", "not installed"]]
    scopes: int
    threads: int
    inside: bool
    counts: Mapping[tuple[str, str], Counts]
    tables: Mapping[str, str] = field(default_factory=dict)
    engines: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"remoteio: {self.scopes} open scopes of {self.threads} threads; this thread is {self._side}"]
        by_state: dict[str, list[str]] = {}
        for name, state in self.places.items():
            by_state.setdefault(state, []).append(name)
        lines += [f"  {state}: {', '.join(names)}" for state, names in by_state.items()]
        width = max([10, *(len(function) for function, _ in self.counts)])
        if self.counts:
            heads = f"{'table':<6} {'scheme':<10} {'calls':>9} {'bytes read':>15} {'bytes written':>15}"
            lines.append(f"  {'function':<{width}} {heads}")
        for (function, scheme), counts in sorted(self.counts.items()):
            read, written = f"{counts.bytes_read:,}", f"{counts.bytes_written:,}"
            table = self.tables.get(function) or "ten"
            lines.append(f"  {function:<{width}} {table:<6} {scheme:<10} {counts.calls:>9,} {read:>15} {written:>15}")
        lines += [f"  engine {name}: {said}" for name, said in self.engines.items()]
        return "\n".join(lines)

    @property
    def _side(self) -> str:
        return "inside" if self.inside else "outside"

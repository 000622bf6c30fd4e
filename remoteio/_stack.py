"""Which blocks each thread is in, and the settings that follow.

A thread has its own blocks, in the order they were entered, and below them those it was
born in or was handed. The last one that is still alive decides.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from enum import Enum
from typing import Any

from remoteio._settings import DEFAULT, Settings

__all__ = [
    "Entry",
    "Kind",
    "current",
    "here",
    "inheritable",
    "is_outermost",
    "nested_settings",
    "overlaid",
    "reachable",
    "running_in",
]

# The attribute under which a thread that has not begun carries the blocks it is born in.
BIRTHMARK = "_remoteio_born_in"


class Kind(Enum):
    """What a block makes of its thread."""

    REMOTE = "remote"
    NATIVE = "native"
    IDLE = "idle"  # a scope that is switched off: as if it were not there


class Entry:
    """One entry into one block.

    Attributes:
        block: The object that was entered.
        kind: What it makes of the thread.
        settings: The options in force in it, the outer blocks' included.
        inherits: Whether threads started in it are in it.
        owner: The identity of the thread that entered.
        alive: False once it was left.
        seen: What the working directory held when it was entered, if somebody looked.
    """

    __slots__ = ("alive", "block", "inherits", "kind", "owner", "seen", "settings")

    def __init__(self, block: Any, kind: Kind, settings: Settings, *, inherits: bool = True) -> None:
        self.block = block
        self.kind = kind
        self.settings = settings
        self.inherits = inherits
        self.owner = threading.get_ident()
        self.alive = True
        self.seen: Any = None


class _Here(threading.local):
    """One thread's blocks. Made anew in each thread when it first asks."""

    def __init__(self) -> None:
        self.own: list[Entry] = []
        self.base: tuple[Entry, ...] = _born_in()
        # What was set aside by `running_in`, for the time after.
        self.aside: list[tuple[list[Entry], tuple[Entry, ...]]] = []
        # While a pool starts its workers: they are born outside, each task brings its own blocks.
        self.hatching = False


def _born_in() -> tuple[Entry, ...]:
    # `threading.current_thread()` would register a dummy for a thread that is not Python's own.
    thread = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
    born: tuple[Entry, ...] = thread.__dict__.pop(BIRTHMARK, ()) if thread is not None else ()
    return born


here = _Here()


def current() -> Settings | None:
    """The settings this thread is in; None where it is native."""
    mine = here
    for stack in (mine.own, mine.base):
        for entry in reversed(stack):
            if entry.alive and entry.kind is not Kind.IDLE:
                return entry.settings if entry.kind is Kind.REMOTE else None
    return None


def nested_settings() -> Settings:
    """The settings that a block entered now starts from: the innermost scope's, native blocks aside."""
    for stack in (here.own, here.base):
        for entry in reversed(stack):
            if entry.alive and entry.kind is Kind.REMOTE:
                return entry.settings
    return DEFAULT


def is_outermost(entry: Entry) -> bool:
    """Whether this thread is in no scope but this one."""
    stacks = (here.own, here.base)
    return not any(
        other.alive and other.kind is Kind.REMOTE and other is not entry for stack in stacks for other in stack
    )


def inheritable(*, by_hand: bool = False) -> tuple[Entry, ...]:
    """The scopes this thread is in, outermost first: nothing that lies outside of a native block.

    Args:
        by_hand: Those that are not passed on to threads too.
    """
    found: list[Entry] = []
    for stack in (here.own, here.base):
        for entry in reversed(stack):
            if not entry.alive or entry.kind is Kind.IDLE:
                continue
            if entry.kind is Kind.NATIVE:
                return tuple(reversed(found))
            if entry.inherits or by_hand:
                found.append(entry)
    return tuple(reversed(found))


@contextlib.contextmanager
def running_in(entries: tuple[Entry, ...]) -> Iterator[None]:
    """Be in these blocks and no others for a while."""
    mine = here
    mine.aside.append((mine.own, mine.base))
    mine.own, mine.base = [], entries
    try:
        yield
    finally:
        mine.own, mine.base = mine.aside.pop()


@contextlib.contextmanager
def overlaid(settings: Settings) -> Iterator[None]:
    """Be in the same blocks with other settings for a while."""
    entry = Entry(None, Kind.REMOTE, settings)
    own = here.own
    own.append(entry)
    try:
        yield
    finally:
        own[:] = [other for other in own if other is not entry]


def reachable() -> set[Entry]:
    """Every living block that this thread is in, or comes back to."""
    stacks = [(here.own, here.base), *here.aside]
    return {entry for own, base in stacks for entry in (*own, *base) if entry.alive}

"""Who comes when: what ran just before changes how fast a machine is, so the turns begin at different places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def rotated(contenders: Sequence[T], turn: int) -> list[T]:
    """The contenders in their order, in each turn from another one on."""
    first = turn * max(1, len(contenders) // 3) % max(1, len(contenders))
    return [*contenders[first:], *contenders[:first]]

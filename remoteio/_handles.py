"""The layers above a spool: the standard library's own classes, told how their block ended.

``close`` decides in the outermost layer, before anything is flushed, whether to publish.
A flush that fails then means that nothing is.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from remoteio import _at_exit
from remoteio._spool import Spool

if TYPE_CHECKING:
    _Base = io.BufferedWriter
else:
    _Base = object

__all__ = ["SpoolRandom", "SpoolText", "SpoolWriter", "cover"]


class _Buffered(_Base):
    """What the two buffered layers share."""

    covered = False  # whether a text layer answers for closing this one

    def __exit__(self, *args: Any) -> None:
        _leave(_spool_of(self), args)
        self.close()

    def flush(self) -> None:
        super().flush()
        spool = _spool_of(self)
        if spool is not None:
            spool.publish_so_far()

    def close(self) -> None:
        _close(self, super().close, _spool_of(self))

    def detach(self) -> Any:
        raw = cast(Spool, super().detach())
        cover(raw, raw)
        return raw

    def __del__(self) -> None:
        # See Spool.__del__: whichever layer the collector takes first, the outermost closes them all.
        if not self.covered:
            super().__del__()


class SpoolWriter(_Buffered, io.BufferedWriter):
    """A buffered handle that writes."""


class SpoolRandom(_Buffered, io.BufferedRandom):  # type: ignore[misc]  # the stand-in base is a writer
    """A buffered handle that reads and writes."""


class SpoolText(io.TextIOWrapper):
    """A text handle that writes."""

    def __exit__(self, *args: Any) -> None:
        _leave(_spool_of(self), args)
        self.close()

    def close(self) -> None:
        _close(self, super().close, _spool_of(self))

    def detach(self) -> Any:
        buffer = cast(_Buffered, super().detach())
        buffer.covered = False
        cover(cast(Spool, buffer.raw), buffer)
        return buffer


def cover(spool: Spool, top: Any) -> None:
    """Make one layer the one that closes the spool, at the end of the program too."""
    if spool.serial is not None:
        _at_exit.unregister(spool.serial)
    spool.covered = top is not spool
    if isinstance(top, io.TextIOWrapper):
        cast(_Buffered, top.buffer).covered = True
    spool.serial = _at_exit.register(top, spool.ending)


def _spool_of(layer: Any) -> Spool | None:
    """The spool at the bottom; None below a layer that was detached or never finished."""
    try:
        below = layer.buffer.raw if isinstance(layer, io.TextIOWrapper) else layer.raw
    except (AttributeError, ValueError):
        return None
    return cast("Spool | None", below)


def _leave(spool: Spool | None, args: tuple[Any, ...]) -> None:
    if spool is not None and not spool.closed:
        spool.ending.leave(args[1] if len(args) > 1 else None)


def _close(layer: Any, close: Callable[[], None], spool: Spool | None) -> None:
    """Decide, flush, close: in this order, so that a failed flush leaves the old object."""
    if spool is None or spool.closed:
        close()
        return
    if layer._finalizing:
        spool.ending.drop()
    spool.ending.close()
    try:
        layer.flush()
    except BaseException:
        spool.ending.discard()
        with contextlib.suppress(Exception):  # the flush's own error is the one to tell
            close()
        raise
    close()

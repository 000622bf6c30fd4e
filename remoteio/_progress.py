"""Telling how far a transfer is: to a callable, or drawn as bars on a terminal.

What moves the bytes only notes them, in whatever thread. The thread that waits for the
transfer tells them on, so that a slow or failing callable never holds a store's IO thread.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

Callback = Callable[[int, int, str], object]
Wish = bool | Callback | None


class Listener(Protocol):
    """What is told about a transfer."""

    def add(self, count: int) -> None:
        """More bytes have been moved; a negative number takes some back, which have to be moved again."""

    def file_done(self) -> None:
        """One more file is complete."""


class Told:
    """A caller's own callable. What it raises ends the transfer; it is remembered, and nothing more is told."""

    def __init__(self, callback: Callback) -> None:
        """Keep the callable."""
        self._callback = callback
        self.failure: BaseException | None = None

    def __call__(self, done: int, total: int, url: str) -> None:
        """Tell it, unless it has failed before."""
        if self.failure is not None:
            return
        try:
            self._callback(done, total, url)
        except BaseException as error:
            self.failure = error
            raise


class Progress:
    """Tells the progress of one transfer of one or many files."""

    def __init__(self, wish: Wish, url: str, size: int, files: int, verb: str) -> None:
        """Begin to tell.

        Args:
            wish: A callable for ``(done_bytes, total_bytes, url)``; True for bars, False for
                nothing, None for bars on a terminal.
            url: The URL as it may be shown.
            size: Bytes in all.
            files: Files in all.
            verb: What is done, for the bars' label.
        """
        self._callback = wish if isinstance(wish, Told) else Told(wish) if callable(wish) else None
        self._url = url
        self._size = size
        self._done = 0
        self._bars: list[Any] = []
        if wish is True or (wish is None and size and _is_terminal()):
            self._bars = _bars(f"{verb} {url}", size, files)
        if self._callback is not None:
            self._callback(0, size, url)

    def add(self, count: int) -> None:
        """More bytes have been moved; a negative number takes some back, which have to be moved again."""
        self._done += count
        if self._callback is not None and count:
            self._callback(self._done, self._size, self._url)
        if self._bars:
            self._bars[0].update(count)

    def go_back_to(self, done: int) -> None:
        """So many bytes are what counts; what was moved beyond them is moved again."""
        self.add(done - self._done)

    def file_done(self) -> None:
        """One more file is complete."""
        if len(self._bars) > 1:
            self._bars[1].update(1)

    def close(self) -> None:
        """Take the bars away."""
        for bar in reversed(self._bars):
            bar.close()
        self._bars = []


class Meter:
    """Notes of moved bytes and complete files, made in one thread and told in another."""

    def __init__(self) -> None:
        # Its single operations are atomic, so that no lock can be held over a fork.
        self._notes: deque[tuple[int, str | None]] = deque()

    def moved(self, count: int) -> None:
        """Bytes went over; a negative number takes some back."""
        self._notes.append((count, None))

    def finished(self, path: str) -> None:
        """The file of this local path is complete."""
        self._notes.append((0, path))

    def tell(self, listener: Listener | None, done: Callable[[str], object] | None) -> None:
        """Tell what was noted since the last call."""
        count, complete = 0, []
        for _ in range(len(self._notes)):
            moved, path = self._notes.popleft()
            count += moved
            if path is not None:
                complete.append(path)
        for path in complete:
            if done is not None:
                done(path)
        if listener is None:
            return
        if count:
            listener.add(count)
        for _ in complete:
            listener.file_done()


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # no stderr, or a closed one
        return False


def _bars(label: str, size: int, files: int) -> list[Any]:
    try:
        from tqdm import tqdm
    except ImportError:  # bars are for comfort alone
        return []
    bars = [tqdm(total=size, unit="B", unit_scale=True, desc=label, leave=False)]
    if files > 1:
        bars.append(tqdm(total=files, unit="file", desc="files", leave=False, position=1))
    return bars

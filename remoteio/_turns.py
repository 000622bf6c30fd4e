"""Locks for disks on which ``flock`` does not work: by files that name their processes, for those of one node.

They need nothing of the disk but that a file is there when it has been made. Who has died is told by the kernel, so
that nobody waits for its files.

Source: Lamport, "A New Solution of Dijkstra's Concurrent Programming Problem", 1974: the bakery algorithm, which takes
no atomic step but to write and to read.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterator

from remoteio import _locks, _node_root

PAUSE_S = 0.01


class Presence:
    """A file that is there as long as its maker is in, or lives.

    Attributes:
        path: The file.
    """

    def __init__(self, folder: str, suffix: str) -> None:
        """Make it.

        Raises:
            FileNotFoundError: The folder is gone.
        """
        self._pid = os.getpid()
        self.path = os.path.join(folder, f"{_locks.identity()}-{uuid.uuid4().hex}{suffix}")
        _make(self.path)

    def release(self) -> None:
        """Be gone. In a forked child nothing is: the file is its parent's."""
        if self._pid == os.getpid():
            _remove(self.path)


def is_free(path: str) -> bool:
    """Whether the maker of such a file is gone."""
    return not os.path.lexists(path) or not _lives(os.path.basename(path))


class Turn:
    """One process's or thread's turn in a folder, held from ``wait`` to ``release``."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._pid = os.getpid()
        self._name = f"{_locks.identity()}-{uuid.uuid4().hex}"
        self._number = 0

    @property
    def _path(self) -> str:
        return os.path.join(self._folder, f"turn-{self._number:012}-{self._name}")

    def wait(self, give_up: Callable[[], None]) -> None:
        """Wait for the turn.

        Args:
            give_up: Called between two looks; it raises to end the wait.

        Raises:
            FileNotFoundError: The folder is gone.
        """
        try:
            self._draw()
            while not self._is_first():
                give_up()
                time.sleep(PAUSE_S)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let the next one have it."""
        if self._number and self._pid == os.getpid():
            _remove(self._path)

    def is_alone(self) -> bool:
        """Whether there is nothing else in the folder."""
        return set(_node_root.names(self._folder)) <= {os.path.basename(self._path)}

    def _draw(self) -> None:
        """Take a number that is larger than all; two that draw at once may have the same."""
        choosing = os.path.join(self._folder, f"choosing-{self._name}")
        _make(choosing)
        try:
            self._number = 1 + max((number for number, _ in self._numbers()), default=0)
            _make(self._path)
        finally:
            _remove(choosing)

    def _is_first(self) -> bool:
        # Two looks, in this order: who is not choosing in the first has its number before the second, or a larger one.
        for name in _node_root.names(self._folder):
            if name.startswith("choosing-") and self._lives(name, name.removeprefix("choosing-")):
                return False
        mine = self._number, self._name
        return not any(
            (number, name) < mine and self._lives(f"turn-{number:012}-{name}", name) for number, name in self._numbers()
        )

    def _numbers(self) -> Iterator[tuple[int, str]]:
        for name in _node_root.names(self._folder):
            if name.startswith("turn-"):
                number, _, owner = name.removeprefix("turn-").partition("-")
                yield int(number), owner

    def _lives(self, name: str, owner: str) -> bool:
        if _lives(owner):
            return True
        _remove(os.path.join(self._folder, name))
        return False


def _lives(name: str) -> bool:
    return _locks.is_alive(name) is not False


def _make(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)

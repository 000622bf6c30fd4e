"""How the processes of a node keep out of each other's way in a folder, and hear that one of them has died.

By ``flock`` where it works, else by files that name their processes.
"""

from __future__ import annotations

import abc
import contextlib
import os
import uuid
from collections.abc import Callable, Iterator

from remoteio import _locks, _node_root, _turns
from remoteio._locks import Lock
from remoteio._node_root import Root
from remoteio._turns import Presence, Turn


class Guard(abc.ABC):
    """One way of it.

    Attributes:
        locks: Whether it is by ``flock``.
        mark: What the names of its folders end in, so that no other way is used in them.
    """

    mark = ""
    locks = False

    @abc.abstractmethod
    def is_free(self, path: str) -> bool:
        """Whether the process that a member's file stands for has left or died."""

    @abc.abstractmethod
    def member(self, folder: str) -> Lock | Presence:
        """Be a member of a session, until it is released."""

    @abc.abstractmethod
    def hold(self, folder: str, give_up: Callable[[], None]) -> Callable[[], None]:
        """Wait for the sole right to a folder.

        Args:
            folder: The folder.
            give_up: Called between two tries; it raises to end the wait.

        Returns:
            How to give the right back, and to remove the folder where it is empty.

        Raises:
            FileNotFoundError: The folder is gone.
        """

    def owns(self, name: str) -> bool:
        """Whether a folder of this name is one in which this way is used."""
        return name.endswith(self.mark) if self.mark else _MARK not in name


_MARK = "-by-name-"


class _ByLock(Guard):
    """By ``flock``."""

    locks = True

    def is_free(self, path: str) -> bool:
        return _locks.is_free(path)

    def member(self, folder: str) -> Lock:
        made = Lock(os.path.join(folder, f"{uuid.uuid4().hex}.member"))
        made.take()
        return made

    def hold(self, folder: str, give_up: Callable[[], None]) -> Callable[[], None]:
        lock = Lock(os.path.join(folder, "lock"))
        lock.wait(give_up)
        return lambda: self._close(folder, lock)

    @staticmethod
    def _close(folder: str, lock: Lock) -> None:
        with contextlib.suppress(OSError):
            if set(_node_root.names(folder)) <= {"lock"}:
                os.unlink(lock.path)
                os.rmdir(folder)  # fails where one who waited has made a lock of its own meanwhile
        lock.release()


class _ByName(Guard):
    """By files that name their processes, where ``flock`` does not work. Each node has folders of its own then."""

    def __init__(self) -> None:
        self.mark = f"{_MARK}{_locks.identity().partition('-')[0]}"

    def is_free(self, path: str) -> bool:
        return _turns.is_free(path)

    def member(self, folder: str) -> Presence:
        return Presence(folder, ".member")

    def hold(self, folder: str, give_up: Callable[[], None]) -> Callable[[], None]:
        turn = Turn(folder)
        turn.wait(give_up)
        return lambda: self._close(folder, turn)

    @staticmethod
    def _close(folder: str, turn: Turn) -> None:
        alone = turn.is_alone()
        turn.release()
        if alone:
            with contextlib.suppress(OSError):  # somebody waits there already
                os.rmdir(folder)


def guard_of(root: Root) -> Guard:
    """What works in a root."""
    return _ByLock() if _locks.works(root.part("tmp")) else _ByName()


@contextlib.contextmanager
def inside(root: Root, name: str, guard: Guard) -> Iterator[str]:
    """Have the sole right to a URL's folder, which exists as long as somebody has it or something is in it."""
    while True:
        try:
            folder = root.folder("ranks", f"{name}{guard.mark}")
            close = guard.hold(folder, lambda: None)
            break
        except FileNotFoundError:  # its last user removed it in between
            continue
    try:
        yield folder
    finally:
        close()
        root.tidy()

"""Advisory locks on files, and who a process is: they save work, the bytes never depend on them.

``flock`` is released by the kernel when its holder dies, however it dies. Where it does not
work (some network disks refuse it, some grant it to everybody), ``works`` says so, and its
callers do without.

Source: flock(2); proc(5) for a process's start time.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

BUSY = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES})
PAUSE_S = 0.01
LONGEST_PAUSE_S = 0.1


class Lock:
    """One lock file, held by this object until ``release``; threads of a process exclude each other too.

    Attributes:
        path: The lock file. It may be removed by its holder: whoever waited then opens the new one.
    """

    __slots__ = ("_descriptor", "_pid", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = -1
        self._pid = 0

    def take(self, *, shared: bool = False) -> bool:
        """Try once to take the lock.

        Returns:
            Whether it is held now.

        Raises:
            OSError: The folder is gone, or the file system knows no locks.
        """
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                if _is_still(descriptor, self.path):
                    self._descriptor, self._pid, descriptor = descriptor, os.getpid(), -1
                    return True
            except OSError as error:
                if error.errno not in BUSY:
                    raise
                return False
            finally:
                if descriptor >= 0:
                    os.close(descriptor)

    def wait(self, give_up: Callable[[], None], *, shared: bool = False) -> None:
        """Take the lock, however long that takes.

        Args:
            give_up: Called between two tries; it raises to end the wait.
            shared: Whether others may hold it too.
        """
        pause = PAUSE_S
        while not self.take(shared=shared):
            give_up()
            time.sleep(pause)
            pause = min(pause * 1.3, LONGEST_PAUSE_S)

    def release(self) -> None:
        """Give the lock back. In a forked child nothing is given back: the lock is its parent's."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        with contextlib.suppress(OSError):  # a file system that lost the lock cannot be helped
            if self._pid == os.getpid():
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)

    def __del__(self) -> None:
        # Of an interrupted block nothing else may be left that could give it back.
        self.release()

    def tell(self, said: dict[str, Any]) -> None:
        """Write for those who wait who holds the lock. Only its holder may."""
        text = json.dumps(said).encode()
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text, 0)

    def told(self) -> dict[str, Any]:
        """What the holder wrote; empty where nothing can be read."""
        return read_json(self.path) or {}


def is_free(path: str) -> bool:
    """Whether nobody holds a lock file; one that does not exist is held by nobody."""
    if not os.path.lexists(path):
        return True
    probe = Lock(path)
    try:
        return probe.take()
    except OSError:
        return False
    finally:
        probe.release()


def _is_still(descriptor: int, path: str) -> bool:
    try:
        now = os.lstat(path)
    except FileNotFoundError:
        return False
    held = os.fstat(descriptor)
    return (held.st_dev, held.st_ino) == (now.st_dev, now.st_ino)


def works(folder: str) -> bool:
    """Whether locks in a folder keep anybody out: a second taker has to be refused."""
    try:
        descriptor, path = tempfile.mkstemp(prefix=".lock-", dir=folder)
    except OSError:
        return False
    # The same file opened anew has a lock of its own, as another process's would be.
    again = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    os.unlink(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno in BUSY
        return False
    except OSError:
        return False
    finally:
        os.close(descriptor)
        os.close(again)


def read_json(path: str) -> dict[str, Any] | None:
    """A small file's content; None where it is missing, cut off, or no such thing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb") as file:
            found = json.loads(file.read())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def write_json(path: str, content: dict[str, Any]) -> None:
    """Write a small file by a temporary name, so that it is there whole or not at all."""
    descriptor, temporary = tempfile.mkstemp(prefix=".", dir=os.path.dirname(path))
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(json.dumps(content).encode())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


# ---- who a process is


@functools.lru_cache(maxsize=1)
def _space(_: int) -> str:
    """The space in which a process number means something: this boot and this container."""
    said = ""
    with contextlib.suppress(OSError):
        with os.fdopen(os.open("/proc/sys/kernel/random/boot_id", os.O_RDONLY)) as file:
            said = file.read()
        said += os.readlink("/proc/self/ns/pid")
    return hashlib.sha256((said or os.uname().nodename).encode()).hexdigest()[:8]


def _started(pid: int) -> str:
    """When a process began, in the kernel's ticks, which tells it from a later one of its number; empty once dead."""
    try:
        with os.fdopen(os.open(f"/proc/{pid}/stat", os.O_RDONLY), "rb") as file:
            state, *rest = file.read().rpartition(b")")[2].split()
            return "" if state in (b"Z", b"X") else rest[18].decode()
    except (OSError, IndexError):
        return ""


def identity(pid: int | None = None) -> str:
    """A name for a process, this one if no other is named, that no other process has: ``space-pid-start``."""
    pid = os.getpid() if pid is None else pid
    return f"{_space(0)}-{pid}-{_started(pid) or 0}"


def is_alive(name: str) -> bool | None:
    """Whether the process of such a name (or of a longer one that begins so) lives; None where that cannot be told."""
    space, pid, start, *_ = [*name.split("-"), "", "", ""]
    if space != _space(0) or not pid.isdigit():
        return None
    if os.path.isdir("/proc/self"):
        return _started(int(pid)) == start
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

"""What was fetched, once for all processes of a node: entries, who uses them, and what is too old or too much.

    entries/<name>/
        present       held shared by everybody who uses the entry or waits for it
        lock          held by the one who fetches
        about.json    the URL, for ``remoteio cache list``
        used          touched at each use
        failed.json   why the last fetch failed
        current       the name of the newest version
        v-<id>/       one version, complete since it has this name: lease, manifest.json, data/<basename>

Source: rename(2) and flock(2), whose promises are all that is relied upon.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import os
import stat
import time
import uuid
from collections.abc import Callable
from typing import Any

from remoteio import _locks, _node_root, _staging_remote, errors
from remoteio._locks import Lock
from remoteio._node_root import Root, Temporary
from remoteio._settings import Settings
from remoteio._staging_remote import Item, Remote
from remoteio.errors import StagingError

# A holder whose fetch does not move for so long is taken for hung where the caller set no bound of its own.
STILL_S = 600.0
LEAVE_S = 1.0

Fetch = Callable[[Remote, str], None]


class Lease:
    """The right to use one version of an entry until ``release``.

    Attributes:
        path: The file or directory, not to be written to.
    """

    def __init__(self, path: str, release: Callable[[], None]) -> None:
        self.path = path
        self._release = release

    def release(self) -> None:
        """Give it back; the last user of an entry that is not kept removes it."""
        self._release()


def acquire(root: Root, remote: Remote, settings: Settings, fetch: Fetch, timeout_s: float | None) -> Lease:
    """Have what a URL was when it was looked at, fetched by this process or another of the node.

    Args:
        root: Where it is kept.
        remote: What the store said of it just now.
        settings: The options in force.
        fetch: Puts the files below a path.
        timeout_s: Seconds to wait for the process that fetches; None waits as long as bytes arrive.

    Raises:
        StagingError: There is no room for it, or the one who fetches hangs.
        OSError: It could not be fetched; every process that waited raises the same.
    """
    _node_root.sweep(root)
    locks_work = _locks.works(root.part("tmp"))
    if locks_work and not root.keeps:
        _sweep_entries(root)
    if remote.fingerprint is None or not locks_work:
        return _alone(root, remote, fetch)
    return _shared(root, remote, _staging_remote.entry_name(remote, settings), fetch, timeout_s)


def _alone(root: Root, remote: Remote, fetch: Fetch) -> Lease:
    """A copy for this block only: where locks do not work, or nothing tells one content from another."""
    temporary = Temporary(root)

    def release() -> None:
        temporary.remove()
        root.tidy()

    try:
        _build(temporary.path, remote, fetch)
    except BaseException:
        release()
        raise
    return Lease(_data(temporary.path, remote), release)


def _shared(root: Root, remote: Remote, name: str, fetch: Fetch, timeout_s: float | None) -> Lease:
    present = _enter(root, name)
    folder = os.path.dirname(present.path)
    lease: Lock | None = None

    def release() -> None:
        if lease is not None:
            lease.release()
        present.release()
        _leave(root, folder)

    try:
        lease = _current(root, remote, folder, fetch, timeout_s)
    except BaseException:
        release()
        raise
    return Lease(_data(os.path.dirname(lease.path), remote), release)


def _enter(root: Root, name: str) -> Lock:
    """Be counted among those who use an entry; it cannot be removed from here on."""
    while True:
        present = Lock(os.path.join(root.folder("entries", name), "present"))
        try:
            present.wait(lambda: None, shared=True)  # whoever holds it alone is removing the entry, which is quick
            return present
        except FileNotFoundError:  # removed in between
            continue


def _current(root: Root, remote: Remote, folder: str, fetch: Fetch, timeout_s: float | None) -> Lock:
    """Hold the version that is the one looked at, fetching it where it is not there."""
    failures = _failure(folder).get("number", 0)
    lock = Lock(os.path.join(folder, "lock"))
    lock.wait(_patience(root, lock, remote, timeout_s))
    try:
        lease = _valid(folder, remote)
        if lease is None:
            _raise_failure(folder, failures, remote)
            lease = _fetch_version(root, remote, folder, fetch, lock)
        _touch(os.path.join(folder, "used"))
        return lease
    finally:
        lock.release()


# ---- waiting for the one who fetches


def _patience(root: Root, lock: Lock, remote: Remote, timeout_s: float | None) -> Callable[[], None]:
    began = moved = time.monotonic()
    seen: Any = None

    def give_up() -> None:
        nonlocal moved, seen
        now = time.monotonic()
        if timeout_s is None:
            if now - moved < 1:
                return
            pulse = _pulse(root, lock)
            if pulse != seen:
                seen, moved = pulse, now
                return
        if now - (moved if timeout_s is None else began) < (STILL_S if timeout_s is None else timeout_s):
            return
        holder = lock.told().get("pid", "unknown")
        said = f"{os.strerror(errno.ETIMEDOUT)} (process {holder} has been fetching it for {now - began:.0f} s)"
        raise StagingError(errno.ETIMEDOUT, said, remote.location.url.shown)

    return give_up


def _pulse(root: Root, lock: Lock) -> Any:
    """Something that is different once more bytes have arrived."""
    told = lock.told()
    folder = os.path.join(root.path, "tmp", str(told.get("folder", "")))
    said: list[Any] = [told.get("pid")]
    for here, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                found = os.lstat(os.path.join(here, name))
                said.append((found.st_size, found.st_blocks, found.st_mtime_ns))
    return said


def _failure(folder: str) -> dict[str, Any]:
    return _locks.read_json(os.path.join(folder, "failed.json")) or {}


def _note_failure(folder: str, remote: Remote, error: OSError) -> None:
    content = {
        "number": _failure(folder).get("number", 0) + 1,
        "fingerprint": remote.fingerprint,
        "class": type(error).__name__,
        "errno": error.errno,
        "strerror": error.strerror,
        "filename": error.filename if isinstance(error.filename, str) else None,
    }
    with contextlib.suppress(OSError):  # the disk may be full, which then is the failure
        _locks.write_json(os.path.join(folder, "failed.json"), content)


def _raise_failure(folder: str, seen: int, remote: Remote) -> None:
    """Raise what another process met while this one waited for it: asking again would only take longer."""
    failed = _failure(folder)
    if failed.get("number", 0) == seen or failed.get("fingerprint") != remote.fingerprint:
        return
    name = str(failed.get("class"))
    kind = getattr(errors, name, None) or getattr(builtins, name, OSError)
    if not (isinstance(kind, type) and issubclass(kind, OSError)):
        kind = OSError
    raise kind(failed.get("errno"), failed.get("strerror"), failed.get("filename"))


# ---- versions


def _data(version: str, remote: Remote) -> str:
    return os.path.join(version, "data", remote.basename)


def _fetch_version(root: Root, remote: Remote, folder: str, fetch: Fetch, lock: Lock) -> Lock:
    temporary = Temporary(root)
    try:
        lock.tell({"pid": os.getpid(), "folder": os.path.basename(temporary.path)})
        _build(temporary.path, remote, fetch)
        version = os.path.join(folder, f"v-{uuid.uuid4().hex}")
        _locks.write_json(os.path.join(folder, "about.json"), {"url": remote.location.url.shown})
        temporary.moved(version)
    except OSError as error:
        temporary.remove()
        _note_failure(folder, remote, error)
        raise
    except BaseException:
        temporary.remove()
        raise
    lease = Lock(os.path.join(version, "lease"))
    lease.take(shared=True)
    _locks.write_json(os.path.join(folder, "current"), {"version": os.path.basename(version)})
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, "failed.json"))
    _drop_unused(root, folder)
    return lease


def _build(folder: str, remote: Remote, fetch: Fetch) -> None:
    """Fetch everything into a folder, and write down what is in it."""
    _node_root.require_space(folder, remote.size, remote.location.url.shown)
    top = _data(folder, remote)
    os.mkdir(os.path.dirname(top), 0o700)
    if remote.is_dir:
        _make_folders(top, remote)
    fetch(remote, top)
    for item in remote.items:
        path = local_path(top, item)
        size = os.lstat(path).st_size
        if item.info.size is not None and size != item.info.size:
            raise remote.place(item.key).error(errno.EIO, f"{size} of {item.info.size} bytes came")
        os.chmod(path, 0o444)
    settle(folder)
    files = {item.name: _signature(local_path(top, item)) for item in remote.items}
    content = {"fingerprint": remote.fingerprint, "files": files}
    _locks.write_json(os.path.join(folder, "manifest.json"), content)
    for here, _, _ in os.walk(os.path.dirname(top)):
        os.chmod(here, 0o555)


def local_path(top: str, item: Item) -> str:
    """Where a file of a staged copy lies."""
    return os.path.join(top, item.name) if item.name else top


def _make_folders(top: str, remote: Remote) -> None:
    os.mkdir(top)
    wanted = {name.rpartition("/")[0] for name in (item.name for item in remote.items)} | set(remote.folders)
    for name in sorted(wanted - {""}):
        os.makedirs(os.path.join(top, name), exist_ok=True)


def settle(folder: str) -> None:
    """Wait for the file system's clock to tick, so that a later change cannot bear the time of what is there."""
    with contextlib.suppress(AttributeError):  # clocks of other systems tick finely
        now = time.clock_gettime_ns(time.CLOCK_REALTIME_COARSE)  # type: ignore[attr-defined]
        while time.clock_gettime_ns(time.CLOCK_REALTIME_COARSE) == now:  # type: ignore[attr-defined]
            time.sleep(0.001)


def _signature(path: str) -> list[int]:
    found = os.lstat(path)
    return [stat.S_IFMT(found.st_mode), found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _valid(folder: str, remote: Remote) -> Lock | None:
    """Hold the current version, if it is what was looked at and nobody has touched it since."""
    current = str((_locks.read_json(os.path.join(folder, "current")) or {}).get("version", ""))
    version = os.path.join(folder, current)
    if not current.startswith("v-") or "/" in current or os.path.islink(version):
        return None
    lease = Lock(os.path.join(version, "lease"))
    try:
        held = lease.take(shared=True)
    except OSError:
        return None
    if held and _is_untouched(version, remote):
        return lease
    lease.release()
    return None


def _is_untouched(version: str, remote: Remote) -> bool:
    manifest = _locks.read_json(os.path.join(version, "manifest.json")) or {}
    files = manifest.get("files")
    if manifest.get("fingerprint") != remote.fingerprint or not isinstance(files, dict):
        return False
    top = _data(version, remote)
    try:
        if any(_signature(os.path.join(top, name) if name else top) != known for name, known in files.items()):
            return False
        return not remote.is_dir or _count(top) == (len(files), _folder_count(remote))
    except OSError:
        return False


def _count(top: str) -> tuple[int, int]:
    files = folders = 0
    for _, inner, names in os.walk(top):
        folders += len(inner)
        files += len(names)
    return files, folders


def _folder_count(remote: Remote) -> int:
    found: set[str] = set()
    for name in (*(item.name.rpartition("/")[0] for item in remote.items), *remote.folders):
        parts = name.split("/") if name else []
        found.update("/".join(parts[:end]) for end in range(1, len(parts) + 1))
    return len(found)


def _touch(path: str) -> None:
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        os.utime(path)


def _drop_unused(root: Root, folder: str) -> None:
    """Remove the versions that are not current and that nobody uses. The entry's lock is held."""
    current = (_locks.read_json(os.path.join(folder, "current")) or {}).get("version")
    for name in _node_root.names(folder):
        version = os.path.join(folder, name)
        if name.startswith("v-") and name != current and _locks.is_free(os.path.join(version, "lease")):
            _node_root.discard(root, version)


def _leave(root: Root, folder: str) -> None:
    """What the last user does: an entry that is not kept goes, a kept one loses its old versions."""
    if root.keeps:
        lock = Lock(os.path.join(folder, "lock"))
        with contextlib.suppress(OSError):
            if os.path.isdir(folder) and lock.take():
                _drop_unused(root, folder)
        lock.release()
        return
    remove_unused(root, folder)
    root.tidy()


def remove_unused(root: Root, folder: str) -> bool:
    """Remove an entry unless somebody uses it."""
    present = Lock(os.path.join(folder, "present"))
    try:
        if not present.take():
            return False
        _node_root.discard(root, folder)
        return True
    except FileNotFoundError:
        return True
    except OSError:
        return False
    finally:
        present.release()


def _sweep_entries(root: Root) -> None:
    folder = os.path.join(root.path, "entries")
    for name in _node_root.names(folder):
        remove_unused(root, os.path.join(folder, name))

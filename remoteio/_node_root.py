"""The folder of one user on one node: made private, checked, swept of what dead processes left.

``<base>/remoteio-<uid>`` (``-live`` where nothing is kept) holds ``entries``: what was fetched, see
``_node_cache``; ``ranks``: how the writing processes of a node find each other; ``tmp``: what is
being fetched, and private copies, each in a folder that names its process; ``kept``: what could
not be uploaded, see ``_staging_kept``: nothing here ever removes it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from remoteio import _locks
from remoteio.errors import StagingError

ENVIRONMENT = "LOCAL_CACHE_DIR"
PARTS = ("entries", "ranks", "tmp", "kept")

# The temporary folders that this process is using; one of its own that is not here was left by an interrupted block.
_ACTIVE: dict[str, None] = {}


@dataclass(frozen=True, slots=True)
class Root:
    """The folder.

    Attributes:
        path: Where it is.
        keeps: Whether entries stay when nobody uses them (a cache), or go with their last user.
    """

    path: str
    keeps: bool

    def part(self, name: str) -> str:
        """One of its parts, which exists then, private and ours."""
        path = os.path.join(self.path, name)
        # Somebody else's last block may be removing the empty folders at this moment.
        for _ in range(50):
            try:
                _own(self.path)
                _own(path)
                return path
            except FileNotFoundError:
                continue
        raise refused(errno.ENOENT, "it is removed again and again", path)

    def folder(self, part: str, name: str) -> str:
        """A folder in one of its parts, which exists then, private and ours."""
        for _ in range(50):
            try:
                path = os.path.join(self.part(part), name)
                _own(path)
                return path
            except FileNotFoundError:
                continue
        raise refused(errno.ENOENT, "it is removed again and again", self.path)

    def tidy(self) -> None:
        """Remove the empty folders of a root that keeps nothing."""
        if self.keeps:
            return
        with contextlib.suppress(OSError):  # not empty: somebody else is at work
            for name in PARTS:
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(os.path.join(self.path, name))
            os.rmdir(self.path)


def refused(number: int, said: str, path: str) -> StagingError:
    """The error about one local path."""
    return StagingError(number, f"{os.strerror(number)} ({said})", path)


def open_root(cache_dir: str | os.PathLike[str] | None) -> Root:
    """The root for a block: under ``cache_dir`` or ``LOCAL_CACHE_DIR``, else one that keeps nothing.

    Raises:
        StagingError: It is somebody else's, or a link stands in its place.
    """
    base = os.fspath(cache_dir) if cache_dir is not None else os.environ.get(ENVIRONMENT, "")
    if not base:
        return Root(os.path.join(os.path.realpath(tempfile.gettempdir()), f"remoteio-{os.getuid()}-live"), False)
    base = os.path.abspath(base)
    if not os.path.isdir(base):
        _make(base)
    _check_base(base)
    return Root(os.path.join(os.path.realpath(base), f"remoteio-{os.getuid()}"), True)


def _make(path: str) -> None:
    with contextlib.suppress(FileExistsError):
        try:
            os.mkdir(path, 0o700)
        except FileNotFoundError:
            above = os.path.dirname(path)
            if os.path.islink(above) and not os.path.exists(above):
                raise refused(errno.ENOENT, "a link above it leads nowhere", path) from None
            _make(above)
            os.mkdir(path, 0o700)


def _check_base(path: str) -> None:
    """Whoever owns the folder above ours could put something else in its place."""
    for found in (os.lstat(path), os.stat(path)):
        if found.st_uid not in (os.getuid(), 0):
            raise refused(errno.EPERM, f"the cache folder belongs to user {found.st_uid}", path)
    if not stat.S_ISDIR(found.st_mode):
        raise refused(errno.ENOTDIR, "the cache folder is none", path)
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise refused(errno.EPERM, "everybody may replace what is in the cache folder; chmod o-w, or +t", path)


def _own(path: str) -> None:
    """Make a folder, or check that the one that is there is private and ours."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        raise refused(errno.ELOOP, "a link stands where the cache has a folder", path)
    if not stat.S_ISDIR(found.st_mode):
        raise refused(errno.ENOTDIR, "the cache has a folder here", path)
    if found.st_uid != os.getuid():
        raise refused(errno.EPERM, f"it belongs to user {found.st_uid}", path)
    if stat.S_IMODE(found.st_mode) != 0o700:
        os.chmod(path, 0o700)


# ---- temporary folders


class Temporary:
    """A folder of this process under ``tmp/``, on the cache's own file system.

    Attributes:
        path: The folder.
    """

    def __init__(self, root: Root) -> None:
        name = f"{_locks.identity()}-{uuid.uuid4().hex[:12]}"
        _ACTIVE[name] = None
        try:
            self.path = root.folder("tmp", name)
            self._owner = _locks.Lock(os.path.join(self.path, "owner"))
            with contextlib.suppress(OSError):  # without locks only processes of this space can tell that it is ours
                self._owner.take()
        except BaseException:
            _ACTIVE.pop(name, None)
            raise
        self._name = name

    def is_broken(self) -> bool:
        """Whether something has cleared it, the file of its owner included."""
        return not os.path.lexists(os.path.join(self.path, "owner"))

    def moved(self, path: str) -> None:
        """Give the folder another place, where it is no longer temporary."""
        with contextlib.suppress(FileNotFoundError):  # a folder without it is never swept by others
            os.unlink(os.path.join(self.path, "owner"))
        self._owner.release()
        os.rename(self.path, path)
        _ACTIVE.pop(self._name, None)

    def remove(self) -> None:
        """Remove it with all that is in it."""
        remove_tree(self.path)
        self._owner.release()
        _ACTIVE.pop(self._name, None)


def sweep(root: Root) -> None:
    """Remove the temporary folders whose processes are gone."""
    folder = os.path.join(root.path, "tmp")
    for name in names(folder):
        path = os.path.join(folder, name)
        if name not in _ACTIVE and not _in_use(name, path):
            remove_tree(path)


def _in_use(name: str, path: str) -> bool:
    alive = _locks.is_alive(name)
    if alive is None:  # of another container or machine: its lock tells, where there is one
        owner = os.path.join(path, "owner")
        return not (_locks.works(os.path.dirname(path)) and os.path.lexists(owner) and _locks.is_free(owner))
    return alive and not name.startswith(f"{_locks.identity()}-")


def names(folder: str) -> list[str]:
    """The names in a folder; none where it is missing."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries]
    except FileNotFoundError:
        return []


def sizes(folder: str) -> Iterator[int]:
    """The bytes of every file below a folder."""
    for here, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                yield os.lstat(os.path.join(here, name)).st_size


def remove_tree(path: str) -> None:
    """Remove a folder with all that is in it, folders that may not be written to included; a link, only itself."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode):
        os.unlink(path)
        return
    for here, folders, _ in os.walk(path):
        for name in [*folders, ""]:
            inner = os.path.join(here, name)
            with contextlib.suppress(OSError):
                if not os.path.islink(inner):
                    os.chmod(inner, 0o700)
    # Another process may be sweeping the same; what cannot be removed is for the next sweep.
    shutil.rmtree(path, ignore_errors=True)


def discard(root: Root, path: str) -> None:
    """Let a folder disappear at once, then remove it."""
    temporary = Temporary(root)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, os.path.join(temporary.path, "gone"))
    finally:
        temporary.remove()


# ---- the file system below


def free_bytes(path: str) -> int:
    """Bytes that this user may still write on a folder's file system."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def require_space(path: str, needed: int, url: str) -> None:
    """Refuse to begin what cannot end.

    Raises:
        StagingError: There is not enough room; the message has both numbers.
    """
    free = free_bytes(path)
    if needed > free:
        said = f"{os.strerror(errno.ENOSPC)} ({needed:,} bytes are needed in {path}, {free:,} are free)"
        raise StagingError(errno.ENOSPC, said, url)


def file_system(path: str) -> str:
    """The type of a folder's file system, such as ``ext4``; empty where it cannot be told."""
    number = os.stat(path).st_dev
    wanted = f"{os.major(number)}:{os.minor(number)}".encode()
    try:
        with os.fdopen(os.open("/proc/self/mountinfo", os.O_RDONLY), "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return ""
    for line in lines:
        fields, _, rest = line.partition(b" - ")
        if fields.split()[2] == wanted:
            return rest.split()[0].decode()
    return ""

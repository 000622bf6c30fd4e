"""The local side of a staged directory: copied from what was fetched, and compared with it at the end."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field
from typing import Any

from remoteio import _node_root, _staging_remote
from remoteio._node_cache import local_path, settle
from remoteio._staging_remote import Remote
from remoteio.errors import StagingError

BLOCK = 2**20
# File systems that tell by a file's times that it was written to, through a mapping too.
TRUSTED = frozenset("ext2 ext3 ext4 xfs btrfs f2fs zfs overlay bcachefs".split())
# ... and those whose copies share their blocks, and so take no room.
CLONING = frozenset("xfs btrfs zfs bcachefs".split())


@dataclass(slots=True)
class Local:
    """What a block left at its staged path.

    Attributes:
        is_dir: Whether it is a directory; None where nothing is there.
        files: Local names with their sizes in bytes; the one of a file is empty.
        folders: The local names of directories with nothing in them.
    """

    is_dir: bool | None
    files: dict[str, int] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)


def copy(remote: Remote, source: str, target: str) -> None:
    """Make a copy that may be written to; its blocks are shared where the file system can.

    Raises:
        StagingError: There is no room for it.
    """
    folder = os.path.dirname(target)
    if _node_root.file_system(folder) not in CLONING:
        _node_root.require_space(folder, remote.size, remote.location.url.shown)
    if remote.is_dir:
        os.mkdir(target)
        for here, folders, _ in os.walk(source):
            for name in folders:
                os.mkdir(os.path.join(target, os.path.relpath(os.path.join(here, name), source)))
    for item in remote.items:
        _copy_file(local_path(source, item), local_path(target, item))


def _copy_file(source: str, target: str) -> None:
    reader = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            _copy_bytes(reader, writer)
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def _copy_bytes(reader: int, writer: int) -> None:
    try:
        while os.copy_file_range(reader, writer, 2**30):
            pass
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        # Not every kernel and file system copies by itself.
        offset = os.lseek(writer, 0, os.SEEK_CUR)
        while block := os.pread(reader, BLOCK, offset):
            view = memoryview(block)
            while view:
                done = os.pwrite(writer, view, offset)
                view, offset = view[done:], offset + done


def snapshot(remote: Remote, top: str) -> dict[str, Any]:
    """How every file of a fresh copy stands, by local name; a later change is seen in it.

    Where the file system does not tell of writes through a mapping the files have no standing, and are compared.
    """
    settle(top)
    if _node_root.file_system(os.path.dirname(top)) not in TRUSTED:
        return {item.name: None for item in remote.items}
    return {item.name: _standing(local_path(top, item)) for item in remote.items}


def _standing(path: str) -> tuple[int, ...]:
    found = os.lstat(path)
    return found.st_mode, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def changed(name: str, top: str, pristine: str, before: dict[str, Any]) -> bool:
    """Whether a file is new or has another content than it had; in doubt it is compared byte by byte.

    Args:
        name: Its local name.
        top: The copy that was worked on.
        pristine: What it was made from.
        before: What ``snapshot`` gave.
    """
    if name not in before:
        return True
    path = os.path.join(top, name) if name else top
    if before[name] is not None and _standing(path) == before[name]:
        return False
    return not _same(path, os.path.join(pristine, name) if name else pristine)


def _same(one: str, other: str) -> bool:
    descriptors = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in (one, other)]
    try:
        if os.fstat(descriptors[0]).st_size != os.fstat(descriptors[1]).st_size:
            return False
        offset = 0
        while True:
            left, right = (os.pread(descriptor, BLOCK, offset) for descriptor in descriptors)
            if left != right:
                return False
            if not left:
                return True
            offset += len(left)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


# ---- what the block left


def survey(top: str, shown: str) -> Local:
    """Look at what is at a staged path.

    Args:
        top: The path.
        shown: The URL, for messages.

    Raises:
        StagingError: Something there cannot be uploaded: a link out of the directory or to nowhere, a device, a
            name that is no text. The message names it.
    """
    if not os.path.lexists(top):
        return Local(None)
    found = _checked(top, top, shown)
    if not stat.S_ISDIR(found.st_mode):
        return Local(False, {"": found.st_size})
    local = Local(True)
    _survey(top, "", local, shown, (os.path.realpath(top),))
    return local


def _survey(top: str, below: str, local: Local, shown: str, above: tuple[str, ...]) -> None:
    with os.scandir(os.path.join(top, below) if below else top) as entries:
        names = sorted(entry.name for entry in entries)
    if not names and below:
        local.folders.append(below)
    for name in names:
        inner = f"{below}/{name}" if below else name
        path = os.path.join(top, inner)
        found = _checked(path, top, shown)
        if not stat.S_ISDIR(found.st_mode):
            local.files[inner] = found.st_size
            continue
        real = os.path.realpath(path)
        if real in above:
            raise _refused(errno.ELOOP, "the link leads back to a directory above it", path, shown)
        _survey(top, inner, local, shown, (*above, real))


def _checked(path: str, top: str, shown: str) -> os.stat_result:
    """Follow a link that stays inside, and refuse what is neither a file nor a directory."""
    try:
        path.encode()
    except UnicodeEncodeError:
        said = os.fsencode(path).decode(errors="replace")
        raise _refused(errno.EILSEQ, "the name is not UTF-8, as keys are", said, shown) from None
    if path != top:
        _staging_remote.check_parts(os.path.basename(path), shown)
    if os.path.islink(path):
        real, home = os.path.realpath(path), os.path.realpath(os.path.dirname(top))
        inside = os.path.join(home, os.path.basename(top))
        if real != inside and not real.startswith(f"{inside}/"):
            raise _refused(errno.EPERM, "a link leads out of the staged directory", path, shown)
    try:
        found = os.stat(path)
    except OSError as error:
        raise _refused(error.errno or errno.EIO, "it cannot be read", path, shown) from error
    if not stat.S_ISDIR(found.st_mode) and not stat.S_ISREG(found.st_mode):
        raise _refused(errno.EINVAL, "neither a file nor a directory", path, shown)
    return found


def _refused(number: int, said: str, path: str, shown: str) -> StagingError:
    return StagingError(number, f"{os.strerror(number)} ({said}: {path})", shown)

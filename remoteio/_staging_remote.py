"""What stands at a URL now, and under which local names it can lie: looked up afresh, checked, fingerprinted."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from remoteio import _stores, _urls
from remoteio._settings import Settings
from remoteio._store import Info
from remoteio._stores import Location
from remoteio.errors import StagingError

NAME_LIMIT = 255
_DRIVE = re.compile(r"[A-Za-z]:")


@dataclass(frozen=True, slots=True)
class Item:
    """One remote file.

    Attributes:
        key: Its key below the staged URL; empty where it is the staged URL itself.
        name: The local path that stands for it, below the staged path; empty in that case too.
        info: As the store described it.
    """

    key: str
    name: str
    info: Info


@dataclass(frozen=True, slots=True)
class Remote:
    """What a URL was when it was looked at.

    Attributes:
        location: The URL.
        is_dir: Whether it is a directory; None where nothing is there and nothing says what it shall be.
        exists: Whether anything is there.
        items: Its files; one for a file.
        folders: The local names of the directories that have markers.
    """

    location: Location
    is_dir: bool | None
    exists: bool
    items: tuple[Item, ...] = ()
    folders: tuple[str, ...] = field(default=())

    @property
    def basename(self) -> str:
        """The name of the staged file or directory on this machine."""
        key = self.location.key
        if self.location.store.protocol in ("http", "https"):
            key = key.partition("?")[0]  # a query is no part of a name, and may be a signature
        return short_name(_urls.basename(key) or self.location.url.scheme)

    @property
    def size(self) -> int:
        """Bytes of all files whose size is known."""
        return sum(item.info.size or 0 for item in self.items)

    @property
    def fingerprint(self) -> str | None:
        """What is different when any content is; None where the store tells nothing that would be."""
        if any(not _tells(item.info) for item in self.items) or self.location.store.protocol == "memory":
            return None
        said = [[item.key, item.info.size, item.info.version] for item in self.items]
        return _digest([self.is_dir, sorted(said), sorted(self.folders)])

    def place(self, item_key: str) -> Location:
        """The location of a file of it."""
        return self.location.child(item_key) if item_key else self.location


def _tells(info: Info) -> bool:
    # A time of change is no fingerprint: two changes may bear the same one.
    by_time = info.mtime is not None and info.version == str(info.mtime)
    return info.size is not None and bool(info.version) and not by_time


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def look(location: Location, *, may_be_denied: bool = False) -> Remote:
    """Ask the store what stands at a URL: one request for a file, one per page for a directory.

    Args:
        location: The URL.
        may_be_denied: Take what may not be read for absent, as one who only writes must.

    Raises:
        FileNotFoundError: The bucket does not exist.
        StagingError: A key cannot lie on a local disk, or would lie outside of the staged directory.
        OSError: The store could not be asked.
    """
    check_parts(_urls.basename(location.key) or "root", location.url.shown)
    try:
        return _look(location)
    except PermissionError:
        if not may_be_denied:
            raise
        return Remote(location, True if location.wants_directory else None, False)


def _look(location: Location) -> Remote:
    store, key = location.store, location.key
    found = None
    if not location.wants_directory and not location.is_root:
        found = store.head(key)
        if found is not None and not found.is_dir:
            return Remote(location, False, True, (Item("", "", found),))
    start = f"{key}/" if key else ""
    below = [info for info in store.walk(key) if info.key.startswith(start)]
    exists = bool(below) or found is not None or location.is_root
    if not exists and location.wants_directory:
        blocking = store.head(key) if key else None
        if blocking is not None and not blocking.is_dir:
            raise location.error(errno.ENOTDIR)
    files = {info.key[len(start) :]: info for info in below if not info.is_dir}
    folders = {info.key[len(start) :].rstrip("/") for info in below if info.is_dir} - {""}
    names = local_names(files, folders, location)
    items = tuple(Item(name, names[name], info) for name, info in sorted(files.items()))
    is_dir = True if exists or location.wants_directory else None
    return Remote(location, is_dir, exists, items, tuple(sorted(names[name] for name in folders)))


# ---- names


def local_names(files: Iterable[str], folders: Iterable[str], location: Location) -> dict[str, str]:
    """The local path of each key below a directory.

    Raises:
        StagingError: A key climbs out, is absolute or has a drive, or is a file and a directory at once.
    """
    names: dict[str, str] = {}
    parents: set[str] = set(folders)
    for key in (*files, *parents):
        check_parts(key, location.url.shown)
        names[key] = "/".join(short_name(part) for part in key.split("/"))
    for key in names:
        parts = key.split("/")
        parents.update("/".join(parts[:end]) for end in range(1, len(parts)))
    for key in files:
        if key in parents:
            said = f"{key!r} is a file and a directory at once, which no local disk can hold"
            raise StagingError(errno.ENOTDIR, f"{os.strerror(errno.ENOTDIR)} ({said})", location.url.shown)
    return names


def check_parts(name: str, shown: str) -> None:
    """Refuse a name that could lead out of the staged directory, here or on another system.

    Raises:
        StagingError: It names the key.
    """
    for part in name.split("/"):
        if part in ("", ".", "..") or "\0" in part or _DRIVE.match(part):
            said = f"the key {name!r} is absolute, climbs out or has a part that cannot be a local name"
            raise StagingError(errno.EINVAL, f"{os.strerror(errno.EINVAL)} ({said})", shown)


def short_name(name: str) -> str:
    """A name that the file system takes: one of more than 255 bytes is shortened in its middle."""
    raw = name.encode()
    if len(raw) <= NAME_LIMIT:
        return name
    mark = f"~{hashlib.sha256(raw).hexdigest()[:12]}~"
    half = (NAME_LIMIT - len(mark)) // 2
    # The end is longer lived than the start: it has the suffix by which programs know a format.
    return raw[:half].decode(errors="ignore") + mark + raw[-half:].decode(errors="ignore")


# ---- identity

# Options that change where bytes go or how fast they come, never which; and, by name, what is secret.
_NOT_READ = ("retries", "timeout", "concurrency", "block", "cache", "batch", "session", "loop", "asynchronous")


def entry_name(remote: Remote, settings: Settings) -> str:
    """A name for a URL as it is read here: of its store, its key and the options that change what is read."""
    location, store = remote.location, remote.location.store
    where = [str(store.endpoint), location.key] if store.has_buckets else [location.url.shown.rstrip("/")]  # type: ignore[attr-defined]
    # The endpoint is named once, however it was configured: by options here, by the environment in another process.
    options = _plain(_stores.options_for(location.url, settings), ("endpoint",) if store.has_buckets else ())
    return _digest([store.protocol, remote.is_dir, *where, options])[:32]


def _plain(options: Mapping[str, Any], known: tuple[str, ...]) -> list[Any]:
    found: list[Any] = []
    for name, value in sorted(options.items()):
        if any(word in name.lower() for word in (*_stores._SECRET_WORDS, *_NOT_READ, *known)):
            continue
        if isinstance(value, Mapping):
            found += [[name, inner] for inner in _plain(value, known)]
        elif isinstance(value, (str, int, float, bool, type(None))):
            found.append([name, _urls.redact(value) if isinstance(value, str) else value])
        else:
            found.append([name, type(value).__name__])
    return found

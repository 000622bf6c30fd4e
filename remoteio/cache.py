"""The node cache of ``staged_local``: what is in it, and how to make it smaller; and the copies it keeps of uploads.

A copy whose upload failed or was interrupted is somebody's only one. It is no entry of the cache: it is listed and
counted apart, and removed only by ``clear(kept=True)``.

Every function takes ``cache_dir``, the folder that was given to ``staged_local``; without it the one that
``LOCAL_CACHE_DIR`` names. The same is ``python -m remoteio cache``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from remoteio import _locks, _node_cache, _node_root, _settings, _staging_kept, _stores, _urls
from remoteio._node_root import Root
from remoteio._staging_kept import Kept

__all__ = ["Entry", "Kept", "clear", "kept", "limit", "list", "size"]

CacheDir = str | os.PathLike[str] | None


class Entry:
    """One entry of a cache, as it is when it is listed.

    Attributes:
        url: Its URL, without credentials.
        size: Bytes on this disk.
        used: When it was last used, in seconds since the epoch.
        in_use: Whether a block uses it now.
        folder: Where it is.
    """

    __slots__ = ("folder", "in_use", "size", "url", "used")

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.url = str((_locks.read_json(os.path.join(folder, "about.json")) or {}).get("url", ""))
        self.size = sum(_node_root.sizes(folder))
        self.in_use = not _locks.is_free(os.path.join(folder, "present"))
        try:
            self.used = os.lstat(os.path.join(folder, "used")).st_mtime
        except FileNotFoundError:
            self.used = 0.0

    def __repr__(self) -> str:
        return f"Entry({self.url!r}, {self.size:,} bytes{', in use' if self.in_use else ''})"


def list(cache_dir: CacheDir = None) -> Sequence[Entry]:
    """The entries, the least recently used first.

    Args:
        cache_dir: The cache.
    """
    return _entries(_node_root.open_root(cache_dir))


def size(cache_dir: CacheDir = None) -> int:
    """Bytes of all entries together; those of kept copies are not among them.

    Args:
        cache_dir: The cache.
    """
    return sum(entry.size for entry in list(cache_dir))


def kept(cache_dir: CacheDir = None) -> Sequence[Kept]:
    """The copies that are kept because their uploads failed or were interrupted, the oldest first.

    Args:
        cache_dir: The cache; None for the one of the environment and the temporary folder, where blocks without a
            cache keep theirs.
    """
    roots = [_node_root.open_root(cache_dir)]
    if cache_dir is None and roots[0].keeps:
        roots.append(_node_root.open_root(""))
    return sorted((one for root in roots for one in _staging_kept.kept_in(root)), key=lambda one: one.since)


_kept = kept  # of the name that an argument of ``clear`` has too


def clear(url: str | None = None, cache_dir: CacheDir = None, *, kept: bool = False) -> int:
    """Remove entries that nobody uses, or else the kept copies of uploads.

    Args:
        url: Only what is of this URL and of those below it; None for all.
        cache_dir: The cache; as for ``kept`` where that is meant.
        kept: Throw away the kept copies, and no entry. Whatever of them did not go up is lost.

    Returns:
        Bytes that became free.
    """
    wanted = None if url is None else _shown(url)
    if kept:
        return sum(one.remove() for one in _kept(cache_dir) if wanted is None or _is_below(one.url, wanted))
    root = _node_root.open_root(cache_dir)
    found = _entries(root)
    return sum(_remove(root, entry) for entry in found if wanted is None or _is_below(entry.url, wanted))


def limit(max_bytes: int, cache_dir: CacheDir = None) -> int:
    """Remove the least recently used entries until the rest fits; one in use, or a kept copy, is never touched.

    Args:
        max_bytes: What may remain, in bytes.
        cache_dir: The cache.

    Returns:
        Bytes that became free.
    """
    root = _node_root.open_root(cache_dir)
    found = _entries(root)
    over = sum(entry.size for entry in found) - max_bytes
    freed = 0
    for entry in found:
        if freed >= over:
            break
        freed += _remove(root, entry)
    return freed


def _entries(root: Root) -> Sequence[Entry]:
    folder = os.path.join(root.path, "entries")
    found = [Entry(os.path.join(folder, name)) for name in _node_root.names(folder)]
    return sorted(found, key=lambda entry: entry.used)


def _remove(root: Root, entry: Entry) -> int:
    try:
        if not _locks.works(entry.folder):  # then nobody can tell whether it is in use
            return 0
        return entry.size if _node_cache.remove_unused(root, entry.folder) else 0
    except FileNotFoundError:  # another process has removed it meanwhile
        return 0


def _shown(url: str) -> str:
    parsed = _stores.parse(url, _settings.DEFAULT)
    return (parsed.shown if parsed is not None else url).rstrip("/")


def _is_below(url: str, wanted: str) -> bool:
    url, wanted = _same_scheme(url), _same_scheme(wanted)
    return url.rstrip("/") == wanted or url.startswith(f"{wanted}/")


def _same_scheme(url: str) -> str:
    """A URL with its scheme as every spelling of it is stored."""
    scheme, mark, rest = url.partition("://")
    return f"{_urls.ALIASES.get(scheme.lower(), scheme.lower())}{mark}{rest}" if mark else url

"""What one ``glob`` call knows of a store: listed as it is asked for, with as few requests as the pattern allows."""

from __future__ import annotations

import enum
import fnmatch
import re
from collections.abc import Iterator, Sequence

from remoteio._store import Info, Store

PAGE = 1000  # names that a store gives per request
FEW = 3  # so few directories are listed one by one without further thought

# A key "a//b" or "a/./b" has such segments. No local directory lists them, and they would lead a pattern in a circle.
NO_NAMES = frozenset({"", ".", ".."})

_ESCAPED = re.compile(r"\[([^!\]])\]")


class Kind(enum.Enum):
    """What is known of a key without its entries."""

    FILE = enum.auto()
    FOLDER = enum.auto()
    NOTHING = enum.auto()
    UNKNOWN = enum.auto()


class Folder:
    """A directory of which everything below is known.

    Attributes:
        entries: Its names; None stands for a file.
    """

    __slots__ = ("entries",)

    def __init__(self) -> None:
        """Start empty."""
        self.entries: dict[str, Folder | None] = {}

    def add(self, parts: Sequence[str]) -> None:
        """Add a file by its segments, or a directory where the last is empty (a marker)."""
        folder = self
        for part in parts[:-1]:
            if part in NO_NAMES:
                return
            below = folder.entries.get(part)
            if below is None:  # new, or so far only a file
                below = folder.entries[part] = Folder()
            folder = below
        if parts[-1] not in NO_NAMES:
            folder.entries.setdefault(parts[-1], None)

    def find(self, parts: Sequence[str]) -> Folder | Kind:
        """What stands below under these segments."""
        folder = self
        for position, part in enumerate(parts):
            if part not in folder.entries:
                return Kind.NOTHING
            below = folder.entries[part]
            if below is None:
                return Kind.FILE if position == len(parts) - 1 else Kind.NOTHING
            folder = below
        return folder


class StoreFailedError(Exception):
    """Carries a store's error through code that takes every OSError for "nothing here"."""

    def __init__(self, error: OSError) -> None:
        """Keep the error."""
        super().__init__(str(error))
        self.error = error


class Tree:
    """The part of a store that one pattern touches.

    A directory is listed by itself (a scan), or with everything below it (a walk), which
    costs a request per thousand keys instead of one per directory. Below ``**`` everything
    is needed: that is a walk. Elsewhere nobody knows beforehand which is cheaper: when
    many directories are about to be looked into, a walk is tried, and given up as soon as
    it costs more requests than the directories that it has passed.
    """

    def __init__(self, store: Store, parts: Sequence[str], *, recursive: bool, include_hidden: bool) -> None:
        """Keep what is looked for.

        Args:
            store: Where.
            parts: The segments of the pattern behind its literal stem.
            recursive: Whether ``**`` stands for any depth.
            include_hidden: Whether wildcards match names that begin with a dot.
        """
        self._store = store
        self._parts = parts
        self._include_hidden = include_hidden
        self._deep = parts.index("**") if recursive and "**" in parts else len(parts)
        # By key: only names that begin with the first item are known.
        self._scans: dict[str, tuple[str, dict[str, bool]]] = {}
        self._walks: dict[str, tuple[str, Folder]] = {}
        # Scanned directories below which no walk was tried yet, with the names that match.
        self._untried: dict[str, frozenset[str]] = {}

    # ---- questions

    def names(self, key: str, depth: int) -> dict[str, bool]:
        """The names in a directory that may match, and of each whether it is a directory.

        Args:
            key: The directory's key.
            depth: How many segments it lies below the literal stem.
        """
        part = self._parts[depth] if depth < self._deep else ""
        stem = literal_start(part)
        found = self._find(key, stem, entries=True)
        if depth >= self._deep and found in (Kind.FOLDER, Kind.UNKNOWN):
            found = self._walk(key)
        if isinstance(found, Folder):
            return {name: below is not None for name, below in found.entries.items()}
        if found in (Kind.FILE, Kind.NOTHING):
            return {}
        return self._scan(key, stem, part)

    def is_dir(self, key: str) -> bool:
        """Whether a key is a directory."""
        found = self._find(key)
        if found is Kind.UNKNOWN:
            return self._store.is_prefix(key)
        return isinstance(found, Folder) or found is Kind.FOLDER

    def exists(self, key: str) -> bool:
        """Whether a key is a file or a directory."""
        found = self._find(key)
        if found is Kind.UNKNOWN:
            return (not self._is_root(key) and self._store.head(key) is not None) or self._store.is_prefix(key)
        return found is not Kind.NOTHING

    # ---- what is known

    def _find(self, key: str, stem: str = "", *, entries: bool = False) -> Folder | Kind:
        """What is known of a key, after a walk from further up if it is time to try one."""
        found = self._recall(key, stem)
        if found is not Kind.UNKNOWN and not (entries and found is Kind.FOLDER):
            return found
        for above, below in reversed(list(_lineage(key))):
            wanted = self._untried.pop(above, None) if below else None
            if wanted is not None and len(wanted) > FEW and self._try_walk(above, wanted):
                return self._recall(key, stem)
        return found

    def _recall(self, key: str, stem: str = "") -> Folder | Kind:
        """What is known of a key. A folder knows at least the names that begin with ``stem``."""
        for above, below in _lineage(key):
            walked = self._walks.get(above)
            if walked is not None and (below[0] if below else stem).startswith(walked[0]):
                return walked[1].find(below)
            scanned = self._scans.get(above)
            if scanned is not None and below and below[0].startswith(scanned[0]):
                is_dir = scanned[1].get(below[0])
                if is_dir and len(below) == 1:
                    return Kind.FOLDER
                if not is_dir:
                    return Kind.NOTHING if is_dir is None or len(below) > 1 else Kind.FILE
        return Kind.UNKNOWN

    def _is_root(self, key: str) -> bool:
        return not key.strip("/") or (self._store.has_buckets and "/" not in key)

    # ---- requests

    def _scan(self, key: str, stem: str, part: str) -> dict[str, bool]:
        """List one directory; a name that is a file and a directory is a directory."""
        own = key.rstrip("/")
        scanned = self._scans.get(own)
        if scanned is not None and stem.startswith(scanned[0]):
            return scanned[1]
        names: dict[str, bool] = {}
        with _Telling():
            for info in self._store.scan(key, stem):
                name = info.key.rpartition("/")[2]
                if name not in NO_NAMES:
                    names[name] = info.is_dir or names.get(name, False)
        self._scans[own] = (stem, names)
        if own and self._store.has_buckets:  # elsewhere a walk is no cheaper; and nobody wants one through all buckets
            self._untried[own] = self._matching(part, (name for name, is_dir in names.items() if is_dir))
        return names

    def _matching(self, part: str, names: Iterator[str]) -> frozenset[str]:
        visible = names if self._include_hidden or part.startswith(".") else (name for name in names if name[0] != ".")
        return frozenset(fnmatch.filter(visible, part))

    def _walk(self, key: str) -> Folder | Kind:
        """Learn everything below a directory."""
        if not key and self._store.has_buckets:
            return Kind.UNKNOWN  # the buckets are listed, and each is walked by itself
        folder = Folder()
        with _Telling():
            for info in self._store.walk(key):
                folder.add(_below(info, key))
        self._walks[key.rstrip("/")] = ("", folder)
        return folder

    def _try_walk(self, key: str, wanted: frozenset[str]) -> bool:
        """Learn everything below a directory, unless it is cheaper to look into the wanted directories one by one."""
        stem = self._scans[key][0]
        folder = Folder()
        passed: set[str] = set()
        try:
            with _Telling():
                for count, info in enumerate(self._store.walk(key, stem), 1):
                    parts = _below(info, key)
                    folder.add(parts)
                    if parts[0] in wanted:
                        passed.add(parts[0])
                    if count % PAGE == 0 and count // PAGE > min(len(passed), len(wanted) // 2) + 1:
                        return False
        except StoreFailedError as failed:
            if isinstance(failed.error, PermissionError):  # the right to list may be given for single directories
                return False
            raise
        self._walks[key] = (stem, folder)
        return True


class _Telling:
    """Lets "there is nothing" pass for an empty listing, and any other failure of the store be told."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, (FileNotFoundError, NotADirectoryError)):
            return True
        if isinstance(error, OSError):
            raise StoreFailedError(error) from error
        return False


def _lineage(key: str) -> Iterator[tuple[str, list[str]]]:
    """The key and every key above it, nearest first, each with the segments that lead down from it."""
    above = key.rstrip("/")
    below: list[str] = []
    while True:
        yield above, below
        if not above:
            return
        above, _, last = above.rpartition("/")
        below = [last, *below]


def _below(info: Info, key: str) -> list[str]:
    start = f"{key.rstrip('/')}/" if key else ""
    return info.key.removeprefix(start).split("/")


def literal_start(part: str) -> str:
    """With what every name begins that matches a segment of a pattern; ``[x]`` is what ``glob.escape`` makes of x."""
    start: list[str] = []
    position = 0
    while position < len(part):
        escaped = _ESCAPED.match(part, position)
        if escaped:
            start.append(escaped.group(1))
            position = escaped.end()
        elif part[position] in "*?[\0" or "\ud800" <= part[position] <= "\udfff":
            break  # a wildcard, or what no name holds and no store need be asked for
        else:
            start.append(part[position])
            position += 1
    return "".join(start)

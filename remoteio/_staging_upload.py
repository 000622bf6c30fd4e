"""Sending a staged copy home: what, in which order, verified."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import hashlib
import itertools
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from remoteio import _staging_tree, _stores, _transfer
from remoteio._progress import Progress, Told, Wish
from remoteio._settings import Settings
from remoteio._staging_remote import Remote
from remoteio._store import Info
from remoteio._stores import Location
from remoteio._transfer_plan import UnexpectedError
from remoteio.errors import StagingError

# What readers take for the word that everything else is there, so it goes up when everything else is: first what
# describes files, then what says that all is complete.
LAST = (("*.index.json", ".metadata"), ("_SUCCESS", "latest*"))
ASK_SINGLY = 16
BLOCK = 8 * 2**20
TRIES = 5
PAUSE_S = 0.2
_MD5 = re.compile(r'"?([0-9a-f]{32})"?')


@dataclass(slots=True)
class Plan:
    """What has to be done to bring a staged copy home.

    Attributes:
        location: The staged URL.
        top: The local copy.
        is_dir: Whether it is a directory.
        files: Local names and their keys below the URL; both empty for a file.
        folders: Keys of empty directories that get a marker.
        gone: Keys to delete in the end.
        done: Local names that are there already.
        checked: Whether the copy was looked through; if not, the plan is empty but for what was there before.
        was: By key, size and version of the files that may be deleted, as they were when the block began.
        mirror: Whether what is gone from the copy is to be deleted; of a copy that was not looked through.
        same: Local names that are not to be sent; of such a copy too.
        expected: By local name, the version that a file may replace; empty where nothing may be there. What is not
            named replaces whatever is there.
        ended_by: What the caller's own progress callable raised, and so ended the upload.
    """

    location: Location
    top: str
    is_dir: bool
    files: dict[str, str]
    folders: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    done: set[str] = field(default_factory=set)
    checked: bool = True
    was: dict[str, list[Any]] = field(default_factory=dict)
    mirror: bool = False
    same: list[str] = field(default_factory=list)
    expected: dict[str, str] = field(default_factory=dict)
    ended_by: BaseException | None = None

    def path(self, name: str) -> str:
        """The local path of a name."""
        return os.path.join(self.top, name) if name else self.top

    def place(self, key: str) -> Location:
        """The location of a key below the URL."""
        return self.location.child(key) if key else self.location

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.files or self.folders or self.gone)


def plan_of(top: str, remote: Remote, settings: Settings, mirror: bool, differs: Callable[[str], bool]) -> Plan:
    """What has to be done so that the URL has what is at the local path.

    Args:
        top: The path.
        remote: The URL, as it was when the block began.
        settings: The options in force.
        mirror: Whether what is gone from the path is deleted.
        differs: Tells of a local name whether it has to be sent.

    Raises:
        StagingError: What is there cannot be sent.
    """
    location = remote.location
    local = _staging_tree.survey(top, location.url.shown)
    if local.is_dir is not None and remote.is_dir is not None and local.is_dir != remote.is_dir:
        number = errno.EISDIR if remote.is_dir else errno.ENOTDIR
        now, then = ("directory", "file") if local.is_dir else ("file", "directory")
        said = f"{os.strerror(number)} (the block left a {now} where the URL is a {then})"
        raise StagingError(number, said, location.url.shown)
    keys = {item.name: item.key for item in remote.items}
    folders = _folders(remote)
    files = {name: keys.get(name) or _key_of(name, folders) for name in local.files if differs(name)}
    if not mirror:
        _refuse_both(files, keys, location)
    plan = Plan(location, top, bool(local.is_dir), files)
    if location.store.has_directories or settings.directory_markers:
        plan.folders = [name for name in local.folders if name not in remote.folders]
    if mirror:
        plan.gone = [key for name, key in keys.items() if name not in local.files]
        plan.was = _described(remote, plan.gone)
        plan.gone += [f"{name}/" for name in remote.folders if not os.path.isdir(os.path.join(top, name))]
    return plan


def _refuse_both(files: Mapping[str, str], there: Mapping[str, str], location: Location) -> None:
    """Refuse what would make one name a file and a directory at once: it could never be staged again.

    Args:
        files: The names that are to go up.
        there: The names that the URL has, and keeps.
        location: The URL.
    """
    folders_there = {above for name in there for above in _above(name)}
    for name in files:
        if name in folders_there or any(above in there for above in _above(name)):
            number = errno.EISDIR if name in folders_there else errno.ENOTDIR
            detail = f"{name!r} would be a file and a directory at once; with mirror=True the old one is deleted"
            raise StagingError(number, f"{os.strerror(number)} ({detail})", location.url.shown)


def _above(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def _folders(remote: Remote) -> dict[str, str]:
    """The keys of the folders whose local names are shorter."""
    found: dict[str, str] = {}
    for item in remote.items:
        if item.name != item.key:
            found.update(zip(_above(item.name), _above(item.key), strict=True))
    return found


def _key_of(name: str, folders: Mapping[str, str]) -> str:
    """The key of a new file: in the folder that its local one stands for."""
    above = next((above for above in reversed(_above(name)) if above in folders), None)
    return name if above is None else folders[above] + name[len(above) :]


def _described(remote: Remote, keys: Iterable[str]) -> dict[str, list[Any]]:
    infos = {item.key: item.info for item in remote.items}
    return {key: [infos[key].size, infos[key].version] for key in keys if key in infos}


def unchecked_plan(top: str, remote: Remote, mirror: bool, differs: Callable[[str], bool]) -> Plan:
    """The plan for a copy that was refused: it is looked through again when the upload is resumed.

    Args:
        top: The copy.
        remote: The URL, as it was when the block began.
        mirror: As for `plan_of`.
        differs: As for `plan_of`.
    """
    plan = Plan(remote.location, top, os.path.isdir(top), {}, checked=False, mirror=mirror)
    plan.was = _described(remote, [item.key for item in remote.items])
    for item in remote.items:
        with contextlib.suppress(OSError):  # who cannot be compared is sent
            if not differs(item.name):
                plan.same.append(item.name)
    return plan


def replaced(plan: Plan) -> list[str]:
    """The keys to be deleted under which there is something else by now than when the block began."""
    keys = [key for key in plan.gone if key in plan.was]
    try:
        found = _infos(replace(plan, files={key: key for key in keys}), keys) if keys else {}
    except PermissionError:  # who may not look deletes what he was told to
        return []
    return [key for key, info in found.items() if [info.size, info.version] != list(plan.was[key])]


def phases(names: Iterable[str], sizes: Mapping[str, int]) -> list[list[str]]:
    """The order of an upload: groups that follow one another, the biggest files of each first."""
    groups: list[list[str]] = [[] for _ in range(len(LAST) + 1)]
    for name in sorted(names, key=lambda name: (-sizes[name], name)):
        base = name.rpartition("/")[2]
        groups[_lateness(base)].append(name)
    return [group for group in groups if group]


def _lateness(base: str) -> int:
    for number, patterns in enumerate(LAST, 1):
        if any(fnmatch.fnmatchcase(base, pattern) for pattern in patterns):
            return number
    return 0


def run(plan: Plan, progress: Wish, max_concurrency: int | None) -> None:
    """Do what is planned; ``plan.done`` tells how far that came where it fails.

    Raises:
        OSError: A file could not be sent, or is not there whole.
        BaseException: What the progress callable raised, which ``plan.ended_by`` then is too.
    """
    told = Told(progress) if callable(progress) else progress
    try:
        _send_files(plan, told, max_concurrency)
    except BaseException:
        plan.ended_by = told.failure if isinstance(told, Told) else None
        raise
    store = plan.location.store
    for key in plan.folders:
        store.make_directory(plan.place(key).key, marker=True)
    gone = [f"{plan.location.key}/{key}" if key else plan.location.key for key in plan.gone]
    for _, error in store.delete_many(gone):
        raise error


def _send_files(plan: Plan, progress: Wish, max_concurrency: int | None) -> None:
    names = [name for name in plan.files if name not in plan.done]
    sizes = {name: os.stat(plan.path(name)).st_size for name in names}
    _make_parents(plan, names)
    bars = Progress(progress, plan.location.url.shown, sum(sizes.values()), len(names), "sending")
    try:
        for group in phases(names, sizes):
            _send_group(plan, group, sizes, bars, max_concurrency)
    finally:
        bars.close()


def _send_group(
    plan: Plan, group: Sequence[str], sizes: Mapping[str, int], bars: Progress, max_concurrency: int | None
) -> None:
    for tries in itertools.count(1):
        names = [name for name in group if name not in plan.done]
        try:
            _send_some(plan, names, bars, max_concurrency)
            return
        except UnexpectedError as error:
            if tries > TRIES + len(group):
                raise
            _meet(plan, next(name for name in names if plan.path(name) == error.path), error)
            bars.go_back_to(sum(size for name, size in sizes.items() if name in plan.done))


def _send_some(plan: Plan, names: Sequence[str], bars: Progress, max_concurrency: int | None) -> None:
    by_path = {plan.path(name): name for name in names}
    items = [(path, plan.place(plan.files[name])) for path, name in by_path.items()]
    sent = _transfer.upload(
        items,
        progress=bars,
        max_concurrency=max_concurrency,
        done=lambda path: plan.done.add(by_path[path]),
        expected={plan.path(name): version for name, version in plan.expected.items()},
    )
    for (path, location), info in zip(items, sent, strict=True):
        if not _agrees(location, info, path):
            plan.done.discard(by_path[path])
            raise location.error(errno.EIO, "other bytes are there than were sent; does somebody else write there?")


def _meet(plan: Plan, name: str, error: UnexpectedError) -> None:
    """Look at the object because of which a file was refused.

    It may be the file itself, sent by a request whose answer was lost, or the same from somebody else.

    Raises:
        StagingError: Its content is another.
        OSError: It is the expected one: the refusal had another reason.
    """
    location = plan.place(plan.files[name])
    found = location.store.head(location.key)
    if found is None or found.is_dir:
        below = f"{plan.files[name]}/"
        if not plan.expected[name] and any(key.startswith(below) for key in plan.gone):
            del plan.expected[name]  # a store that takes the directory, which is to go, for what must not be there
            return
        plan.expected[name] = ""  # gone meanwhile
        time.sleep(PAUSE_S)
    elif same_content(location, found, plan.path(name)):
        plan.done.add(name)
    elif found.version is not None and found.version == plan.expected.get(name) and error.__cause__ is not None:
        raise error.__cause__
    else:
        raise conflict(location, "somebody else has written other content there in this moment")


def _make_parents(plan: Plan, names: Iterable[str]) -> None:
    if not plan.location.store.has_directories:
        return
    keys = {plan.place(plan.files[name]).key.rpartition("/")[0] for name in names}
    for key in sorted(keys - {""}):
        plan.location.store.make_directory(key)


# ---- comparing with the store


def _infos(plan: Plan, names: Sequence[str]) -> dict[str, Info]:
    """The remote files of these local names, as they are now: one request each for a few, else one per page."""
    store = plan.location.store
    if len(names) > ASK_SINGLY:
        start = f"{plan.location.key}/" if plan.location.key else ""
        found = {info.key[len(start) :]: info for info in store.walk(plan.location.key) if not info.is_dir}
        return {name: found[plan.files[name]] for name in names if plan.files[name] in found}
    with ThreadPoolExecutor(8) as pool:
        heads = pool.map(lambda name: store.head(plan.place(plan.files[name]).key), names)
        return {name: info for name, info in zip(names, heads, strict=True) if info is not None and not info.is_dir}


def _agrees(location: Location, info: Info, path: str) -> bool:
    """Compare a file with the store's checksum, where it gives one."""
    match = _MD5.fullmatch(info.version or "")
    if location.store.protocol != "s3" or match is None or _md5(path) == match.group(1):
        return True
    # The tag of an object encrypted with a customer's key looks the same and is no checksum of its bytes.
    return same_content(location, info, path)


def _md5(path: str) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC), "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def same_content(location: Location, info: Info, path: str) -> bool:
    """Whether an object has a file's very bytes: by its checksum, else by reading it."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if info.size != size:
            return False
        match = _MD5.fullmatch(info.version or "")
        if location.store.protocol == "s3" and match is not None and _md5(path) == match.group(1):
            return True
        for start in range(0, size, BLOCK):
            if _transfer.read_range(location, info, start, min(start + BLOCK, size)) != file.read(BLOCK):
                return False
    return True


def skip_what_others_wrote(plan: Plan, before: Remote) -> None:
    """Take out what somebody else has written meanwhile with the same content; the rest replaces what is seen now.

    Between this look and the write S3 and GCS compare for us. A store without conditions leaves that moment open.

    Raises:
        StagingError: Its content is another.
    """
    names = list(plan.files)
    known = {item.key: item.info for item in before.items}
    try:
        infos = _infos(plan, names)
    except PermissionError:
        return
    plan.expected = dict.fromkeys(names, "")
    for name, info in infos.items():
        plan.expected.pop(name)
        if info.version:
            plan.expected[name] = info.version
        old = known.get(plan.files[name])
        if old is not None and (old.size, old.version) == (info.size, info.version):
            continue
        location = plan.place(plan.files[name])
        if not same_content(location, info, plan.path(name)):
            raise conflict(location, "somebody else has written other content there since this block began")
        plan.done.add(name)


def conflict(location: Location, said: str) -> StagingError:
    """The error about a file that two writers have."""
    return StagingError(errno.EEXIST, f"{os.strerror(errno.EEXIST)} ({said})", location.url.shown)


# ---- options


def with_options(settings: Settings, options: Mapping[str, object] | None, url: str) -> Settings:
    """Settings with the options of one call first.

    Args:
        settings: Those in force.
        options: A table from schemes or URL prefixes to options, or the options of this URL's store themselves.
        url: The URL.
    """
    if not options:
        return settings
    table = {name: value for name, value in options.items() if isinstance(value, Mapping) and _is_place(name)}
    if len(table) != len(options):
        table = {url.partition("://")[0]: options}
    return replace(settings, storage_options=(table, *settings.storage_options))


def _is_place(name: str) -> bool:
    return _stores.known(name.partition("://")[0].lower())

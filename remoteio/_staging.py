"""``staged_local``: a real local file or directory whose home is a URL.

It knows nothing of scopes: inside of one its path is simply local.
"""

from __future__ import annotations

import abc
import asyncio
import errno
import os
import sys
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, ClassVar, Literal

from remoteio import (
    _node_cache,
    _node_root,
    _settings,
    _staging_kept,
    _staging_ranks,
    _staging_remote,
    _staging_shared,
    _staging_tree,
    _stores,
    _transfer,
)
from remoteio import _staging_upload as _upload
from remoteio._node_root import Root, Temporary
from remoteio._progress import Progress, Told, Wish
from remoteio._settings import Settings
from remoteio._staging_kept import resume_upload
from remoteio._staging_remote import Remote
from remoteio._staging_upload import Plan
from remoteio._stores import Location
from remoteio._urls import Url
from remoteio.errors import ScopeError, StagingError

__all__ = ["StagedLocal", "resume_upload", "staged_local"]

Mode = Literal["r", "r+", "w"]
Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]


class _Wishes:
    """What one ``staged_local`` was asked for beside path and mode; see there."""

    __slots__ = ("cache_dir", "max_concurrency", "mirror", "progress", "shared", "timeout_s")

    def __init__(
        self,
        cache_dir: str | os.PathLike[str] | None,
        mirror: bool,
        shared: bool,
        progress: Wish,
        max_concurrency: int | None,
        timeout_s: float | None,
    ) -> None:
        self.cache_dir = cache_dir
        self.mirror = mirror
        self.shared = shared
        self.progress = progress
        self.max_concurrency = max_concurrency
        self.timeout_s = timeout_s


class StagedLocal:
    """What ``staged_local`` returns: a context that may be entered again, each time anew."""

    def __init__(self, path: Path, mode: Mode, storage_options: Mapping[str, Any] | None, wishes: _Wishes) -> None:
        self._path = path
        self._mode = mode
        self._options = storage_options
        self._wishes = wishes
        self._blocks: list[tuple[_Where, int, _Block]] = []

    def __enter__(self) -> str:
        """Have the local path.

        Raises:
            FileNotFoundError: Mode ``r``, and nothing is there; or the bucket does not exist.
            StagingError: There is no room for it, it cannot lie on a local disk, or who fetches it hangs.
            OSError: The store could not be asked, or the bytes could not be had.
        """
        block = self._open()
        self._blocks.append((_here(), id(sys._getframe(1)), block))
        return block.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Send what is to be sent; nothing at all after an exception.

        Raises:
            ScopeError: It was left already.
            StagingError: It could not be sent; the message says where the copy is kept.
        """
        if not self._blocks:
            raise ScopeError("a staged_local block was left that had not been entered, or had been left already")
        block = self._take(id(sys._getframe(1)))
        if block.pid != os.getpid():
            return  # a forked child leaves its parent's block: it is the parent's to end
        if kind is None:
            block.finish()
        else:
            block.abandon(error)

    def _take(self, frame: int) -> _Block:
        """The latest block that this very call has entered: generators of one thread take turns.

        Where something else leaves it, as an ``ExitStack`` does, this task's latest; else the latest of all.
        """
        mine = [number for number, (where, _, _) in enumerate(self._blocks) if where == _here()]
        own = [number for number in mine if self._blocks[number][1] == frame]
        return self._blocks.pop((own or mine or [-1])[-1])[2]

    def _open(self) -> _Block:
        settings = _settings.current()
        url = _stores.parse(self._path, settings)
        if url is None or url.is_local:
            return _Plain(url.local_path if url is not None else os.fsdecode(self._path))
        settings = _upload.with_options(settings, self._options, url.text)
        return _open_block(url, self._mode, settings, self._wishes)

    def __repr__(self) -> str:
        path = _stores.parse(self._path)
        return f"<staged_local {path.shown if path is not None else self._path!r} {self._mode!r}>"


_Where = tuple[int, Any]  # a thread and, where it runs an event loop, the task


def _here() -> _Where:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        task = None
    return threading.get_ident(), task


def staged_local(
    path: Path,
    mode: Mode = "r+",
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    mirror: bool = False,
    shared: bool = False,
    progress: Wish = None,
    max_concurrency: int | None = None,
    timeout_s: float | None = None,
) -> StagedLocal:
    """Give a URL a real local path for a while, for code that opens files by itself.

    ::

        with staged_local("s3://bucket/model.pt") as path:
            model = torch.jit.load(path)

    What somebody else has written meanwhile under the same name, with other content, is an error and stays as it is. S3
    and GCS compare in the moment of the write; a store without conditions leaves open the moment before it.

    Args:
        path: A URL of a file or directory. A local path is yielded as it is. An empty directory comes back only where
            the store has a marker for it; ``remote_io(directory_markers=True)`` around the block writes them.
        mode: ``r``: to read only, one copy for all processes of the node. ``r+``: a copy of one's own of what is
            there, if anything; what changed goes back. ``w``: empty at first; everything goes up.
        cache_dir: Where what was fetched is kept for the next time. Without it the folder that ``LOCAL_CACHE_DIR``
            names; without that nothing is kept.
        storage_options: The store's options: those of this URL, or a table as ``remote_io`` takes it. An enclosing
            scope's apply where these name nothing.
        mirror: Also delete remotely what is gone from the directory: in ``w`` everything that the block did not make.
        shared: In ``w``: the processes of this node fill one directory, which goes up once, when the last has left.
            Where ``LOCAL_WORLD_SIZE`` is set (torchrun does) so many are waited for.
        progress: True for bars, None for bars on a terminal only, False for nothing, or a callable that gets
            ``(done_bytes, total_bytes, url)``, in this thread. What it raises ends the transfer and is raised as it
            is; the copy of an upload is then kept, and the log says where.
        max_concurrency: Requests at a time.
        timeout_s: Seconds to wait for another process that fetches the same, or that shares the directory. None
            waits as long as it gets on.

    Returns:
        A context that yields the local path, a ``str`` with the URL's own last name.

    Raises:
        ValueError: No such mode, or ``shared`` where nothing can be shared.
    """
    if mode not in ("r", "r+", "w"):
        raise ValueError(f"mode is 'r', 'r+' or 'w', not {mode!r}")
    if shared and mode == "r+":
        raise ValueError("shared=True goes with mode 'w' (and 'r' is shared anyway)")
    if max_concurrency is not None and max_concurrency < 1:
        raise ValueError(f"max_concurrency is at least 1, not {max_concurrency}")
    wishes = _Wishes(cache_dir, mirror, shared, progress, max_concurrency, timeout_s)
    return StagedLocal(path, mode, storage_options, wishes)


# ---- blocks


class _Block(abc.ABC):
    """One time through a ``with``."""

    path: str

    def __init__(self) -> None:
        self.pid = os.getpid()

    @abc.abstractmethod
    def finish(self) -> None:
        """The block ended well."""

    @abc.abstractmethod
    def abandon(self, error: BaseException | None) -> None:
        """The block ended by an exception."""


class _Plain(_Block):
    """A local path."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def finish(self) -> None:
        return

    def abandon(self, error: BaseException | None) -> None:
        return


def _open_block(url: Url, mode: Mode, settings: Settings, wishes: _Wishes) -> _Block:
    location = _stores.resolve(url, settings)
    _refuse_root(location)
    _transfer.engine_for(location.store)  # an engine that there is not is refused before the block's work
    remote = _staging_remote.look(location, may_be_denied=mode == "w")
    root = _node_root.open_root(wishes.cache_dir)
    if mode == "r":
        return _Reading(root, remote, settings, wishes)
    if wishes.shared:
        return _Sharing(root, remote, settings, wishes)
    return _Working(root, remote, settings, wishes, empty=mode == "w")


def _refuse_root(location: Location) -> None:
    if not location.key.strip("/"):
        raise location.error(errno.EISDIR, "a whole store cannot be staged")


class _EndedByCaller(BaseException):
    """The caller's own progress callable has ended a download: those who wait for it have not failed by that."""


def _lease(root: Root, remote: Remote, settings: Settings, wishes: _Wishes) -> _node_cache.Lease:
    told = Told(wishes.progress) if callable(wishes.progress) else wishes.progress

    def fetch(remote: Remote, top: str) -> None:
        try:
            _fetch(remote, top, told, wishes.max_concurrency)
        except Exception as error:
            if isinstance(told, Told) and told.failure is error:
                raise _EndedByCaller from error
            raise

    try:
        return _node_cache.acquire(root, remote, settings, fetch, wishes.timeout_s)
    except _EndedByCaller as ended:
        assert ended.__cause__ is not None
        own = ended.__cause__
    raise own


def _fetch(remote: Remote, top: str, progress: Wish, max_concurrency: int | None) -> None:
    items = [(remote.place(item.key), item.info, _node_cache.local_path(top, item)) for item in remote.items]
    bars = Progress(progress, remote.location.url.shown, remote.size, len(items), "fetching")
    try:
        _transfer.download(items, progress=bars, max_concurrency=max_concurrency)
    finally:
        bars.close()


class _Reading(_Block):
    """Mode ``r``: the node's own entry."""

    def __init__(self, root: Root, remote: Remote, settings: Settings, wishes: _Wishes) -> None:
        super().__init__()
        if not remote.exists:
            raise remote.location.error(errno.ENOENT)
        self._lease = _lease(root, remote, settings, wishes)
        self.path = self._lease.path

    def finish(self) -> None:
        self._lease.release()

    def abandon(self, error: BaseException | None) -> None:
        self._lease.release()


class _Working(_Block):
    """Modes ``r+`` and ``w``: a copy of this block's own."""

    def __init__(self, root: Root, remote: Remote, settings: Settings, wishes: _Wishes, *, empty: bool) -> None:
        super().__init__()
        self._root = root
        self._remote = remote
        self._settings = settings
        self._wishes = wishes
        self._empty = empty
        self._lease: _node_cache.Lease | None = None
        self._claim: _staging_ranks.Claim | None = None
        self._before: dict[str, Any] = {}
        _node_root.sweep(root)
        self._temporary: Temporary | None = Temporary(root)
        self.path = os.path.join(self._temporary.path, "data", remote.basename)
        try:
            os.mkdir(os.path.dirname(self.path))
            self._fill()
            self._claim = _staging_ranks.Claim(root, _staging_remote.entry_name(remote, settings))
        except BaseException:
            self._leave(None)
            raise

    def _fill(self) -> None:
        remote = self._remote
        if self._empty or not remote.exists:
            if remote.is_dir:
                os.mkdir(self.path)
            return
        self._lease = _lease(self._root, remote, self._settings, self._wishes)
        _staging_tree.copy(remote, self._lease.path, self.path)
        self._before = _staging_tree.snapshot(remote, self.path)

    def finish(self) -> None:
        plan: Plan | None = None
        sent: Plan | None = None
        if self._is_lost():
            self._leave(None)
            said = f"{os.strerror(errno.ENOENT)} (the local copy {self.path} is gone: nothing was sent or deleted)"
            raise StagingError(errno.ENOENT, said, self._remote.location.url.shown)
        try:
            plan = _upload.plan_of(self.path, self._remote, self._settings, self._wishes.mirror, self._differs)
            if not plan.is_empty:
                if self._claim is not None:
                    self._claim.check(plan)
                _send(plan, self._remote, self._wishes, _unless_another_draws(self._wishes.progress))
                sent = plan
        except BaseException as error:
            self._keep(plan, error)
            raise
        finally:
            self._leave(sent)

    def _is_lost(self) -> bool:
        """Whether the folder that was made for the block has gone, as when something clears temporary files."""
        mine = self.path if self._remote.is_dir else os.path.dirname(self.path)
        return not os.path.lexists(mine) or (self._temporary is not None and self._temporary.is_broken())

    def _differs(self, name: str) -> bool:
        if self._empty or self._lease is None:
            return True
        return _staging_tree.changed(name, self.path, self._lease.path, self._before)

    def _keep(self, plan: Plan | None, error: BaseException) -> None:
        temporary, self._temporary = self._temporary, None
        plan = plan or _upload.unchecked_plan(self.path, self._remote, self._wishes.mirror, self._differs)
        _staging_kept.keep(self._root, temporary, plan, error)

    def abandon(self, error: BaseException | None) -> None:
        self._leave(None)

    def _leave(self, sent: Plan | None) -> None:
        try:
            if self._claim is not None:
                self._claim.leave(sent)
        finally:
            if self._temporary is not None:
                self._temporary.remove()
            if self._lease is not None:
                self._lease.release()
            self._root.tidy()


class _Sharing(_Block):
    """Mode ``w`` with ``shared``: one directory for the processes of the node."""

    _open: ClassVar[set[tuple[int, int, str]]] = set()

    def __init__(self, root: Root, remote: Remote, settings: Settings, wishes: _Wishes) -> None:
        super().__init__()
        self._me = (os.getpid(), threading.get_ident(), remote.location.url.shown)
        if self._me in self._open:
            raise ScopeError(f"this thread shares {self._me[2]} already: to leave it would be to wait for itself")
        _node_root.sweep(root)
        self._root = root
        self._remote = remote
        self._settings = settings
        self._wishes = wishes
        name = _staging_remote.entry_name(remote, settings)
        self._session = _staging_shared.Session(root, name, remote, wishes.timeout_s)
        self._open.add(self._me)
        self.path = self._session.top

    def finish(self) -> None:
        self._open.discard(self._me)
        self._session.finish(self._send)
        self._root.tidy()

    def _send(self) -> None:
        plan: Plan | None = None
        try:
            plan = _upload.plan_of(self.path, self._remote, self._settings, self._wishes.mirror, lambda name: True)
            if not plan.is_empty:
                _send(plan, self._remote, self._wishes, self._wishes.progress)
        except BaseException as error:
            plan = plan or _upload.unchecked_plan(self.path, self._remote, self._wishes.mirror, lambda name: True)
            _staging_kept.keep(self._root, None, plan, error)
            raise

    def abandon(self, error: BaseException | None) -> None:
        self._open.discard(self._me)
        self._session.fail(f"{type(error).__name__}: {error}")
        self._root.tidy()


# ---- sending


def _send(plan: Plan, remote: Remote, wishes: _Wishes, progress: Wish) -> None:
    for key in _upload.replaced(plan):
        raise _upload.conflict(plan.place(key), "it is to be deleted, and somebody else has written it since")
    _upload.skip_what_others_wrote(plan, remote)
    _upload.run(plan, progress, wishes.max_concurrency)


def _unless_another_draws(wish: Wish) -> Wish:
    """Of the ranks of a node, which have one terminal, the first draws bars where nobody has said."""
    return False if wish is None and os.environ.get("LOCAL_RANK", "0") != "0" else wish

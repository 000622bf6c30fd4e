"""Copies that could not be sent home: kept, listed, sent later, thrown away only when that is asked for.

Each is a folder ``kept/<id>`` of the node's root. In it are ``upload.json``: what is to be sent and where to, with no
credential; ``lock``: held while it is being sent; and ``data/<name>``: the copy.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from remoteio import _locks, _node_root, _settings, _staging_upload, _stores
from remoteio._locks import Lock
from remoteio._node_root import Root, Temporary
from remoteio._progress import Wish
from remoteio._staging_remote import look
from remoteio._staging_upload import Plan
from remoteio._stores import Location
from remoteio.errors import StagingError

SIDECAR = "upload.json"

_logger = logging.getLogger("remoteio")


# ---- keeping


def keep(root: Root, temporary: Temporary | None, plan: Plan, error: BaseException) -> None:
    """Keep a working copy, and say where: by the error raised from here, or in the log where another has to be raised.

    Args:
        root: Where it is kept.
        temporary: The folder that has it; None where it has none of its own yet.
        plan: What there was to do.
        error: Why it was not done.

    Raises:
        StagingError: The upload failed. Nothing is raised where the program is being stopped, or where the caller's
            own progress callable has ended the upload: the caller raises that.
    """
    kept, interrupt = _to_its_end(lambda: _keep(root, temporary, plan))
    error.kept_path = kept  # type: ignore[attr-defined]  # for those who share the copy
    if interrupt is None and isinstance(error, Exception) and error is not plan.ended_by:
        raise failed(plan, error, kept) from error
    _logger.warning(
        "the upload to %s was interrupted; the local copy is kept in %s, and remoteio.resume_upload(%r) sends it",
        plan.location.url.shown,
        kept,
        kept,
    )
    if interrupt is not None:
        raise interrupt from error


def _keep(root: Root, temporary: Temporary | None, plan: Plan) -> str:
    """Put a working copy where it stays, with all that ``resume_upload`` needs; its path, which has its name still."""
    if temporary is None:
        temporary = Temporary(root)
        top = os.path.join(temporary.path, "data", os.path.basename(plan.top))
        os.rename(os.path.dirname(plan.top), os.path.dirname(top))
        plan.top = top
    relative = os.path.relpath(plan.top, temporary.path)
    content = {
        "url": plan.location.url.shown,
        "path": relative,
        "kept": time.time(),
        "is_dir": plan.is_dir,
        "files": plan.files,
        "folders": plan.folders,
        "gone": plan.gone,
        "done": sorted(plan.done),
        "checked": plan.checked,
        "was": plan.was,
        "mirror": plan.mirror,
        "same": plan.same,
    }
    _locks.write_json(os.path.join(temporary.path, SIDECAR), content)
    folder = os.path.join(root.part("kept"), uuid.uuid4().hex[:16])
    temporary.moved(folder)
    return os.path.join(folder, relative)


def _to_its_end(work: Callable[[], str]) -> tuple[str, BaseException | None]:
    """Do something short that a second Ctrl-C must not break off: signals reach the main thread, it runs in another.

    Returns:
        What it gave, and what came meanwhile.
    """
    ended: Future[str] = Future()
    begun = threading.Lock()

    def run() -> None:
        if not begun.acquire(blocking=False):
            return
        try:
            ended.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            ended.set_exception(error)

    interrupt: BaseException | None = None
    try:
        threading.Thread(target=run, name="remoteio-keep").start()
    except RuntimeError:  # the interpreter is ending, and starts none
        run()
    except BaseException as error:  # noqa: BLE001 - Ctrl-C, or what a signal handler raises: it has to wait
        interrupt = error
        run()
    while not ended.done():
        try:
            concurrent.futures.wait([ended])
        except BaseException as error:  # noqa: BLE001 - the same
            interrupt = error
    return ended.result(), interrupt


def failed(plan: Plan, error: BaseException, kept: str) -> StagingError:
    """The error of an upload that failed: reason, how far it came, and where the copy is."""
    number = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
    reason = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
    about = getattr(error, "filename", None)
    if about and about != plan.location.url.shown:
        reason = f"{about}: {reason}"
    said = (
        f"{reason}; {len(plan.done)} of {len(plan.files)} files went up; the local copy is kept in {kept}, "
        f"and remoteio.resume_upload({kept!r}) sends the rest"
    )
    raised = StagingError(number, said, plan.location.url.shown)
    raised.kept_path = kept
    return raised


# ---- sending later


def resume_upload(
    kept_path: str | os.PathLike[str],
    *,
    url: str | None = None,
    storage_options: Mapping[str, object] | None = None,
    progress: Wish = None,
    max_concurrency: int | None = None,
) -> None:
    """Finish an upload that failed, in this process or another; then the kept copy is removed.

    What is at the URL by then is overwritten. Only what was to be deleted stays, where somebody else has written it
    since the block began.

    Args:
        kept_path: As the error named it.
        url: Where it goes. Needed only where the URL held credentials, which are never written down.
        storage_options: As for ``staged_local``.
        progress: As for ``staged_local``.
        max_concurrency: As for ``staged_local``.

    Raises:
        FileNotFoundError: Nothing is kept there.
        ValueError: The URL is needed.
        StagingError: It failed again, or another process is sending it; the copy is kept where it is.
    """
    top = os.path.abspath(os.fspath(kept_path))
    folder = os.path.dirname(os.path.dirname(top))
    url = _where(_content(top), url)
    settings = _staging_upload.with_options(_settings.current(), storage_options, url)
    parsed = _stores.parse(url, settings)
    if parsed is None:
        raise ValueError(f"{url} is no URL")
    with _held(folder, parsed.shown):
        content = _content(top)
        plan = _plan(_stores.resolve(parsed, settings), top, content)
        try:
            if not content["checked"]:
                same, was = set(content.get("same", ())), plan.was
                plan = _staging_upload.plan_of(
                    top, look(plan.location), settings, bool(content.get("mirror")), lambda name: name not in same
                )
                plan.gone, plan.was = [key for key in plan.gone if key in was], was
            others = _staging_upload.replaced(plan)
            plan.gone = [key for key in plan.gone if key not in others]
            _staging_upload.run(plan, progress, max_concurrency)
        except Exception as error:  # whatever it is, the copy stays and the message says where
            if error is plan.ended_by:
                raise
            raise failed(plan, error, top) from error
        finally:
            content["done"] = sorted(plan.done)
            _locks.write_json(os.path.join(folder, SIDECAR), content)
        _throw_away(folder)


def _content(top: str) -> dict[str, Any]:
    content = _locks.read_json(os.path.join(os.path.dirname(os.path.dirname(top)), SIDECAR))
    if content is None or not os.path.lexists(top):
        raise FileNotFoundError(errno.ENOENT, "no upload is kept here", top)
    return content


def _where(content: Mapping[str, Any], url: str | None) -> str:
    if url is None and "***" in content["url"]:
        raise ValueError(f"the URL {content['url']} is not whole, as it held credentials: give it as url=...")
    return url or str(content["url"])


def _plan(location: Location, top: str, content: Mapping[str, Any]) -> Plan:
    return Plan(
        location,
        top,
        bool(content["is_dir"]),
        dict(content["files"]),
        list(content["folders"]),
        list(content["gone"]),
        set(content["done"]),
        was=dict(content.get("was", {})),
    )


@contextlib.contextmanager
def _held(folder: str, shown: str) -> Iterator[None]:
    lock = Lock(os.path.join(folder, "lock"))
    try:
        held = lock.take()
    except OSError:  # locks do not work there: two that send the same do no harm
        held = True
    if not held:
        raise StagingError(errno.EBUSY, f"{os.strerror(errno.EBUSY)} (another process is sending it)", shown)
    try:
        yield
    finally:
        lock.release()


def _throw_away(folder: str) -> None:
    # Renamed first: an interrupt leaves what the next sweep removes, never half a copy.
    path = os.path.dirname(os.path.dirname(folder))
    root = Root(path, not path.endswith("-live"))
    _node_root.discard(root, folder)
    root.tidy()


# ---- for people


class Kept:
    """One copy that is kept because its upload failed or was interrupted, as it is when it is listed.

    Attributes:
        path: The copy, for ``remoteio.resume_upload``.
        url: Where it was to go, without credentials.
        size: Bytes on this disk.
        since: When it was kept, in seconds since the epoch.
        in_use: Whether it is being sent now.
    """

    __slots__ = ("_folder", "in_use", "path", "since", "size", "url")

    def __init__(self, folder: str) -> None:
        content = _locks.read_json(os.path.join(folder, SIDECAR)) or {}
        self._folder = folder
        self.path = os.path.join(folder, str(content.get("path", "data")))
        self.url = str(content.get("url", ""))
        self.size = sum(_node_root.sizes(folder))
        self.since = _since(folder, content)
        self.in_use = not _locks.is_free(os.path.join(folder, "lock"))

    def __repr__(self) -> str:
        return f"Kept({self.path!r}, {self.url!r}, {self.size:,} bytes{', in use' if self.in_use else ''})"

    def remove(self) -> int:
        """Throw it away, unless it is being sent; the bytes that became free."""
        lock = Lock(os.path.join(self._folder, "lock"))
        try:
            if not lock.take():
                return 0
        except FileNotFoundError:  # somebody has sent it, or thrown it away, meanwhile
            return 0
        except OSError:  # locks do not work there
            pass
        try:
            _throw_away(self._folder)
            return self.size
        finally:
            lock.release()


def _since(folder: str, content: Mapping[str, Any]) -> float:
    said = content.get("kept")
    return float(said) if isinstance(said, (int, float)) else os.lstat(folder).st_mtime


def kept_in(root: Root) -> Sequence[Kept]:
    """What is kept in a root, the oldest first."""
    folder = os.path.join(root.path, "kept")
    found = []
    for name in _node_root.names(folder):
        with contextlib.suppress(FileNotFoundError):  # gone meanwhile
            found.append(Kept(os.path.join(folder, name)))
    return sorted(found, key=lambda one: one.since)

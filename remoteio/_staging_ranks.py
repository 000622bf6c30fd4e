"""How the writing processes of a node find each other: what each of them sends, and directories they share.

    ranks/<name>/claims/     one file per writing block, locked while it is open: what it sends
    ranks/<name>/s-<id>/     one shared directory: state.json, members, data/<basename>

No process group is needed, and no process waits for another but at the end of a shared directory.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from remoteio import _locks, _node_root
from remoteio._locks import Lock
from remoteio._node_root import Root
from remoteio._staging_remote import Remote
from remoteio._staging_upload import Plan, conflict
from remoteio.errors import StagingError

# How long those that are done wait for a process that was announced and never came.
ABSENT_S = 600.0
PAUSE_S = 0.05
WORLD = "LOCAL_WORLD_SIZE"
RESTARTS = "TORCHELASTIC_RESTART_COUNT"


def _open_folder(root: Root, name: str) -> Lock:
    """Hold the lock of a URL's folder; the folder exists as long as it is held."""
    while True:
        lock = Lock(os.path.join(root.folder("ranks", name), "lock"))
        try:
            lock.wait(lambda: None)
            return lock
        except FileNotFoundError:  # its last user removed it in between
            continue


def _close_folder(root: Root, lock: Lock) -> None:
    """Give the lock back; remove the folder where nothing but the lock is left."""
    folder = os.path.dirname(lock.path)
    with contextlib.suppress(OSError):
        if set(_node_root.names(folder)) <= {"lock"}:
            os.unlink(lock.path)
            os.rmdir(folder)  # fails where one who waited has made a lock of its own meanwhile
    lock.release()
    root.tidy()


def sweep(root: Root) -> None:
    """Remove what is left of processes that have died."""
    for name in _node_root.names(os.path.join(root.path, "ranks")):
        folder = os.path.join(root.path, "ranks", name)
        lock = Lock(os.path.join(folder, "lock"))
        with contextlib.suppress(OSError):
            if lock.take():
                _sweep_folder(folder)
                _close_folder(root, lock)
        lock.release()


def _sweep_folder(folder: str) -> None:
    claims = [os.path.join(folder, name) for name in _node_root.names(folder) if name.endswith(".json")]
    if all(_locks.is_free(path) for path in claims):
        for path in claims:
            _remove(path)
    for name in _node_root.names(folder):
        session = os.path.join(folder, name)
        if name.startswith("s-") and not _alive(session) and not _is_expected(session):
            _node_root.remove_tree(session)


def _is_expected(session: str) -> bool:
    """Whether processes of a job that lives may still come and ask what became of those that have died."""
    state = _locks.read_json(os.path.join(session, "state.json")) or {}
    return len(_members(state)) < (state.get("expected") or 0) and _locks.is_alive(str(state.get("job"))) is True


def _job() -> str:
    """A name for the job that this process is one of: of the process that started it, as torchrun starts them all."""
    return f"{_locks.identity(os.getppid())}-{os.environ.get(RESTARTS, 0)}"


def _alive(session: str) -> list[str]:
    """The members of a session whose processes live, by the names of their files."""
    names = [name for name in _node_root.names(session) if name.endswith(".member")]
    return [name for name in names if not _locks.is_free(os.path.join(session, name))]


# ---- what each sends


class Claim:
    """One writing block's word on what it sends, for the others on this node that write to the same URL meanwhile."""

    def __init__(self, root: Root, name: str) -> None:
        self._root = root
        self._name = f"{name}-claims"
        self._own: Lock | None = None
        self._said: dict[str, str] | None = None
        if not _locks.works(root.part("tmp")):
            return
        sweep(root)
        lock = _open_folder(root, self._name)
        try:
            own = Lock(os.path.join(os.path.dirname(lock.path), f"{uuid.uuid4().hex}.json"))
            own.take()
            self._own = own
        finally:
            _close_folder(root, lock)

    def check(self, plan: Plan) -> None:
        """Compare with what others send, before anything is sent.

        Raises:
            StagingError: Another block sends, or has sent, other content under the same name.
        """
        if self._own is None:
            return
        lock = _open_folder(self._root, self._name)
        try:
            others = self._others(os.path.dirname(lock.path))
            if others:
                self._speak(plan)
            said = self._said or {}
            for other in others:
                for key, digest in (_locks.read_json(other) or {}).items():
                    if key in said and said[key] != digest:
                        raise conflict(plan.place(key), "another process of this node sends other content there")
        except BaseException:
            self._said = None
            self._own.tell({})
            raise
        finally:
            _close_folder(self._root, lock)

    def _others(self, folder: str) -> list[str]:
        own = self._own.path if self._own is not None else ""
        paths = [os.path.join(folder, name) for name in _node_root.names(folder) if name.endswith(".json")]
        return [path for path in paths if path != own]

    def _speak(self, plan: Plan) -> None:
        if self._said is None and self._own is not None:
            self._said = {key: _digest(plan.path(name)) for name, key in plan.files.items()}
            self._own.tell(self._said)

    def leave(self, plan: Plan | None) -> None:
        """Be gone. What was sent is remembered while others that were there meanwhile are still at it.

        Args:
            plan: What was sent; None where nothing was.
        """
        own, self._own = self._own, None
        if own is None:
            return
        lock = _open_folder(self._root, self._name)
        try:
            folder = os.path.dirname(lock.path)
            self._own = own
            others = self._others(folder)
            at_work = [path for path in others if not _locks.is_free(path)]
            if at_work and plan is not None:
                self._speak(plan)
            self._own = None
            if not at_work:
                for path in others:
                    _remove(path)
            if not at_work or plan is None:
                _remove(own.path)
            own.release()
        finally:
            _close_folder(self._root, lock)


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _digest(path: str) -> str:
    digest = hashlib.blake2b(digest_size=32)
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC), "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


# ---- a shared directory


class Session:
    """One process's part in a directory that the processes of a node fill together.

    Attributes:
        folder: The session's folder.
        top: The shared directory.
    """

    def __init__(self, root: Root, name: str, remote: Remote, timeout_s: float | None) -> None:
        """Join the session that is open, or open one.

        Raises:
            StagingError: Locks do not work there, without which the processes cannot find each other.
        """
        self._root = root
        self._name = f"{name}-shared"
        self._shown = remote.location.url.shown
        self._timeout_s = timeout_s
        if not _locks.works(root.part("tmp")):
            said = f"file locks do not work in {root.path}; give a cache_dir on a local disk"
            raise StagingError(errno.ENOLCK, f"{os.strerror(errno.ENOLCK)} ({said})", self._shown)
        sweep(root)
        lock = _open_folder(root, self._name)
        try:
            self.folder = self._find(os.path.dirname(lock.path)) or self._begin(os.path.dirname(lock.path), remote)
            self.top = os.path.join(self.folder, "data", remote.basename)
            self._member = Lock(os.path.join(self.folder, f"{uuid.uuid4().hex}.member"))
            self._member.take()
            self._own = os.path.basename(self._member.path)
            self._write({**self._read(), self._own: {"pid": os.getpid(), "state": "in"}})
        finally:
            _close_folder(root, lock)

    def _find(self, folder: str) -> str | None:
        """The session that takes more members."""
        for name in _node_root.names(folder):
            session = os.path.join(folder, name)
            if not name.startswith("s-"):
                continue
            state = _locks.read_json(os.path.join(session, "state.json")) or {}
            # One that has failed still takes those of its job who are late: they have to hear of it.
            missing = len(_members(state)) < (state.get("expected") or 0)
            if not _alive(session):
                if missing and state.get("job") == _job():
                    return session
            elif (missing and "outcome" in state) or not {"outcome", "sender"} & state.keys():
                return session
        return None

    def _begin(self, folder: str, remote: Remote) -> str:
        session = os.path.join(folder, f"s-{uuid.uuid4().hex}")
        os.mkdir(session, 0o700)
        os.mkdir(os.path.join(session, "data"), 0o700)
        if remote.is_dir is not False:
            os.mkdir(os.path.join(session, "data", remote.basename))
        world = os.environ.get(WORLD, "")
        state = {"expected": int(world) if world.isdigit() else None, "job": _job()}
        _locks.write_json(os.path.join(session, "state.json"), state)
        return session

    def _read(self) -> dict[str, Any]:
        return _locks.read_json(os.path.join(self.folder, "state.json")) or {}

    def _write(self, state: Mapping[str, Any]) -> None:
        _locks.write_json(os.path.join(self.folder, "state.json"), dict(state))

    def fail(self, reason: str) -> None:
        """Leave by an exception: nothing goes up, whoever leaves later raises."""
        lock = _open_folder(self._root, self._name)
        try:
            state = self._read()
            state.setdefault("outcome", {"failed": reason, "pid": os.getpid()})
            self._write(state)
            self._depart()
        finally:
            _close_folder(self._root, lock)

    def finish(self, send: Callable[[], None]) -> None:
        """Leave cleanly: wait for the others; the last one sends, and all hear how that went.

        Args:
            send: Sends the directory; called in one process only.

        Raises:
            StagingError: A process raised or died, never came, or the sending failed.
        """
        began = time.monotonic()
        try:
            while True:
                turn = self._turn()
                if turn == "send":
                    self._send(send)
                    return
                if turn == "done":
                    return
                self._bound(began)
                time.sleep(PAUSE_S)
        except BaseException as error:
            self._spoil(f"{type(error).__name__}: {error}")  # unless it is known already
            raise
        finally:
            lock = _open_folder(self._root, self._name)
            try:
                self._depart()
            finally:
                _close_folder(self._root, lock)

    def _turn(self) -> str:
        """What this process has to do now: send, be done, or wait.

        Raises:
            StagingError: It is over, and has failed.
        """
        lock = _open_folder(self._root, self._name)
        try:
            state = self._read()
            state[self._own]["state"] = "left"
            members = _members(state)
            dead = [one for one in members if one != self._own and self._has_died(one, members[one])]
            if "outcome" not in state and any(members[one]["state"] == "in" for one in dead):
                pid = next(members[one]["pid"] for one in dead if members[one]["state"] == "in")
                state["outcome"] = {"failed": "it ended without leaving its block", "pid": pid}
            if state.get("sender") in dead:
                del state["sender"]  # another one takes over
            complete = all(member["state"] != "in" for member in members.values())
            complete = complete and len(members) >= (state.get("expected") or 0)
            turn = "wait"
            if "outcome" in state:
                turn = "done"
            elif complete and "sender" not in state:
                state["sender"], turn = self._own, "send"
            self._write(state)
        finally:
            _close_folder(self._root, lock)
        failed = (state.get("outcome") or {}).get("failed")
        if failed:
            pid = state["outcome"].get("pid")
            kept = state["outcome"].get("kept")
            end = f"the local copy is kept in {kept}" if kept else "nothing goes up"
            said = f"{os.strerror(errno.ECANCELED)} (process {pid} of this node: {failed}; {end})"
            if state["outcome"].get("sent"):
                said = failed
            error = StagingError(state["outcome"].get("errno") or errno.ECANCELED, said, self._shown)
            error.kept_path = kept
            raise error
        return turn

    def _has_died(self, name: str, member: Mapping[str, Any]) -> bool:
        return member["state"] != "gone" and _locks.is_free(os.path.join(self.folder, name))

    def _send(self, send: Callable[[], None]) -> None:
        try:
            send()
        except BaseException as error:
            reason, kept = f"{type(error).__name__}: {error}", getattr(error, "kept_path", None)
            outcome: dict[str, Any] = {"failed": reason, "pid": os.getpid(), "kept": kept}
            if isinstance(error, StagingError):
                outcome.update(failed=error.strerror, sent=True, errno=error.errno)
            self._settle(outcome)
            raise
        self._settle({"failed": None})

    def _settle(self, outcome: dict[str, Any]) -> None:
        lock = _open_folder(self._root, self._name)
        try:
            state = self._read()
            state.setdefault("outcome", outcome)
            self._write(state)
        finally:
            _close_folder(self._root, lock)

    def _spoil(self, reason: str) -> None:
        self._settle({"failed": reason, "pid": os.getpid()})

    def _bound(self, began: float) -> None:
        waited = time.monotonic() - began
        state = self._read()
        members = _members(state)
        absent = (state.get("expected") or 0) - len(members)
        limit = self._timeout_s if self._timeout_s is not None else (ABSENT_S if absent > 0 else None)
        if limit is None or waited < limit:
            return
        pids = [str(member["pid"]) for member in members.values() if member["state"] == "in"]
        who = f"process {', '.join(pids)} has" if pids else f"{absent} of {state.get('expected')} processes have"
        said = f"{os.strerror(errno.ETIMEDOUT)} ({who} not left the block after {waited:.0f} s)"
        error = StagingError(errno.ETIMEDOUT, said, self._shown)
        self._spoil(said)
        raise error

    def _depart(self) -> None:
        """Be gone; the last one removes the session. The folder's lock is held."""
        state = self._read()
        if self._own in state:
            state[self._own]["state"] = "gone"
            self._write(state)
        self._member.release()
        if not _alive(self.folder) and not _is_expected(self.folder):
            _node_root.remove_tree(self.folder)


def _members(state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: said for name, said in state.items() if name.endswith(".member")}

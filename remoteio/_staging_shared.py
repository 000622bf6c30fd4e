"""A directory that the processes of a node fill together, and that goes up once, when the last has left."""

from __future__ import annotations

import contextlib
import errno
import os
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from remoteio import _locks, _node_root
from remoteio._guards import guard_of, inside
from remoteio._node_root import Root
from remoteio._staging_ranks import alive, is_expected, job, members, sweep
from remoteio._staging_remote import Remote
from remoteio.errors import StagingError

# How long those that are done wait for a process that was announced and never came.
ABSENT_S = 600.0
PAUSE_S = 0.05
WORLD = "LOCAL_WORLD_SIZE"


class Session:
    """One process's part in a directory that the processes of a node fill together.

    Attributes:
        folder: The session's folder.
        top: The shared directory.
    """

    def __init__(self, root: Root, name: str, remote: Remote, timeout_s: float | None) -> None:
        """Join the session that is open, or open one.

        Args:
            root: Where it lies.
            name: The URL's name there.
            remote: The URL.
            timeout_s: Seconds to wait for others at the end; None for as long as they live.
        """
        self._root = root
        self._name = f"{name}-shared"
        self._shown = remote.location.url.shown
        self._timeout_s = timeout_s
        self._guard = guard_of(root)
        sweep(root, self._guard)
        with self._inside() as folder:
            self.folder = self._find(folder) or self._begin(folder, remote)
            self.top = os.path.join(self.folder, "data", remote.basename)
            self._member = self._guard.member(self.folder)
            self._own = os.path.basename(self._member.path)
            self._write({**self._read(), self._own: {"pid": os.getpid(), "state": "in"}})

    def _inside(self) -> contextlib.AbstractContextManager[str]:
        return inside(self._root, self._name, self._guard)

    def _find(self, folder: str) -> str | None:
        """The session that takes more members."""
        for name in _node_root.names(folder):
            session = os.path.join(folder, name)
            if not name.startswith("s-"):
                continue
            state = _locks.read_json(os.path.join(session, "state.json")) or {}
            # One that has failed still takes those of its job who are late: they have to hear of it.
            missing = len(members(state)) < (state.get("expected") or 0)
            if not alive(session, self._guard):
                if missing and state.get("job") == job():
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
        state = {"expected": int(world) if world.isdigit() else None, "job": job()}
        _locks.write_json(os.path.join(session, "state.json"), state)
        return session

    def _read(self) -> dict[str, Any]:
        return _locks.read_json(os.path.join(self.folder, "state.json")) or {}

    def _write(self, state: Mapping[str, Any]) -> None:
        _locks.write_json(os.path.join(self.folder, "state.json"), dict(state))

    def fail(self, reason: str) -> None:
        """Leave by an exception: nothing goes up, whoever leaves later raises."""
        with self._inside():
            state = self._read()
            state.setdefault("outcome", {"failed": reason, "pid": os.getpid()})
            self._write(state)
            self._depart()

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
            with self._inside():
                self._depart()

    def _turn(self) -> str:
        """What this process has to do now: send, be done, or wait.

        Raises:
            StagingError: It is over, and has failed.
        """
        with self._inside():
            state = self._read()
            state[self._own]["state"] = "left"
            known = members(state)
            dead = [one for one in known if one != self._own and self._has_died(one, known[one])]
            if "outcome" not in state and any(known[one]["state"] == "in" for one in dead):
                pid = next(known[one]["pid"] for one in dead if known[one]["state"] == "in")
                state["outcome"] = {"failed": "it ended without leaving its block", "pid": pid}
            if state.get("sender") in dead:
                del state["sender"]  # another one takes over
            complete = all(member["state"] != "in" for member in known.values())
            complete = complete and len(known) >= (state.get("expected") or 0)
            turn = "wait"
            if "outcome" in state:
                turn = "done"
            elif complete and "sender" not in state:
                state["sender"], turn = self._own, "send"
            self._write(state)
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
        return member["state"] != "gone" and self._guard.is_free(os.path.join(self.folder, name))

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
        with self._inside():
            state = self._read()
            state.setdefault("outcome", outcome)
            self._write(state)

    def _spoil(self, reason: str) -> None:
        self._settle({"failed": reason, "pid": os.getpid()})

    def _bound(self, began: float) -> None:
        waited = time.monotonic() - began
        state = self._read()
        known = members(state)
        absent = (state.get("expected") or 0) - len(known)
        limit = self._timeout_s if self._timeout_s is not None else (ABSENT_S if absent > 0 else None)
        if limit is None or waited < limit:
            return
        pids = [str(member["pid"]) for member in known.values() if member["state"] == "in"]
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
        if not alive(self.folder, self._guard) and not is_expected(self.folder):
            _node_root.remove_tree(self.folder)

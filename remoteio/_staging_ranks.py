"""How the writing processes of a node find each other: what each of them sends, and directories they share.

    ranks/<name>-claims/      one file per writing block, locked while it is open: what it sends
    ranks/<name>-shared/s-<id>/  one shared directory: state.json, members, data/<basename>

No process group is needed, and no process waits for another but at the end of a shared directory.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from remoteio import _locks, _node_root
from remoteio._guards import Guard, guard_of, inside
from remoteio._locks import Lock
from remoteio._node_root import Root
from remoteio._staging_upload import Plan, conflict

RESTARTS = "TORCHELASTIC_RESTART_COUNT"


def sweep(root: Root, guard: Guard) -> None:
    """Remove what is left of processes that have died."""
    for name in _node_root.names(os.path.join(root.path, "ranks")):
        folder = os.path.join(root.path, "ranks", name)
        if guard.owns(name):
            with contextlib.suppress(OSError):
                close = guard.hold(folder, _busy)
                try:
                    _sweep_folder(folder, guard)
                finally:
                    close()
    root.tidy()


def _busy() -> None:
    raise BlockingIOError(errno.EAGAIN, "somebody is at work there, who leaves nothing behind")


def _sweep_folder(folder: str, guard: Guard) -> None:
    claims = [os.path.join(folder, name) for name in _node_root.names(folder) if name.endswith(".json")]
    if all(_locks.is_free(path) for path in claims):
        for path in claims:
            _remove(path)
    for name in _node_root.names(folder):
        session = os.path.join(folder, name)
        if name.startswith("s-") and not alive(session, guard) and not is_expected(session):
            _node_root.remove_tree(session)


def is_expected(session: str) -> bool:
    """Whether processes of a job that lives may still come and ask what became of those that have died."""
    state = _locks.read_json(os.path.join(session, "state.json")) or {}
    return len(members(state)) < (state.get("expected") or 0) and _locks.is_alive(str(state.get("job"))) is True


def job() -> str:
    """A name for the job that this process is one of: of the process that started it, as torchrun starts them all."""
    return f"{_locks.identity(os.getppid())}-{os.environ.get(RESTARTS, 0)}"


def alive(session: str, guard: Guard) -> list[str]:
    """The members of a session whose processes live, by the names of their files."""
    names = [name for name in _node_root.names(session) if name.endswith(".member")]
    return [name for name in names if not guard.is_free(os.path.join(session, name))]


def members(state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What a session's state says of its members, by the names of their files."""
    return {name: said for name, said in state.items() if name.endswith(".member")}


# ---- what each sends


class Claim:
    """One writing block's word on what it sends, for the others on this node that write to the same URL meanwhile."""

    def __init__(self, root: Root, name: str) -> None:
        self._root = root
        self._name = f"{name}-claims"
        self._own: Lock | None = None
        self._said: dict[str, str] | None = None
        self._past: set[str] = set()
        self._guard = guard_of(root)
        sweep(root, self._guard)
        if not self._guard.locks:
            return
        with inside(root, self._name, self._guard) as folder:
            # Who has left by now was never at work together with this block.
            self._past = {path for path in self._others(folder) if _locks.is_free(path)}
            own = Lock(os.path.join(folder, f"{uuid.uuid4().hex}.json"))
            own.take()
            self._own = own

    def check(self, plan: Plan) -> None:
        """Compare with what others send, before anything is sent.

        Raises:
            StagingError: Another block sends, or has sent, other content under the same name.
        """
        if self._own is None:
            return
        with inside(self._root, self._name, self._guard) as folder:
            try:
                self._compare(plan, [path for path in self._others(folder) if path not in self._past])
            except BaseException:
                self._said = None
                self._own.tell({})
                raise

    def _compare(self, plan: Plan, others: Sequence[str]) -> None:
        if others:
            self._speak(plan)
        said = self._said or {}
        for other in others:
            for key, digest in (_locks.read_json(other) or {}).items():
                if key in said and said[key] != digest:
                    raise conflict(plan.place(key), "another process of this node sends other content there")

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
        with inside(self._root, self._name, self._guard) as folder:
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


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _digest(path: str) -> str:
    digest = hashlib.blake2b(digest_size=32)
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC), "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()

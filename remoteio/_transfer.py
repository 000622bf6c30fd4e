"""Moving bytes between a store and local files: whole or not at all.

Two engines move the bytes: ``fsspec``, the live store's own client, which is always there,
and ``obstore``, for S3, GCS and Azure where that package is installed and the store can be
described to it faithfully. Every other store is read and written by its own calls.
``REMOTEIO_ENGINE`` in the environment, or ``engine=``, chooses one.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import BinaryIO, TypeVar

from remoteio import _transfer_loop, _transfer_threads
from remoteio._progress import Listener, Meter, Progress, Wish
from remoteio._store import Info, Store
from remoteio._stores import Location
from remoteio._transfer_loop import Engine
from remoteio._transfer_plan import WINDOW, Incoming, Limits, Outgoing, limits

ENGINES = ("fsspec", "obstore")
_MAPPED = ("s3", "gs", "abfs", "az")  # the stores that obstore may be told of
ENVIRONMENT = "REMOTEIO_ENGINE"
BLOCKING_STREAMS = 8
RANGES_AHEAD = 4


# ---- many files


def download(
    items: Sequence[tuple[Location, Info, str]],
    *,
    progress: Wish | Listener = None,
    max_concurrency: int | None = None,
    cancel: threading.Event | None = None,
    done: Callable[[str], object] | None = None,
    engine: str | None = None,
) -> None:
    """Fetch objects into new local files, all of them or none.

    Args:
        items: For each: the object, its description (as ``Store.head`` or a listing gave it),
            and the local path, at which nothing may be yet and of which only the caller knows.
        progress: A callable for ``(done_bytes, total_bytes, url)``, True or False for bars or
            nothing, None for bars on a terminal; or a listener that is told.
        max_concurrency: Requests at a time; None for the default.
        cancel: Ends the transfer when it is set.
        done: Called with the local path of each complete file, in this thread.
        engine: ``"fsspec"`` or ``"obstore"``; None for what the environment says, or the better one.

    Raises:
        ObjectChangedError: An object is no longer the one described.
        OSError: An object could not be fetched whole, the disk is full, or ``cancel`` was set. Nothing stays.
    """
    files = [Incoming(location, info, path) for location, info, path in items]
    listener, close = _listener(
        progress, [file.location for file in files], sum(file.size or 0 for file in files), "fetching"
    )
    allowed = limits([file.size or 0 for file in files], max_concurrency)
    try:
        for store, group in _by_store(files):
            _download_from(store, group, allowed, _Watch(listener, done, cancel), engine)
    except BaseException:
        for file in files:
            file.discard()
        raise
    finally:
        close()


def upload(
    items: Sequence[tuple[str, Location]],
    *,
    progress: Wish | Listener = None,
    max_concurrency: int | None = None,
    cancel: threading.Event | None = None,
    done: Callable[[str], object] | None = None,
    engine: str | None = None,
    expected: Mapping[str, str] | None = None,
) -> list[Info]:
    """Send local files, each whole or not at all, the biggest first.

    S3 and GCS compare with what is expected in the moment in which the object appears. A store that knows no
    conditions leaves the moment between a last look and the write open, and so does Azure for files in parts.

    Args:
        items: For each: the local path, and where it goes.
        progress: As for `download`.
        max_concurrency: Requests at a time; None for the default.
        cancel: Ends the transfer when it is set.
        done: Called with the local path of each file that is there and was verified, in this
            thread; before this function raises too.
        engine: As for `download`.
        expected: By local path, the version that the file may replace; empty where nothing may be there. Where a path
            is not named, whatever is there is replaced.

    Returns:
        What the store has now, in the order of the items.

    Raises:
        UnexpectedError: Another object is there than the expected one; it may be what this very call has sent, where
            the answer was lost.
        OSError: A file could not be sent, or ``cancel`` was set. Those that were sent before stay.
    """
    files = [Outgoing(path, location, (expected or {}).get(path)) for path, location in items]
    listener, close = _listener(
        progress, [file.location for file in files], sum(file.size for file in files), "sending"
    )
    allowed = limits([file.size for file in files], max_concurrency)
    try:
        for store, group in _by_store(files):
            _upload_to(store, group, allowed, _Watch(listener, done, cancel), engine)
    finally:
        for file in files:
            file.close()
        close()
    return [file.sent for file in files if file.sent is not None]


class _Watch:
    """What the waiting thread does several times a second: tell, and look whether to go on."""

    def __init__(
        self, listener: Listener | None, done: Callable[[str], object] | None, cancel: threading.Event | None
    ) -> None:
        self.meter = Meter()
        self._listener = listener
        self._done = done
        self._cancel = cancel

    def tell(self) -> None:
        self.meter.tell(self._listener, self._done)

    def check(self) -> None:
        if self._cancel is not None and self._cancel.is_set():
            raise OSError(errno.ECANCELED, "the transfer was given up")


def _download_from(store: Store, files: Sequence[Incoming], allowed: Limits, watch: _Watch, engine: str | None) -> None:
    moving = engine_for(store, engine)
    try:
        if moving is None:
            few = Limits(min(allowed.requests, BLOCKING_STREAMS))
            _transfer_threads.download(files, few, watch.meter, watch.tell, watch.check)
            return
        chosen = moving

        async def work() -> None:
            try:
                await _transfer_loop.download(files, chosen, allowed, watch.meter)
            finally:  # here, where no more bytes can come
                for file in files:
                    file.close()

        _transfer_loop.drive(store.fs.loop, work, watch.tell, watch.check)
    finally:
        watch.tell()


def _upload_to(store: Store, files: Sequence[Outgoing], allowed: Limits, watch: _Watch, engine: str | None) -> None:
    moving = engine_for(store, engine)
    try:
        if moving is None:
            _transfer_threads.upload(files, watch.meter, watch.tell, watch.check)
            return
        chosen = moving
        _transfer_loop.drive(
            store.fs.loop,
            lambda: _transfer_loop.upload(files, chosen, allowed, watch.meter),
            watch.tell,
            watch.check,
        )
    finally:
        watch.tell()


_F = TypeVar("_F", Incoming, Outgoing)


def _by_store(files: Sequence[_F]) -> list[tuple[Store, list[_F]]]:
    groups: dict[int, tuple[Store, list[_F]]] = {}
    for file in files:
        groups.setdefault(id(file.location.store), (file.location.store, []))[1].append(file)
    return list(groups.values())


def _listener(
    progress: Wish | Listener, places: Sequence[Location], size: int, verb: str
) -> tuple[Listener | None, Callable[[], None]]:
    """Who is told, and how to end the telling: a listener that was given is its owner's to close."""
    if progress is not None and not isinstance(progress, bool) and not callable(progress):
        return progress, lambda: None
    url = places[0].url.shown if places else ""
    if len(places) > 1:
        url = f"{url.rpartition('/')[0]}/"
    made = Progress(progress, url, size, len(places), verb)
    return made, made.close


# ---- engines


def engine_for(store: Store, choice: str | None = None) -> Engine | None:
    """What moves the bytes of a store; None for its own blocking calls.

    Raises:
        ValueError: There is no engine of this name.
    """
    wanted = choice or os.environ.get(ENVIRONMENT) or None
    if wanted not in (None, *ENGINES):
        raise ValueError(f"there is no engine {wanted!r}; {ENVIRONMENT} is one of {', '.join(ENGINES)}")
    plain = _plain_engine(store)
    if store.protocol not in _MAPPED or wanted == "fsspec" or not obstore_usable():
        return plain
    from remoteio._engine_obstore import engine_of

    return engine_of(store, plain)


def _plain_engine(store: Store) -> Engine | None:
    # Imported only for a store that there is, since its module need not be there for any other.
    if store.protocol == "s3":
        from remoteio._engine_fsspec import S3Engine
        from remoteio._store_s3 import S3Store

        return S3Engine(store) if isinstance(store, S3Store) else None
    if store.protocol == "gs":
        from remoteio._engine_fsspec import GCSEngine
        from remoteio._store_gcs import GCSStore

        return GCSEngine(store) if isinstance(store, GCSStore) else None
    return None


def obstore_usable() -> bool:
    """Whether obstore may be used: it is installed, and its threads are not those of a parent process."""
    return not _FORKED and importlib.util.find_spec("obstore") is not None


def engines() -> dict[str, str]:
    """For status: each engine, and whether it is used."""
    wanted = os.environ.get(ENVIRONMENT) or None
    told = {"fsspec": "used" if wanted == "fsspec" or not obstore_usable() else "used where obstore cannot be"}
    if importlib.util.find_spec("obstore") is None:
        told["obstore"] = "not installed: pip install 'remoteio[fast]'"
    elif _FORKED:
        told["obstore"] = "not used: this process was forked from one that uses it"
    else:
        told["obstore"] = "switched off" if wanted == "fsspec" else "used for S3, GCS and Azure" + _exceptions()
    return told


def _exceptions() -> str:
    from remoteio._engine_obstore import reasons

    found = [f"; not for {url}: {reason}" for url, reason in reasons().items()]
    return "".join(found)


_FORKED = False


def _after_fork() -> None:
    """obstore's threads stay behind in the parent: a child that called it would wait for them for ever."""
    global _FORKED
    _FORKED = _FORKED or "obstore" in sys.modules


os.register_at_fork(after_in_child=_after_fork)


# ---- one object


def publish(
    location: Location, source: BinaryIO, size: int, *, exclusive: bool = False, expected: str | None = None
) -> None:
    """Upload a seekable local file as one object, whole or not at all.

    Args:
        location: The object.
        source: A seekable reader; it is read from its start and never closed.
        size: Its size in bytes.
        exclusive: Fail where the object exists.
        expected: The version that may be replaced, empty where nothing may be there; where the store compares.

    Raises:
        FileExistsError: ``exclusive``, and the object exists; or it is not the expected one.
        OSError: Nothing was published.
    """
    location.store.write(location.key, source, size, exclusive=exclusive, expected=expected)


def append(location: Location, info: Info, source: BinaryIO, size: int) -> bool:
    """Publish an object's old bytes followed by the source's, the old ones copied on the server.

    Returns:
        False, with nothing done, where the store cannot do that for this object.
    """
    return location.store.append(location.key, info, source, size)


def read_range(location: Location, info: Info, start: int, stop: int) -> bytes:
    """The bytes from start to stop (exclusive) of the object that was described, and of no other."""
    return location.store.read(location.key, start, stop, info=info)


def submit_range(location: Location, info: Info, start: int, stop: int) -> Future[bytes]:
    """The same begun now and waited for later, for reading ahead."""
    return location.store.submit_read(location.key, start, stop, info)


def fetch_into(location: Location, info: Info, target: BinaryIO) -> None:
    """Write a whole object into a seekable local file from its start.

    Raises:
        OSError: The object could not be read whole; what the target holds is then undefined.
    """
    target.seek(0)
    if info.size is None or not location.store.can_range:
        with location.store.stream(location.key) as reader:
            while block := reader.read(WINDOW):
                target.write(block)
        return
    ahead: deque[Future[bytes]] = deque()
    starts = iter(range(0, info.size, WINDOW))
    try:
        while True:
            while len(ahead) < RANGES_AHEAD and (start := next(starts, None)) is not None:
                ahead.append(submit_range(location, info, start, min(start + WINDOW, info.size)))
            if not ahead:
                return
            target.write(ahead.popleft().result())
    finally:
        for future in ahead:
            future.cancel()

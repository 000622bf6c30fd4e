"""``torch.package`` on URLs: an exporter publishes when it is closed well, an importer reads a staged copy."""

from __future__ import annotations

import os
import weakref
from typing import Any

from torch.package import PackageExporter, PackageImporter

from remoteio import _counters, _lookup
from remoteio._adapt import Outgoing, raised_also_as
from remoteio._publish import Ending
from remoteio._settings import Settings
from remoteio._staging import staged_local
from remoteio._urls import Url

__all__ = ["init_exporter", "init_importer"]


def init_exporter(self: Any, f: Url, *args: Any, settings: Settings, **kwargs: Any) -> None:
    """``PackageExporter.__init__``: it writes a local file, which ``close`` publishes."""
    file = Outgoing(f, settings, "torch.package.PackageExporter", RuntimeError)
    ending = Ending(f, settings)
    # An exporter that is never closed, or whose block ends by an exception, leaves nothing.
    weakref.finalize(self, file.remove)
    try:
        PackageExporter.__init__(self, file.path, *args, **kwargs)
    except BaseException:
        file.remove()
        raise
    reference = weakref.ref(self)

    def close() -> None:
        exporter = reference()
        if exporter is None:
            return
        del exporter.close  # a second call is the class's own
        ending.close()  # in a `finally`, while an exception passes, it discards
        try:
            exporter.close()
        except BaseException:
            file.remove()
            raise
        if ending.publish():
            file.send()
        else:
            file.remove()

    # In the instance: `__exit__` calls `self.close()` where the block ended well, and only there.
    self.close = close


def init_importer(self: Any, file_or_buffer: Url, *args: Any, settings: Settings, **kwargs: Any) -> None:
    """``PackageImporter.__init__``: it reads a copy that stays as long as the importer does."""
    block = staged_local(file_or_buffer.text, "r", progress=False)
    with raised_also_as(RuntimeError):
        _lookup.locate(file_or_buffer, settings)
        path = block.__enter__()
    weakref.finalize(self, block.__exit__, None, None, None)
    if os.path.isfile(path):
        _counters.count("torch.package.PackageImporter", file_or_buffer.scheme, bytes_read=os.path.getsize(path))
    PackageImporter.__init__(self, path, *args, **kwargs)
    self.filename = file_or_buffer.given

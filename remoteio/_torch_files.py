"""Torch's own functions that read and write files, answered for URLs.

Each takes the original's parameters, with a `Url` in the place of the path. What is written
goes through a local file of the object's own name, because that name is in the archive: so
the bytes are those that the local call writes.
"""

from __future__ import annotations

import io
import os
from typing import Any

import torch

from remoteio import _adapt, _ahead, _files, _lookup, _transfer
from remoteio._raw import seek_target
from remoteio._settings import Settings
from remoteio._store import Info
from remoteio._urls import Url

__all__ = [
    "export_load",
    "export_save",
    "jit_load",
    "jit_save",
    "load",
    "load_package",
    "load_pt2",
    "package_aoti",
    "package_pt2",
    "save",
    "script_module_save",
]

SMALL = 2**20  # bytes up to which a file is fetched in one request


def save(obj: object, f: Url, *args: Any, settings: Settings, **kwargs: Any) -> None:
    """``torch.save``."""
    with _adapt.outgoing(f, settings, "torch.save", RuntimeError) as path:
        torch.save(obj, path, *args, **kwargs)


def load(
    f: Url,
    map_location: Any = None,
    pickle_module: Any = None,
    *,
    mmap: bool | None = None,
    settings: Settings,
    **kwargs: Any,
) -> Any:
    """``torch.load``: fetched by parallel ranges into memory, or for ``mmap=True`` into a staged file."""
    if f.rest.endswith(".safetensors"):
        from remoteio import _tensors  # as torch does: safetensors may be missing

        return _tensors.load_file(f, _device(map_location), settings=settings)
    if _maps_by_default() if mmap is None else mmap:
        with _adapt.incoming(f, settings, "torch.load") as path:
            return torch.load(path, map_location, pickle_module, mmap=True, **kwargs)
    with _reader(f, settings) as file:
        if not _is_tar(file):
            return torch.load(file, map_location, pickle_module, mmap=False, **kwargs)
    # torch reads the archives of its first versions only from files that have a descriptor.
    with _adapt.incoming(f, settings, "torch.load") as path:
        return torch.load(path, map_location, pickle_module, mmap=False, **kwargs)


class _Memory(io.BytesIO):
    """The bytes of a small file, which refuse what a file of the disk does: a seek before its start."""

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return super().seek(seek_target(offset, whence, self.tell(), self.getbuffer().nbytes))


def _is_tar(file: Any) -> bool:
    if isinstance(file, _ahead.Ahead):
        return file.peek(257, 262) == b"ustar"
    file.seek(257)
    found: bool = file.read(5) == b"ustar"
    file.seek(0)
    return found


def _maps_by_default() -> bool:
    try:
        from torch.utils.serialization import config
    except ImportError:  # an older torch
        return False
    return bool(config.load.mmap)


def _device(map_location: Any) -> str:
    """As torch itself reads ``map_location`` for a safetensors file."""
    if map_location is None:
        return "cpu"
    if isinstance(map_location, (str, bytes, torch.device)):
        return str(map_location)
    kind = "dict" if isinstance(map_location, dict) else "callable"
    raise RuntimeError(
        f"Loading safetensors file with {kind} map_location is not supported. "
        "Use a device string or torch.device instead."
    )


def _reader(f: Url, settings: Settings) -> Any:
    location = _lookup.locate(f, settings)

    def begun(info: Info) -> Any:
        if info.size is None or not location.store.can_range:
            return _files.open(f, "rb", settings=settings)
        if info.size <= SMALL:
            return _Memory(_transfer.read_range(location, info, 0, info.size) if info.size else b"")
        ahead = _ahead.Ahead(location, info, f.given, "torch.load")
        try:
            ahead.peek(info.size - 1, info.size)  # the end, which an archive's reader asks for first
        except BaseException:
            ahead.close()
            raise
        return ahead

    return _lookup.newest(location, begun)


# ---- staged


def jit_save(m: Any, f: Url, *args: Any, settings: Settings, **kwargs: Any) -> None:
    """``torch.jit.save``."""
    with _adapt.outgoing(f, settings, "torch.jit.save", RuntimeError) as path:
        torch.jit.save(m, path, *args, **kwargs)


def jit_load(f: Url, *args: Any, settings: Settings, **kwargs: Any) -> Any:
    """``torch.jit.load``."""
    with _adapt.incoming(f, settings, "torch.jit.load", ValueError) as path:
        return torch.jit.load(path, *args, **kwargs)


def script_module_save(self: Any, f: Url, *args: Any, settings: Settings, **kwargs: Any) -> Any:
    """``ScriptModule.save`` and ``ScriptFunction.save``."""
    with _adapt.outgoing(f, settings, "torch.jit.ScriptModule.save", RuntimeError) as path:
        return self.save(path, *args, **kwargs)


def export_save(ep: Any, f: Url, *args: Any, settings: Settings, **kwargs: Any) -> None:
    """``torch.export.save``."""
    with _adapt.outgoing(f, settings, "torch.export.save", RuntimeError) as path:
        torch.export.save(ep, path, *args, **kwargs)


def export_load(f: Url, *args: Any, settings: Settings, **kwargs: Any) -> Any:
    """``torch.export.load``."""
    with _adapt.incoming(f, settings, "torch.export.load") as path:
        return torch.export.load(path, *args, **kwargs)


def package_aoti(archive_file: Url, *args: Any, settings: Settings, **kwargs: Any) -> Any:
    """``torch._inductor.package.package_aoti``, and with it ``aoti_compile_and_package``."""
    from torch._inductor.package import package

    with _adapt.outgoing(archive_file, settings, "torch._inductor.package.package_aoti", RuntimeError) as path:
        package.package_aoti(path, *args, **kwargs)
    return archive_file.given


def load_package(path: Url, *args: Any, settings: Settings, **kwargs: Any) -> Any:
    """``torch._inductor.package.load_package``, and with it ``aoti_load_package``."""
    from torch._inductor.package import package

    with _adapt.incoming(path, settings, "torch._inductor.package.load_package", RuntimeError) as local:
        return package.load_package(local, *args, **kwargs)


def package_pt2(f: Url, *args: Any, settings: Settings, **kwargs: Any) -> Any:
    """``torch.export.pt2_archive.package_pt2``."""
    from torch.export.pt2_archive import _package

    with _adapt.outgoing(f, settings, "torch.export.pt2_archive._package.package_pt2", RuntimeError) as path:
        _package.package_pt2(path, *args, **kwargs)
    return f.given


def load_pt2(f: Url, *args: Any, settings: Settings, **kwargs: Any) -> Any:
    """``torch.export.pt2_archive.load_pt2``."""
    from torch.export.pt2_archive import _package

    with _adapt.incoming(f, settings, "torch.export.pt2_archive._package.load_pt2", RuntimeError) as path:
        return _package.load_pt2(path, *args, **kwargs)

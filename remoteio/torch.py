"""What torch reads and writes, with URLs: the functions of the same names, usable in a scope or without one.

    from remoteio import torch as remote_torch

    remote_torch.save(model.state_dict(), "s3://bucket/model.pt")
    state = remote_torch.load("s3://bucket/model.pt", weights_only=True)

A local path, or an open file, goes to torch as it is. ``remote_io(also="torch")`` makes torch's
own functions do the same inside of a block.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from remoteio.errors import MissingPackageError

try:
    import torch as _torch
    import torch.package as _package
except ModuleNotFoundError as error:
    raise MissingPackageError("torch is not installed: pip install 'remoteio[torch]'", name=error.name) from error

from remoteio import _adapt, _settings, _torch_files, _torch_package

__all__ = ["export", "inductor", "jit", "load", "package", "save"]


def save(
    obj: object,
    f: Any,
    pickle_module: Any = pickle,
    pickle_protocol: int = 2,
    _use_new_zipfile_serialization: bool = True,
    _disable_byteorder_record: bool = False,
) -> None:
    """Save an object, as ``torch.save``; at a URL it appears whole or not at all.

    Args:
        obj: What to save.
        f: A URL, a path or an open file.
        pickle_module: As for torch.
        pickle_protocol: As for torch.
        _use_new_zipfile_serialization: As for torch.
        _disable_byteorder_record: As for torch.

    Raises:
        OSError: Nothing was published.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.save.html
    """
    path, url = _adapt.target(f)
    rest = (pickle_module, pickle_protocol, _use_new_zipfile_serialization, _disable_byteorder_record)
    if url is None:
        _torch.save(obj, path, *rest)
    else:
        _torch_files.save(obj, url, *rest, settings=_settings.current())


def load(
    f: Any,
    map_location: Any = None,
    pickle_module: Any = None,
    *,
    weights_only: bool | None = None,
    mmap: bool | None = None,
    **pickle_load_args: Any,
) -> Any:
    """Load an object, as ``torch.load``; from a URL by parallel ranges straight into memory.

    Memory is needed for the object and at most 64 MiB more. With ``mmap=True`` the file is
    staged on the local disk, once per node.

    Args:
        f: A URL, a path or an open file.
        map_location: As for torch.
        pickle_module: As for torch.
        weights_only: As for torch.
        mmap: As for torch.
        pickle_load_args: As for torch.

    Raises:
        FileNotFoundError: There is nothing at the URL.
        OSError: It could not be read.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.load.html
    """
    path, url = _adapt.target(f)
    options = {"weights_only": weights_only, "mmap": mmap, **pickle_load_args}
    if url is None:
        return _torch.load(path, map_location, pickle_module, **options)
    return _torch_files.load(url, map_location, pickle_module, settings=_settings.current(), **options)


def _call(path: Any, local: Callable[[Any], Any], remote: Callable[..., Any]) -> Any:
    """Call one function for a local path, or the other for a URL."""
    path, url = _adapt.target(path)
    return local(path) if url is None else remote(url, settings=_settings.current())


class jit:
    """``torch.jit``: its files are staged."""

    @staticmethod
    def save(m: Any, f: Any, _extra_files: dict[str, Any] | None = None) -> None:
        """Save a ScriptModule or ScriptFunction, as ``torch.jit.save``."""
        _call(
            f,
            lambda path: _torch.jit.save(m, path, _extra_files),
            lambda url, settings: _torch_files.jit_save(m, url, _extra_files, settings=settings),
        )

    @staticmethod
    def load(
        f: Any, map_location: Any = None, _extra_files: dict[str, Any] | None = None, _restore_shapes: bool = False
    ) -> Any:
        """Load a ScriptModule or ScriptFunction, as ``torch.jit.load``."""
        rest = (map_location, _extra_files, _restore_shapes)
        return _call(
            f,
            lambda path: _torch.jit.load(path, *rest),
            lambda url, settings: _torch_files.jit_load(url, *rest, settings=settings),
        )


class export:
    """``torch.export``: its files are staged."""

    @staticmethod
    def save(
        ep: Any,
        f: Any,
        *,
        extra_files: dict[str, Any] | None = None,
        opset_version: dict[str, int] | None = None,
        pickle_protocol: int = 2,
    ) -> None:
        """Save an ExportedProgram, as ``torch.export.save``."""
        options = {"extra_files": extra_files, "opset_version": opset_version, "pickle_protocol": pickle_protocol}
        _call(
            f,
            lambda path: _torch.export.save(ep, path, **options),
            lambda url, settings: _torch_files.export_save(ep, url, settings=settings, **options),
        )

    @staticmethod
    def load(
        f: Any, *, extra_files: dict[str, Any] | None = None, expected_opset_version: dict[str, int] | None = None
    ) -> Any:
        """Load an ExportedProgram, as ``torch.export.load``."""
        options = {"extra_files": extra_files, "expected_opset_version": expected_opset_version}
        return _call(
            f,
            lambda path: _torch.export.load(path, **options),
            lambda url, settings: _torch_files.export_load(url, settings=settings, **options),
        )


class inductor:
    """``torch._inductor``: packages of AOTInductor are staged."""

    @staticmethod
    def aoti_compile_and_package(
        exported_program: Any, *, package_path: Any, inductor_configs: dict[str, Any] | None = None
    ) -> Any:
        """Compile an ExportedProgram into a package, as ``torch._inductor.aoti_compile_and_package``.

        Returns:
            The path or URL that was given.
        """
        from torch import _inductor

        def compile_to(path: Any) -> Any:
            return _inductor.aoti_compile_and_package(
                exported_program, package_path=path, inductor_configs=inductor_configs
            )

        path, url = _adapt.target(package_path)
        if url is None:
            return compile_to(path)
        with _adapt.outgoing(url, _settings.current(), "torch._inductor.package.package_aoti", RuntimeError) as local:
            compile_to(local)
        return package_path

    @staticmethod
    def aoti_load_package(path: Any, run_single_threaded: bool = False, device_index: int = -1) -> Any:
        """Load the model of a package, as ``torch._inductor.aoti_load_package``."""
        from torch import _inductor

        options: dict[str, Any] = {"run_single_threaded": run_single_threaded, "device_index": device_index}
        return _call(
            path,
            lambda local: _inductor.aoti_load_package(local, **options),
            lambda url, settings: _torch_files.load_package(url, settings=settings, **options),
        )


class package:
    """``torch.package``: archives are staged; an exporter publishes when it is closed well."""

    @staticmethod
    def PackageExporter(f: Any, importer: Any = None, debug: bool = False) -> Any:
        """A ``torch.package.PackageExporter``; one that ends by an exception publishes nothing.

        Args:
            f: A URL, a path or an open file.
            importer: As for torch.
            debug: As for torch.
        """
        rest = (_package.sys_importer if importer is None else importer, debug)
        made: Any = _package.PackageExporter.__new__(_package.PackageExporter)
        _call(
            f,
            lambda path: made.__init__(path, *rest),
            lambda url, settings: _torch_package.init_exporter(made, url, *rest, settings=settings),
        )
        return made

    @staticmethod
    def PackageImporter(file_or_buffer: Any, module_allowed: Callable[[str], bool] = lambda module_name: True) -> Any:
        """A ``torch.package.PackageImporter``."""
        made: Any = _package.PackageImporter.__new__(_package.PackageImporter)
        _call(
            file_or_buffer,
            lambda path: made.__init__(path, module_allowed),
            lambda url, settings: _torch_package.init_importer(made, url, module_allowed, settings=settings),
        )
        return made

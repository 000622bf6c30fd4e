"""What safetensors reads and writes, with URLs: the functions of the same names, usable in a scope or without one.

    from remoteio.safetensors import load_file, safe_open

    tensors = load_file("s3://bucket/model.safetensors")
    with safe_open("s3://bucket/model.safetensors", framework="pt") as file:
        rows = file.get_slice("embedding")[100:200]

Here are the functions of ``safetensors.torch``, and ``numpy`` holds those of ``safetensors.numpy``. A
local path goes to safetensors as it is. ``remote_io(also="torch")`` makes safetensors' own
functions do the same inside of a block.
"""

from __future__ import annotations

from typing import Any

from remoteio.errors import MissingPackageError

try:
    import safetensors as _safetensors
except ModuleNotFoundError as error:
    raise MissingPackageError("safetensors is not installed: pip install 'remoteio[torch]'", name=error.name) from error

from remoteio import _adapt, _scope, _settings, _tensors

__all__ = ["load_file", "load_model", "numpy", "safe_open", "save_file", "save_model"]


def safe_open(filename: Any, framework: str, device: Any = "cpu", **options: Any) -> Any:
    """Open a file lazily, as ``safetensors.safe_open``: of a URL only the header is fetched.

    Each tensor, and each slice of rows, is fetched when it is asked for, and nothing else is;
    tensors asked for in the order of the file are read ahead.

    Args:
        filename: A URL or a path.
        framework: As for safetensors.
        device: As for safetensors.
        options: What the installed safetensors takes beside these, such as ``backend``.

    Raises:
        FileNotFoundError: There is nothing at the URL.
        safetensors.SafetensorError: It is no safetensors file.

    Source:
        https://huggingface.co/docs/safetensors/api/torch
    """
    path, url = _adapt.target(filename)
    if url is None:
        return _safetensors.safe_open(path, framework, device, **options)
    return _tensors.safe_open(url, framework, device, settings=_settings.current(), **options)


def load_file(filename: Any, device: Any = "cpu") -> dict[str, Any]:
    """All tensors of a file, as ``safetensors.torch.load_file``: from a URL straight into their own memory.

    Args:
        filename: A URL or a path.
        device: Where the tensors are to be.

    Source:
        https://huggingface.co/docs/safetensors/api/torch
    """
    path, url = _adapt.target(filename)
    if url is None:
        from safetensors import torch

        found: dict[str, Any] = torch.load_file(path, device)
        return found
    return _tensors.load_file(url, device, settings=_settings.current())


def save_file(tensors: dict[str, Any], filename: Any, metadata: dict[str, str] | None = None) -> None:
    """Save tensors, as ``safetensors.torch.save_file``; at a URL they appear whole or not at all.

    Args:
        tensors: By name.
        filename: A URL or a path.
        metadata: Free texts for the header.
    """
    from safetensors import SafetensorError, torch

    with _adapt.written(filename, "safetensors.serialize_file", SafetensorError) as path:
        torch.save_file(tensors, path, metadata)


def save_model(
    model: Any, filename: Any, metadata: dict[str, str] | None = None, force_contiguous: bool = True
) -> None:
    """Save a model that may share tensors, as ``safetensors.torch.save_model``.

    Args:
        model: A torch module.
        filename: A URL or a path.
        metadata: Free texts for the header.
        force_contiguous: As for safetensors.
    """
    from safetensors import SafetensorError, torch

    with _adapt.written(filename, "safetensors.serialize_file", SafetensorError) as path:
        torch.save_model(model, path, metadata, force_contiguous)


def load_model(model: Any, filename: Any, strict: bool = True, device: Any = "cpu") -> tuple[Any, Any]:
    """Load a file into a model, as ``safetensors.torch.load_model``.

    Args:
        model: A torch module.
        filename: A URL or a path.
        strict: As for safetensors.
        device: As for safetensors.

    Returns:
        The names that were missing, and those that were not expected.
    """
    from safetensors import torch

    with _scope.remote_io(also="torch"):
        found: tuple[Any, Any] = torch.load_model(model, filename, strict, device)
        return found


class numpy:
    """``safetensors.numpy``."""

    @staticmethod
    def load_file(filename: Any) -> dict[str, Any]:
        """All arrays of a file, as ``safetensors.numpy.load_file``."""
        path, url = _adapt.target(filename)
        if url is None:
            from safetensors import numpy as native

            found: dict[str, Any] = native.load_file(path)
            return found
        return _tensors.load_file(url, framework="np", settings=_settings.current())

    @staticmethod
    def save_file(tensor_dict: dict[str, Any], filename: Any, metadata: dict[str, str] | None = None) -> None:
        """Save arrays, as ``safetensors.numpy.save_file``."""
        from safetensors import SafetensorError
        from safetensors import numpy as native

        with _adapt.written(filename, "safetensors.serialize_file", SafetensorError) as path:
            native.save_file(tensor_dict, path, metadata)

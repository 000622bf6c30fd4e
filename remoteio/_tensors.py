"""safetensors on URLs: the header first, then each tensor's bytes straight into its own memory.

What a file's header says, and what is an error, is asked of safetensors itself: it is given
a file in memory that has the header and, instead of the data, a hole of the same size.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import safetensors

from remoteio import _adapt, _counters, _lookup
from remoteio._settings import Settings
from remoteio._store import Info
from remoteio._stores import Location
from remoteio._tensor_memory import Blank, Pool, Raw, numpy_blank, torch_blank
from remoteio._tensors_source import Source, read_header
from remoteio._urls import Url

__all__ = ["RemoteSafeOpen", "RemoteSlice", "load_file", "safe_open", "serialize_file"]

TORCH = frozenset({"pt", "torch", "pytorch"})
NUMPY = frozenset({"np", "numpy"})

# By the names in the header. What is missing here, such as types of less than a byte, goes through safetensors itself.
_TORCH_TYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "BOOL": "bool",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}
_NUMPY_TYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "BOOL": "bool",
}


def safe_open(
    filename: Url, framework: str, device: Any = "cpu", *, settings: Settings, **kwargs: Any
) -> RemoteSafeOpen:
    """``safetensors.safe_open``."""
    location = _lookup.locate(filename, settings)
    return _lookup.newest(location, lambda info: RemoteSafeOpen(location, info, framework, device, kwargs))


def load_file(filename: Url, device: Any = "cpu", *, framework: str = "pt", settings: Settings) -> dict[str, Any]:
    """``load_file`` of ``safetensors.torch`` or, for another framework, of its module."""
    location = _lookup.locate(filename, settings)

    def loaded(info: Info) -> dict[str, Any]:
        with RemoteSafeOpen(location, info, framework, device, {}) as file:
            return file.get_tensors()

    return _lookup.newest(location, loaded)


def serialize_file(tensor_dict: Any, filename: Url, metadata: Any = None, *, settings: Settings) -> None:
    """``safetensors.serialize_file``, below every ``save_file``: one publication."""
    with _adapt.outgoing(filename, settings, "safetensors.serialize_file", safetensors.SafetensorError) as path:
        safetensors.serialize_file(tensor_dict, path, metadata=metadata)


class RemoteSafeOpen:
    """What ``safe_open`` gives for a URL: tensors are fetched when they are asked for.

    One that is asked for right after its neighbour in the file finds that its bytes, and
    those behind it, are already on their way. Threads may share it.
    """

    __remoteio_in_place_of__ = "safetensors:safe_open"

    def __init__(self, location: Location, info: Info, framework: str, device: Any, options: dict[str, Any]) -> None:
        """Fetch the header, and have it checked.

        Raises:
            safetensors.SafetensorError: As for a local file.
        """
        header, start, first = read_header(location, info)
        with _hollow(header, info.size or 0) as path:
            self._native: Any = safetensors.safe_open(path, framework, device, **options)
        self._framework = framework
        self._device = device
        self._options = options
        entries = json.loads(header[8:])
        entries.pop("__metadata__", None)
        self._entries: dict[str, dict[str, Any]] = entries
        self._source = Source(location, info, start, first)
        _counters.count("safetensors.safe_open", location.url.scheme, bytes_read=len(first))

    def __enter__(self) -> RemoteSafeOpen:
        self._native.__enter__()
        return self

    def __exit__(self, *args: Any) -> None:
        self._native.__exit__(*(args or (None, None, None)))
        self._source.close()

    def keys(self) -> list[str]:
        """The names of the tensors."""
        found: list[str] = self._native.keys()
        return found

    def offset_keys(self) -> list[str]:
        """The names of the tensors in the order of the file."""
        found: list[str] = self._native.offset_keys()
        return found

    def metadata(self) -> dict[str, str] | None:
        """The free texts of the header."""
        found: dict[str, str] | None = self._native.metadata()
        return found

    def get_tensor(self, name: str) -> Any:
        """One tensor: its own bytes alone are fetched.

        Raises:
            safetensors.SafetensorError: There is no such tensor.
        """
        self._native.get_slice(name)  # refuses a name that is not there, and a file that is closed
        (tensor,) = self._fetch([name], ahead=True)
        return tensor

    def get_tensors(self) -> dict[str, Any]:
        """All tensors, by several requests at once."""
        names = self.offset_keys()
        return dict(zip(names, self._fetch(names, ahead=False), strict=True))

    def get_slice(self, name: str) -> RemoteSlice:
        """A tensor to be sliced: of a slice of rows only these are fetched.

        Raises:
            safetensors.SafetensorError: There is no such tensor.
        """
        return RemoteSlice(self, name, self._native.get_slice(name))

    # ---- fetching

    def _fetch(self, names: Sequence[str], *, ahead: bool) -> list[Any]:
        """Tensors with memory of their own, in the order of the file."""
        pool = None if ahead else Pool(sum(end - begin for begin, end in map(self._place, names)))
        made = [self._blank(name, self._entries[name]["shape"], pool) for name in names]
        spans = [
            (self._entries[name]["data_offsets"][0], tensor.memory) for name, tensor in zip(names, made, strict=True)
        ]
        if ahead:
            for start, memory in spans:
                self._source.read_into(start, memory)
        else:
            self._source.read_all(spans)
        return [self._finished(name, tensor) for name, tensor in zip(names, made, strict=True)]

    def _place(self, name: str) -> tuple[int, int]:
        begin, end = self._entries[name]["data_offsets"]
        return begin, end

    def _blank(self, name: str, shape: Sequence[int], pool: Pool | None = None) -> Blank:
        """Memory for a tensor of this shape, and what makes the tensor of it."""
        entry = self._entries[name]
        begin, end = self._place(name)
        whole = math.prod(entry["shape"])
        count = (end - begin) * math.prod(shape) // whole if whole else 0
        if self._framework in TORCH and entry["dtype"] in _TORCH_TYPES:
            return torch_blank(_TORCH_TYPES[entry["dtype"]], shape, count, pool) or Raw(shape, count)
        if self._framework in NUMPY and entry["dtype"] in _NUMPY_TYPES:
            return numpy_blank(_NUMPY_TYPES[entry["dtype"]], shape)
        return Raw(shape, count)

    def _finished(self, name: str, blank: Blank) -> Any:
        if not isinstance(blank, Raw):
            tensor = blank.tensor
            moves = self._framework in TORCH and str(self._device) != "cpu"
            return tensor.to(_torch_device(self._device)) if moves else tensor
        # As safetensors itself makes it of a file that has this one tensor.
        with self._alone(name, blank) as file:
            return file.get_tensor(name)

    @contextlib.contextmanager
    def _alone(self, name: str, blank: Raw) -> Iterator[Any]:
        """A file in memory with one tensor, opened by safetensors; of rows that were not fetched it has a hole."""
        entry = self._entries[name]
        begin, end = entry["data_offsets"]
        text = json.dumps({name: {**entry, "data_offsets": [0, end - begin]}}).encode()
        text += b" " * (-len(text) % 8)
        header = len(text).to_bytes(8, "little") + text
        with (
            _hollow(header, len(header) + end - begin, blank.memory, len(header) + blank.offset) as path,
            safetensors.safe_open(path, self._framework, self._device, **self._options) as file,
        ):
            yield file

    # ---- for slices

    def rows(self, name: str, start: int, stop: int) -> Any:
        """Some rows of a tensor, as one of fewer rows; None where only safetensors can make it."""
        blank = self._rows(name, start, stop)
        return None if isinstance(blank, Raw) else self._finished(name, blank)

    def sliced(self, name: str, start: int, stop: int, index: Any) -> Any:
        """A slice as safetensors itself cuts it, from rows that hold all of it."""
        shape = self._entries[name]["shape"]
        blank = self._rows(name, start, stop, raw=True)
        assert isinstance(blank, Raw)
        blank.offset = start * (len(blank.memory) // max(1, stop - start)) if shape else 0
        with self._alone(name, blank) as file:
            return file.get_slice(name)[index]

    def _rows(self, name: str, start: int, stop: int, *, raw: bool = False) -> Blank:
        entry = self._entries[name]
        shape = entry["shape"]
        begin, end = entry["data_offsets"]
        row = (end - begin) // shape[0] if shape and shape[0] else end - begin
        size = row * (stop - start)
        blank = Raw((), size) if raw else self._blank(name, [stop - start, *shape[1:]] if shape else shape)
        self._source.read_into(begin + start * row, blank.memory)
        return blank

    @property
    def cuts_itself(self) -> bool:
        """Whether local slices are the framework's own indexing of the tensor, as torch's are."""
        return self._framework in TORCH


class RemoteSlice:
    """What ``get_slice`` gives: cut with ``[...]``."""

    def __init__(self, file: RemoteSafeOpen, name: str, native: Any) -> None:
        self._file = file
        self._name = name
        self._native = native

    def get_shape(self) -> list[int]:
        """The shape of the whole tensor."""
        found: list[int] = self._native.get_shape()
        return found

    def get_dtype(self) -> str:
        """The type's name in the header."""
        found: str = self._native.get_dtype()
        return found

    def __getitem__(self, index: Any) -> Any:
        shape = self.get_shape()
        rows = _rows_of(index, shape)
        if self._file.cuts_itself:
            whole = (0, shape[0]) if shape else (0, 1)
            if rows is not None:
                import torch

                torch.empty(shape, device="meta")[index]  # raises what the whole tensor would
            part = self._file.rows(self._name, *(rows or whole))
            if part is not None:
                return part[_shifted(index, rows)] if rows is not None else part[index]
        return self._file.sliced(self._name, *(rows or ((0, shape[0]) if shape else (0, 1))), index)


def _rows_of(index: Any, shape: Sequence[int]) -> tuple[int, int] | None:
    """The rows that hold all of a slice, where that is easily told."""
    first = index[0] if isinstance(index, tuple) and index else index
    if not shape or isinstance(first, bool):
        return None
    if isinstance(first, int) and -shape[0] <= first < shape[0]:
        row = first % shape[0]
        return row, row + 1
    if isinstance(first, slice) and all(part is None or isinstance(part, int) for part in _parts(first)):
        if first.step is not None and first.step <= 0:
            return None
        start, stop, _ = first.indices(shape[0])
        return start, max(start, stop)
    return None


def _parts(index: slice) -> tuple[Any, Any, Any]:
    return index.start, index.stop, index.step


def _shifted(index: Any, rows: tuple[int, int] | None) -> Any:
    """The same index into the rows alone."""
    assert rows is not None
    first = index[0] if isinstance(index, tuple) else index
    own: Any = slice(0, rows[1] - rows[0], first.step) if isinstance(first, slice) else 0
    return (own, *index[1:]) if isinstance(index, tuple) else own


def _torch_device(device: Any) -> Any:
    import torch

    return torch.device(device)


@contextlib.contextmanager
def _hollow(header: bytes, size: int, data: Any = b"", at: int = 0) -> Iterator[str]:
    """The path of a file that has a header, perhaps some data, and holes elsewhere; in memory where there are such."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("remoteio")
        path = f"/proc/self/fd/{descriptor}"
    else:
        descriptor, path = tempfile.mkstemp(prefix="remoteio-")
    try:
        _write(descriptor, header, 0)
        os.ftruncate(descriptor, max(size, len(header)))
        _write(descriptor, data, at)
        yield path
    finally:
        os.close(descriptor)
        if not path.startswith("/proc/"):
            os.unlink(path)


def _write(descriptor: int, data: Any, at: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(descriptor, view, at)
        if not done:
            raise OSError(errno.EIO, "nothing was written")
        view, at = view[done:], at + done

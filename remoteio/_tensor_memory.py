"""Memory for tensors that are fetched into it, each byte once."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Sequence
from typing import Any

__all__ = ["Blank", "Pool", "Raw", "numpy_blank", "torch_blank"]

CHUNK = 64 * 2**20  # of which one tensor that lives on keeps all; the kernel takes much longer for smaller ones
OWN_BELOW = 2**17  # bytes of a tensor, such as a bias, that is not worth keeping so much
ALIGNED = 64  # bytes, as torch's own memory is


class Pool:
    """Memory for the tensors of one file, in huge pages: for small ones the kernel takes longer than the network.

    Like the mapped file that safetensors itself gives them, it lives as long as one of its tensors does, and a tensor
    in it has a storage of its own size that cannot grow.
    """

    def __init__(self, size: int) -> None:
        """Begin with nothing.

        Args:
            size: Bytes that will be taken in all.
        """
        self._left = size
        self._chunk = memoryview(b"")
        self._used = 0

    def take(self, size: int) -> memoryview:
        """So many bytes of zeros, at least one."""
        start = -(-self._used // ALIGNED) * ALIGNED
        if start + size > len(self._chunk):
            start, self._chunk = 0, memoryview(_mapped(max(size, min(CHUNK, self._left))))
        self._used = start + size
        self._left -= size
        return self._chunk[start : self._used]


def _mapped(size: int) -> mmap.mmap:
    found = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            found.madvise(mmap.MADV_HUGEPAGE)
    return found


class Blank:
    """A tensor that is still to be filled.

    Attributes:
        tensor: The tensor.
        memory: Its bytes, to be written.
    """

    def __init__(self, tensor: Any, address: int, size: int) -> None:
        self.tensor = tensor
        self.memory = memoryview((ctypes.c_char * size).from_address(address) if size else bytearray()).cast("B")


class Raw(Blank):
    """Bytes of which safetensors is to make a tensor.

    Attributes:
        offset: Where in the tensor's bytes they begin.
    """

    def __init__(self, shape: Sequence[int], size: int) -> None:
        self.tensor = None
        self.shape = shape
        self.memory = memoryview(bytearray(size))
        self.offset = 0


def torch_blank(name: str, shape: Sequence[int], size: int, pool: Pool | None = None) -> Blank | None:
    """A torch tensor to be filled, in a memory of its own or in a pool's; None where torch lacks the type."""
    import torch

    dtype = getattr(torch, name, None)
    if dtype is None:  # an older torch
        return None
    if pool is not None and size >= OWN_BELOW:
        memory = pool.take(size)
        storage = torch.frombuffer(memory, dtype=dtype).untyped_storage()
        blank = Blank(torch.empty(0, dtype=dtype).set_(storage, 0, tuple(shape)), 0, 0)
        blank.memory = memory
        return blank
    tensor = torch.empty(tuple(shape), dtype=dtype)
    return Blank(tensor, tensor.data_ptr(), size)


def numpy_blank(name: str, shape: Sequence[int]) -> Blank:
    """A numpy array to be filled."""
    import numpy

    array: Any = numpy.empty(tuple(shape), dtype=name)
    return Blank(array, array.ctypes.data, array.nbytes)

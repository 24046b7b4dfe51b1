"""Arrays that go from one process to another without being copied through a pipe: the pixels of an image are large.

In the process that made it, an array is copied into memory that has no name; the other one maps it. The memory is gone
when nobody has the array any more, however the processes end. Small arrays, and all where the system has no such
memory, go through the pipe.
"""

from __future__ import annotations

import mmap
import os
from multiprocessing import reduction
from typing import Any

import numpy as np

from brim.units import MIB

_LEAST_BYTES = MIB


class SharedArray:
    """An array, wherever its memory is."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __reduce__(self) -> tuple[Any, ...]:
        if self.array.nbytes < _LEAST_BYTES or not hasattr(os, "memfd_create"):
            return SharedArray, (self.array,)
        descriptor = os.memfd_create("brim-media")
        try:
            os.ftruncate(descriptor, self.array.nbytes)
            mapped = _mapped(descriptor, self.array.dtype.str, self.array.shape)
            mapped[...] = self.array
            return _received, (reduction.DupFd(descriptor), self.array.dtype.str, self.array.shape)
        finally:
            os.close(descriptor)


def _received(duplicate: Any, dtype: str, shape: tuple[int, ...]) -> SharedArray:
    descriptor = duplicate.detach()
    try:
        return SharedArray(_mapped(descriptor, dtype, shape))
    finally:
        os.close(descriptor)


def _mapped(descriptor: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
    return np.frombuffer(memory, dtype=dtype).reshape(shape)

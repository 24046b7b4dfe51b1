"""Arrays between processes."""

from __future__ import annotations

import mmap
import os

import numpy as np
import pytest

from brim.serve.prepare.processes import processes
from brim.serve.prepare.shared_arrays import SharedArray


def made(count: int) -> SharedArray:
    return SharedArray(np.arange(count, dtype=np.float32).reshape(2, -1))


def memory_of(array: np.ndarray) -> object:
    """What an array is a view of."""
    found: object = array
    while isinstance(found, np.ndarray) and found.base is not None:
        found = found.base
    return found


@pytest.mark.parametrize("count", [8, 1 << 20])
def test_an_array_is_the_same_in_the_other_process(count: int) -> None:
    pool = processes()
    try:
        found = pool.submit(made, count).result(60).array
    finally:
        pool.shutdown()
    assert np.array_equal(found, made(count).array)  # its maker has ended
    found[0, 0] = 5.0  # torch wants memory that can be written
    if hasattr(os, "memfd_create"):
        memory = memory_of(found)
        mapped = memory.obj if isinstance(memory, memoryview) else memory
        assert isinstance(mapped, mmap.mmap) == (count > 1000)

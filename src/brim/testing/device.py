"""A device of pure Python: it counts what is allocated on it, and refuses what does not fit.

In: a size. Out: readings, as of any probe, and `OutOfMemory` for what is beyond the size. An allocation is freed when
nobody refers to it any more, like a tensor. What it does not have: fragments, a driver, other processes.
"""

from __future__ import annotations

import weakref
from typing import Any

from brim.errors import OutOfMemory
from brim.records.memory import MemoryReading
from brim.units import format_bytes, round_up

ALLOCATION_BYTES = 512  # sizes are rounded up to this, as the CUDA caching allocator does


class FakeTensor:
    """Memory of a fake device, held as long as this object is referred to."""

    __slots__ = ("__weakref__", "bytes", "name")

    def __init__(self, size_bytes: int, name: str) -> None:
        self.bytes = size_bytes
        self.name = name


class FakeDevice:
    """So many bytes. `fail_at` refuses the n-th allocation, whatever its size; `allocations` counts them from 0 on."""

    def __init__(self, total_bytes: int, *, fail_at: int | None = None) -> None:
        self.total_bytes = total_bytes
        self.fail_at = fail_at
        self.allocations = 0  # refused ones too
        self._live: dict[weakref.ref[FakeTensor], tuple[int, str]] = {}
        self._allocated_bytes = 0
        self._peak_bytes = 0
        self._canary: FakeTensor | None = None
        self._lent_bytes = 0

    def allocate(self, size_bytes: int, name: str = "tensor") -> FakeTensor:
        """Memory for as long as the result is referred to; `OutOfMemory` where it does not fit."""
        size = round_up(size_bytes, ALLOCATION_BYTES)
        self.allocations += 1
        free = self.total_bytes - self._allocated_bytes
        if size > free or self.allocations == self.fail_at:
            raise OutOfMemory(
                f"{name} needs {format_bytes(size)} and {format_bytes(free)} are free",
                missing_bytes=size - free if size > free else None,
            )
        tensor = FakeTensor(size, name)
        self._live[weakref.ref(tensor, self._freed)] = size, name
        self._allocated_bytes += size
        self._peak_bytes = max(self._peak_bytes, self._allocated_bytes)
        return tensor

    def _freed(self, reference: Any) -> None:
        size, _ = self._live.pop(reference)
        self._allocated_bytes -= size

    # -- a probe -------------------------------------------------------------------------------------------------

    def reading(self) -> MemoryReading:
        return MemoryReading(
            total_bytes=self.total_bytes,
            free_bytes=self.total_bytes - self._allocated_bytes,
            allocated_bytes=self._allocated_bytes,
            reserved_bytes=self._allocated_bytes,
            peak_allocated_bytes=self._peak_bytes,
            peak_reserved_bytes=self._peak_bytes,
            other_bytes=0,
        )

    def reset_peak(self) -> None:
        self._peak_bytes = self._allocated_bytes

    def hold_canary(self, canary_bytes: int) -> None:
        self._canary, self._lent_bytes = None, 0
        if canary_bytes:
            self._canary = self.allocate(canary_bytes, "canary")

    def largest_held(self, count: int) -> tuple[str, ...]:
        held = sorted(self._live.values(), reverse=True)
        return tuple(f"{name}, {format_bytes(size)}" for size, name in held[:count])

    def lend_canary(self) -> int:
        if self._canary is not None:
            self._lent_bytes, self._canary = self._canary.bytes, None
        return self._lent_bytes

    def take_canary_back(self) -> None:
        if self._lent_bytes:
            self._canary = self.allocate(self._lent_bytes, "canary")
            self._lent_bytes = 0

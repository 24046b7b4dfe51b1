"""Protocols of what Brim measures and sizes. Any object with these methods can be used, without inheritance.

Records go in and come out: this module knows no engine and no device library.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from brim.records.memory import MemoryReading, StressShape


class MemoryProbe(Protocol):
    """Reads a device's memory."""

    def reading(self) -> MemoryReading:
        """The device now."""
        ...

    def reset_peak(self) -> None:
        """Measure peaks from now on."""
        ...

    def hold_canary(self, canary_bytes: int) -> None:
        """Allocate this much as a safety margin, instead of an earlier canary; 0 frees it."""
        ...

    def largest_held(self, count: int) -> tuple[str, ...]:
        """The largest tensors that are still alive, described for a leak report."""
        ...


@runtime_checkable
class CanaryProbe(Protocol):
    """A probe whose canary a rescue may spend."""

    def reading(self) -> MemoryReading:
        """The device now."""
        ...

    def lend_canary(self) -> int:
        """Free the canary for this process alone, and not for the device, where others could take it; its bytes."""
        ...

    def take_canary_back(self) -> None:
        """Hold the lent canary again. Raises `OutOfMemory` where that does not fit, and it stays lent."""
        ...


class Neighbours(Protocol):
    """This process' part of a device that others share. `brim.reserve.Sizer` is one."""

    @property
    def keeps_promises(self) -> bool:
        """Whether a reading shows what neighbours were promised and have not taken yet: validation checks that."""
        ...

    def seen(self, reading: MemoryReading) -> MemoryReading:
        """The reading with the memory that neighbours may still take counted as theirs."""
        ...

    def hold(self, reading: MemoryReading) -> None:
        """Publish what this process holds at its peak."""
        ...

    def note(self) -> str:
        """The neighbours in words; nothing where there are none."""
        ...


class SizableEngine(Protocol):
    """An engine whose KV cache can be rebuilt at another size. What does not fit raises `OutOfMemory`."""

    def build(self, kv_tokens: int) -> None:
        """Allocate the KV cache, and what depends on its size."""
        ...

    def teardown(self) -> None:
        """Free what `build` allocated. The weights stay."""
        ...

    def stress(self, shape: StressShape) -> None:
        """Run one step of this shape to its end."""
        ...

    def stress_shapes(self) -> tuple[StressShape, ...]:
        """The worst steps that serving can produce."""
        ...

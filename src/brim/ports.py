"""What Brim asks of the things it measures and sizes. Whoever has these methods can be used; nobody inherits.

Records go in and come out: this module knows no engine and no device library.
"""

from __future__ import annotations

from typing import Protocol

from brim.records.memory import MemoryReading, StressShape


class MemoryProbe(Protocol):
    """Eyes on a device's memory."""

    def reading(self) -> MemoryReading:
        """The device now."""
        ...

    def reset_peak(self) -> None:
        """Peaks start again from what is held now."""
        ...

    def hold_canary(self, canary_bytes: int) -> None:
        """Really take this much, in the place of what was held back before; 0 gives it back."""
        ...

    def largest_held(self, count: int) -> tuple[str, ...]:
        """The largest things that are still held, in words: for whoever looks for a leak."""
        ...


class SizableEngine(Protocol):
    """An engine whose KV cache can be rebuilt at another size. What does not fit raises `OutOfMemory`."""

    def build(self, kv_tokens: int) -> None:
        """Make the KV cache, and what depends on its size."""
        ...

    def teardown(self) -> None:
        """Give back what `build` made. The weights stay."""
        ...

    def stress(self, shape: StressShape) -> None:
        """Run one step of this shape to its end."""
        ...

    def stress_shapes(self) -> tuple[StressShape, ...]:
        """The worst steps that serving may ask of it."""
        ...

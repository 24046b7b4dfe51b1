"""A device's memory as a sizer may use it: what neighbours have promised to take is not free."""

from __future__ import annotations

from brim.ports import MemoryProbe, Neighbours
from brim.records.memory import MemoryReading


class LeasedProbe:
    """Another probe, whose readings count the neighbours' promises as used. As they are taken, the sum stays."""

    def __init__(self, device: MemoryProbe, neighbours: Neighbours) -> None:
        self._device = device
        self._neighbours = neighbours

    def reading(self) -> MemoryReading:
        return self._neighbours.seen(self._device.reading())

    def reset_peak(self) -> None:
        self._device.reset_peak()

    def hold_canary(self, canary_bytes: int) -> None:
        self._device.hold_canary(canary_bytes)

    def largest_held(self, count: int) -> tuple[str, ...]:
        return self._device.largest_held(count)

"""A device's memory as a sizer may use it: what neighbours have promised to take is not free."""

from __future__ import annotations

from brim.ports import MemoryProbe
from brim.records.memory import MemoryReading
from brim.reserve.sizing import Sizer


class LeasedProbe:
    """Another probe, whose readings count the neighbours' promises as used. As they are taken, the sum stays."""

    def __init__(self, device: MemoryProbe, sizer: Sizer) -> None:
        self._device = device
        self._sizer = sizer

    def reading(self) -> MemoryReading:
        return self._sizer.seen(self._device.reading())

    def reset_peak(self) -> None:
        self._device.reset_peak()

    def hold_canary(self, canary_bytes: int) -> None:
        self._device.hold_canary(canary_bytes)

    def largest_held(self, count: int) -> tuple[str, ...]:
        return self._device.largest_held(count)

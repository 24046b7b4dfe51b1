"""Ranks that meet in the collectives of a step run out of memory together (`Lockstep`).

A rank that is not there leaves the others waiting in a collective. So what needs no other rank comes first, and is
agreed on before any collective: the KV cache is allocated, and before a step every rank looks whether the memory that
it took when it was measured is there. How a warm-up or a step ended is agreed on as well, before the next one.

What it cannot do: end a collective in which others wait for a rank that ran out of memory in the middle of a step. That
takes a step which needs more than when it was measured, or memory that is taken between the look and the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from brim.errors import OutOfMemory
from brim.fit.ranks import ONE_RANK, FitRanks
from brim.ports import MemoryProbe
from brim.records.memory import MemoryReading
from brim.units import format_bytes


class Lockstep:
    """Of one rank; without a probe nothing is looked at before a step."""

    def __init__(self, ranks: FitRanks = ONE_RANK, probe: MemoryProbe | None = None) -> None:
        self._ranks = ranks
        self._probe = probe
        self._step_bytes = 0  # that a step has taken at most

    def allocation(self) -> AbstractContextManager[None]:
        return self._ranks.fitting("KV cache")

    def warm_up(self) -> AbstractContextManager[None]:
        return self._ranks.fitting("warm-up")

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """One step of all ranks."""
        before = None
        with self._ranks.fitting(title):
            if self._probe is not None:
                before = self._probe.reading()
                self._check_room(before)
        with self._ranks.fitting(title):
            yield
        if self._probe is not None and before is not None:
            self._learn(before, self._probe.reading())

    def _check_room(self, now: MemoryReading) -> None:
        found = now.free_bytes + now.reserved_bytes - now.allocated_bytes
        if found < self._step_bytes:
            raise OutOfMemory(
                f"{format_bytes(max(0, found))} are free before a step, and the largest one took "
                f"{format_bytes(self._step_bytes)}",
                missing_bytes=self._step_bytes - found,
            )

    def _learn(self, before: MemoryReading, after: MemoryReading) -> None:
        """Only a peak that this step made is known to be its own."""
        if after.peak_allocated_bytes > before.peak_allocated_bytes:
            self._step_bytes = max(self._step_bytes, after.peak_allocated_bytes - before.allocated_bytes)

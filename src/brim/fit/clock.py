"""The time of a fit by phase: every second belongs to a phase, or to `other`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from brim.records.fit import FitSeconds
from brim.records.progress import Stage, Told, silent


class Clock:
    """Starts when it is created. Phases are not nested."""

    def __init__(self, told: Told = silent) -> None:
        self._told = told
        self._started = time.perf_counter()
        self._spent: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str, detail: str = "") -> Iterator[None]:
        """A part of a phase, which `FitSeconds` has a field for."""
        self._told(Stage(name, detail))
        started = time.perf_counter()
        try:
            yield
        finally:
            self._spent[name] = self._spent.get(name, 0.0) + time.perf_counter() - started

    def seconds(self) -> FitSeconds:
        """So far."""
        total = time.perf_counter() - self._started
        return FitSeconds(**self._spent, other=total - sum(self._spent.values()), total=total)

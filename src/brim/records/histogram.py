"""How often something took how long: counts of durations by upper bounds, and the percentiles that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class LatencyHistogram:
    """Durations between two bounds are taken as spread evenly, as Prometheus does."""

    bounds: tuple[float, ...]  # in seconds, ascending: the most that a duration of each count took
    counts: tuple[float, ...]  # one more than bounds: the last took longer than all of them

    @property
    def total(self) -> float:
        return sum(self.counts)

    def percentile(self, percent: float) -> float | None:
        """None where there is nothing; of what took longer than the last bound only that bound is known."""
        if not self.total or not self.bounds:
            return None
        wanted = self.total * percent / 100
        reached = list(accumulate(self.counts))
        place = next(number for number, count in enumerate(reached) if count >= wanted and count > 0)
        if place == len(self.bounds):
            return self.bounds[-1]
        low = self.bounds[place - 1] if place else 0.0
        before = reached[place - 1] if place else 0.0
        return low + (self.bounds[place] - low) * max(0.0, wanted - before) / self.counts[place]

    def since(self, earlier: LatencyHistogram) -> LatencyHistogram:
        """What has come since an earlier moment; all of it where the bounds are others."""
        if earlier.bounds != self.bounds:
            return self
        grown = (max(0.0, now - before) for now, before in zip(self.counts, earlier.counts, strict=True))
        return LatencyHistogram(self.bounds, tuple(grown))

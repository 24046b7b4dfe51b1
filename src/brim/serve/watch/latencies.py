"""How long tokens take: to the first one of a request, and from one to the next, over the last minute and in all.

In: durations, one for each token of each answer. Out: percentiles of the last minute, and counts for Prometheus. What
is kept does not grow: counts by duration, for each second of the minute. Used in the event loop's thread alone.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from typing import Any

from brim.records.histogram import LatencyHistogram

WINDOW_SECONDS = 60
_DECADES = range(-4, 2)  # 0.1 ms to 100 s
_STEPS = (10, 11, 12, 13, 15, 16, 18, 20, 22, 25, 27, 30, 33, 36, 40, 45, 50, 55, 60, 67, 75, 82, 91)  # a tenth apart
_PUBLISHED_STEPS = (10, 25, 50)
BOUNDS = tuple(round(step * 10.0 ** (decade - 1), 9) for decade in _DECADES for step in _STEPS)
PUBLISHED = frozenset(round(step * 10.0 ** (decade - 1), 9) for decade in _DECADES for step in _PUBLISHED_STEPS)


class LatencyWindow:
    """Durations of one kind."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds: dict[int, list[int]] = {}  # counts by the second that they were seen in
        self._counts = [0] * (len(BOUNDS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        place = bisect_left(BOUNDS, seconds)
        self._counts[place] += 1
        self._sum += seconds
        self._current()[place] += 1

    def last_minute(self) -> LatencyHistogram:
        oldest = int(self._clock()) - WINDOW_SECONDS
        seen = [counts for second, counts in self._seconds.items() if second > oldest]
        return LatencyHistogram(BOUNDS, tuple(map(sum, zip(*seen, strict=True))) if seen else (0,) * (len(BOUNDS) + 1))

    def published(self) -> tuple[list[tuple[str, float]], float]:
        """Counts up to some of the bounds, and the sum of all durations, since the start."""
        reached, found = 0, []
        for bound, count in zip(BOUNDS, self._counts, strict=False):
            reached += count
            if bound in PUBLISHED:
                found.append((f"{bound:g}", float(reached)))
        return [*found, ("+Inf", float(sum(self._counts)))], self._sum

    def _current(self) -> list[int]:
        now = int(self._clock())
        counts = self._seconds.get(now)
        if counts is None:
            counts = self._seconds[now] = [0] * (len(BOUNDS) + 1)
            for second in [one for one in self._seconds if one <= now - WINDOW_SECONDS]:
                del self._seconds[second]
        return counts


class TokenLatencies:
    """Of one server."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.first_token = LatencyWindow(clock)
        self.between_tokens = LatencyWindow(clock)

    def report(self) -> dict[str, Any]:
        return {
            "window_seconds": WINDOW_SECONDS,
            "first_token": _percentiles(self.first_token.last_minute()),
            "between_tokens": _percentiles(self.between_tokens.last_minute()),
        }


def _percentiles(found: LatencyHistogram) -> dict[str, float | int | None]:
    """In milliseconds; null where there was nothing."""
    told = {f"p{percent}_ms": found.percentile(percent) for percent in (50, 99)}
    shown = {name: None if one is None else round(one * 1000, 3) for name, one in told.items()}
    return {"count": int(found.total), **shown}

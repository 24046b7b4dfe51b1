"""Figures of several moments as rates and percentiles of the last minute.

In: figures with the time of each. Out: `ServerRates`. A server that was started again begins anew: its counts have
fallen. Where nothing has come in the minute, percentiles are those since the server's start, and say so.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from brim.monitor.engines import ServerFigures
from brim.records.histogram import LatencyHistogram

_WINDOW_SECONDS = 60.0
_RATE_SECONDS = 5.0
_MOST_LOOKS = 1000


@dataclass(frozen=True, slots=True)
class TokenDelay:
    """How long tokens took."""

    p50_seconds: float
    p99_seconds: float
    count: int
    since_start: bool  # not of the last minute


@dataclass(frozen=True, slots=True)
class ServerRates:
    seconds: float = 0.0  # that the rates are of; 0: there was one look only
    generated_per_second: float | None = None
    prompt_per_second: float | None = None
    preempted: int | None = None  # in the last minute
    cache_hits: float | None = None  # of the prompts of the last minute, the part that was found among prefixes
    first_token: TokenDelay | None = None
    between_tokens: TokenDelay | None = None


class FiguresHistory:
    """Of one server."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, ServerFigures]] = deque(maxlen=_MOST_LOOKS)

    def add(self, time: float, figures: ServerFigures) -> ServerRates:
        if self._looks and _restarted(self._looks[-1][1], figures):
            self._looks.clear()
        self._looks.append((time, figures))
        while len(self._looks) > 2 and self._looks[1][0] <= time - _WINDOW_SECONDS:
            self._looks.popleft()
        return self._rates()

    def _rates(self) -> ServerRates:
        now, last = self._looks[-1]
        oldest = self._looks[0][1]
        then, before = next(look for look in self._looks if look[0] >= now - _RATE_SECONDS)
        if then == now and len(self._looks) > 1:
            then, before = self._looks[-2]
        seconds = now - then
        asked = _grown(last.cache_asked, oldest.cache_asked)
        found = _grown(last.cache_found, oldest.cache_found)
        return ServerRates(
            seconds=seconds,
            generated_per_second=_rate(last.generated_tokens, before.generated_tokens, seconds),
            prompt_per_second=_rate(last.prompt_tokens, before.prompt_tokens, seconds),
            preempted=None if last.preemptions is None else last.preemptions - (oldest.preemptions or 0),
            cache_hits=min(1.0, found / asked) if asked and found is not None else None,
            first_token=_delay(last.first_token, oldest.first_token),
            between_tokens=_delay(last.between_tokens, oldest.between_tokens),
        )


def _restarted(before: ServerFigures, now: ServerFigures) -> bool:
    counts = ((one.generated_tokens, one.prompt_tokens, one.finished) for one in (before, now))
    fallen = any(new is not None and old is not None and new < old for old, new in zip(*counts, strict=True))
    return fallen or before.engine != now.engine or before.started != now.started


def _grown(now: float | None, before: float | None) -> float | None:
    return None if now is None else now - (before or 0.0)


def _rate(now: float | None, before: float | None, seconds: float) -> float | None:
    return (now - before) / seconds if now is not None and before is not None and seconds > 0 else None


def _delay(now: LatencyHistogram | None, before: LatencyHistogram | None) -> TokenDelay | None:
    if now is None:
        return None
    recent = now if before is None else now.since(before)
    chosen = recent if recent.total else now
    p50, p99 = chosen.percentile(50), chosen.percentile(99)
    if p50 is None or p99 is None:
        return None
    return TokenDelay(p50, p99, int(chosen.total), since_start=chosen is now)

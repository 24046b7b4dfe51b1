"""How long tokens take, over the last minute and in all."""

from __future__ import annotations

from itertools import pairwise

import pytest

from brim.serve.log import RequestLogEntry
from brim.serve.watch.latencies import BOUNDS, PUBLISHED, LatencyWindow, TokenLatencies


def test_percentiles_are_of_the_last_minute() -> None:
    now = [100.0]
    window = LatencyWindow(lambda: now[0])
    for _ in range(50):
        window.observe(5.0)
    assert window.last_minute().percentile(50) == pytest.approx(5.0, rel=0.1)
    now[0] = 130.0
    for number in range(100):
        window.observe(0.02 if number < 98 else 0.4)
    now[0] = 165.0
    assert window.last_minute().total == 100
    assert window.last_minute().percentile(50) == pytest.approx(0.02, rel=0.1)
    assert window.last_minute().percentile(99) == pytest.approx(0.4, rel=0.1)
    now[0] = 400.0
    assert window.last_minute().percentile(50) is None
    window.observe(1e6)
    assert len(window._seconds) == 1
    reached, seconds = window.published()
    assert (reached[-1], seconds) == (("+Inf", 151.0), pytest.approx(1e6 + 252.76))
    assert [count for _, count in reached] == sorted(count for _, count in reached)


def test_bounds_are_close_together() -> None:
    assert list(BOUNDS) == sorted(set(BOUNDS))
    assert max(high / low for low, high in pairwise(BOUNDS)) < 1.16
    assert frozenset(BOUNDS) >= PUBLISHED
    assert len(PUBLISHED) == 18


def test_each_answer_of_a_request_has_its_own_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("brim.serve.log.time.monotonic", lambda: now[0])
    latencies = TokenLatencies(lambda: now[0])
    entry = RequestLogEntry("/v1/completions", "", began=0.0, latencies=latencies)
    for moment, answer in ((1.0, 0), (1.5, 1), (2.0, 0), (3.5, 1)):
        now[0] = moment
        entry.took_token(answer)
    assert latencies.first_token.last_minute().total == 1
    found = latencies.between_tokens.last_minute()
    assert found.total == 2
    assert latencies.between_tokens.published()[1] == 3.0
    told = latencies.report()
    assert told["first_token"]["count"] == 1
    assert told["first_token"]["p50_ms"] == pytest.approx(1000, rel=0.1)

"""What a server tells a router: rates that were measured, and a forecast of a bounded length."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")
from brim.engine.statistics import End, PoolState
from brim.guard.routing.policy import FORECASTS
from brim.records.routing import Forecast
from brim.serve.routing import MeasuredRates, forecast

STATE = PoolState(
    block_size=16,
    blocks=100,
    free_blocks=40,
    unused_blocks=10,
    slots=8,
    running=3,
    waiting=0,
    waiting_blocks=0,
    ends=(End(10, 20), End(30, 15)),
    steps=0,
    tokens=0,
    busy_seconds=0.0,
    digests=(),
)


def test_blocks_and_slots_are_free_when_requests_end() -> None:
    assert forecast(STATE, 0.1) == (Forecast(0.0, 40, 5), Forecast(1.0, 60, 6), Forecast(3.0, 75, 7))


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 30)), max_size=60))
def test_a_forecast_is_short_never_falls_and_ends_with_the_last(ends: list[tuple[int, int]]) -> None:
    state = replace(STATE, slots=64, running=len(ends), ends=tuple(End(*one) for one in sorted(ends)))
    found = forecast(state, 0.02)
    assert len(found) <= FORECASTS
    assert list(found) == sorted(found, key=lambda one: (one.seconds, one.blocks, one.slots))
    assert found[-1].slots == 64
    assert found[-1].blocks == min(100, 40 + sum(blocks for _, blocks in ends))
    if ends:
        assert found[-1].seconds == max(ends)[0] * 0.02


def test_rates_are_of_the_time_that_the_loop_worked() -> None:
    rates = MeasuredRates()
    for number in range(1, 40):
        rates.note(replace(STATE, steps=10 * number, tokens=5000 * number, busy_seconds=0.5 * number))
    assert rates.step_seconds == pytest.approx(0.05, rel=1e-3)
    assert rates.prefill_tokens_per_second == pytest.approx(10_000)


def test_steps_that_only_decode_do_not_lower_the_rate_of_prompts_at_once() -> None:
    rates = MeasuredRates()
    rates.note(replace(STATE, steps=10, tokens=10_000, busy_seconds=1.0))
    for number in range(20):
        rates.note(replace(STATE, steps=20 + number, tokens=10_001 + number, busy_seconds=1.1 + 0.1 * number))
    assert rates.prefill_tokens_per_second > 9_000


def test_an_idle_engine_keeps_what_was_measured() -> None:
    rates = MeasuredRates()
    rates.note(replace(STATE, steps=10, tokens=1000, busy_seconds=1.0))
    before = replace(rates)
    rates.note(replace(STATE, steps=10, tokens=1000, busy_seconds=1.0))
    rates.note(replace(STATE, steps=0, tokens=0, busy_seconds=0.0))  # built again
    assert (rates.step_seconds, rates.prefill_tokens_per_second) == (
        before.step_seconds,
        before.prefill_tokens_per_second,
    )

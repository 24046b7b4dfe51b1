"""The gate and the depth of speculation, as pure functions."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import InvalidRequest
from brim.guard.speculation import (
    OPEN,
    Acceptance,
    BatchView,
    GateCause,
    SpeculationGate,
    SpeculationSettings,
    decide,
    depth_for,
    weight_of,
)

SETTINGS = SpeculationSettings(max_batch=16, max_weight=0.75, depth=7)
views = st.builds(BatchView, st.integers(0, 64), st.floats(0, 2), st.booleans())
gates = st.builds(SpeculationGate, st.booleans(), st.sampled_from(GateCause))


@given(view=views, before=gates)
def test_the_gate_is_open_only_within_its_limits(view: BatchView, before: SpeculationGate) -> None:
    gate = decide(view, before, SETTINGS)
    if gate.open:
        assert view.requests <= 16
        assert view.weight <= 0.75
        assert view.calm
    assert gate.open == (gate.cause is GateCause.FITS) == gate.reason.startswith("open")


def test_a_limit_must_be_undercut_by_some_way_before_the_gate_opens_again() -> None:
    gate, seen = OPEN, []
    for requests in (16, 17, 16, 15, 14, 16, 17):
        gate = decide(BatchView(requests, 0.5), gate, SETTINGS)
        seen.append(gate.open)
    assert seen == [True, False, False, False, True, True, False]
    gate, seen = OPEN, []
    for weight in (0.75, 0.76, 0.74, 0.7, 0.67, 0.75):
        gate = decide(BatchView(4, weight), gate, SETTINGS)
        seen.append(gate.open)
    assert seen == [True, False, False, False, True, True]


@pytest.mark.parametrize("most", range(2, 10))
def test_a_small_limit_is_undercut_too(most: int) -> None:
    small = replace(SETTINGS, max_batch=most)
    closed = decide(BatchView(most + 1, 0.1), OPEN, small)
    assert [decide(BatchView(requests, 0.1), closed, small).open for requests in (most, 1)] == [False, True]


def test_a_single_request_is_speculated_for_again_after_a_second_one() -> None:
    one_only = replace(SETTINGS, max_batch=1)
    closed = decide(BatchView(2, 0.1), OPEN, one_only)
    assert not closed.open
    assert decide(BatchView(1, 0.1), closed, one_only).open


def test_reasons_have_the_numbers() -> None:
    assert decide(BatchView(20, 0.1), OPEN, SETTINGS).reason == "closed: 20 requests run, and up to 16 may"
    heavy = decide(BatchView(3, 0.9), OPEN, SETTINGS)
    assert heavy.reason == "closed: the batch weighs 90% of the limit, and up to 75% may be"
    assert decide(BatchView(3, 0.1, calm=False), OPEN, SETTINGS).cause is GateCause.MEMORY
    assert decide(BatchView(3, 0.1), OPEN, SETTINGS).reason == "open: 3 requests weigh 10% of the limit"


def test_the_fullest_pool_weighs() -> None:
    assert weight_of((10, 3), 2, (100, 10)) == 0.5
    assert weight_of((), 2, ()) == 0.0  # windows alone never run out


@given(st.lists(st.floats(0, 1), min_size=2), st.integers(1, 32))
def test_the_likelier_the_deeper(rates: list[float], most: int) -> None:
    depths = [depth_for(rate, most) for rate in sorted(rates)]
    assert all(0 <= depth <= most for depth in depths)
    assert all(one <= other for one, other in pairwise(depths))


def test_depths() -> None:
    assert [depth_for(rate, 7) for rate in (0.0, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0)] == [0, 0, 1, 2, 3, 6, 7, 7]


def test_what_was_accepted_last_counts_most() -> None:
    found = Acceptance()
    assert depth_for(found.rate, 7) == 3
    for _ in range(10):
        found = found.after(drafted=7, accepted=7)
    assert depth_for(found.rate, 7) == 7
    for _ in range(30):
        found = found.after(drafted=3, accepted=0)
    assert depth_for(found.rate, 7) == 0
    assert Acceptance(0, 1).after(4, 2) == Acceptance(2, 3.9)  # two accepted, one rejected, one not judged


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_batch", 0), ("max_batch", 1.5), ("max_weight", 0), ("max_weight", 1.1), ("max_weight", "x"), ("depth", 0)],
)
def test_settings_that_make_no_sense_are_refused(field: str, value: object) -> None:
    names = {"max_batch": "speculate_max_batch", "max_weight": "speculate_max_weight", "depth": "draft_tokens"}
    with pytest.raises(InvalidRequest, match=f"{names[field]} is {value!r}; it must be"):
        SpeculationSettings(**{field: value})  # type: ignore[arg-type]

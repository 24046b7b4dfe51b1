"""The preemption policy: the cheaper of two ways, if it fits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.guard.preemption import PreemptionAction, PreemptionRates, PreemptionView, keep_or_compute
from brim.units import MIB

RATES = PreemptionRates(out_bytes=1000 * MIB, back_bytes=500 * MIB, prefill_tokens=1000)
VIEW = PreemptionView(tokens=100, out_bytes=20 * MIB, back_bytes=10 * MIB, room_bytes=20 * MIB)


def test_copying_is_weighed_against_computing() -> None:
    choice = keep_or_compute(VIEW, RATES)
    assert (choice.fate, choice.copy_seconds, choice.compute_seconds) == (
        PreemptionAction.KEPT,
        pytest.approx(0.04),
        0.1,
    )
    assert choice.reason == "20.0 MiB are copied out and back in 40 ms, 100 tokens computed in 100 ms"
    assert keep_or_compute(replace(VIEW, tokens=41), RATES).keep
    dearer = keep_or_compute(replace(VIEW, tokens=39), RATES)
    assert (dearer.fate, dearer.keep) == (PreemptionAction.DEARER, False)


def test_the_last_byte_of_room_is_used_and_no_more() -> None:
    assert keep_or_compute(VIEW, RATES).keep
    full = keep_or_compute(replace(VIEW, room_bytes=20 * MIB - 1), RATES)
    assert (full.fate, full.keep) == (PreemptionAction.ROOM, False)
    assert full.reason == "its 20.0 MiB do not fit: 20.0 MiB of host memory are free"


def test_what_others_still_hold_is_not_kept() -> None:
    assert keep_or_compute(replace(VIEW, tokens=0, back_bytes=0), RATES).fate is PreemptionAction.NOTHING


amounts = st.integers(0, 10**9)
rates = st.builds(PreemptionRates, *[st.integers(1, 10**9)] * 3)


@given(view=st.builds(PreemptionView, *[amounts] * 4), rates=rates, more=st.integers(1, 10**6))
def test_what_is_kept_fits_and_is_cheaper_and_stays_so_with_more_to_compute(
    view: PreemptionView, rates: PreemptionRates, more: int
) -> None:
    choice = keep_or_compute(view, rates)
    copying = view.out_bytes / rates.out_bytes + view.back_bytes / rates.back_bytes
    assert choice.keep == (view.out_bytes <= view.room_bytes and copying < view.tokens / rates.prefill_tokens)
    if choice.keep:
        assert keep_or_compute(replace(view, tokens=view.tokens + more), rates).keep
        assert keep_or_compute(replace(view, room_bytes=view.room_bytes + more), rates).keep

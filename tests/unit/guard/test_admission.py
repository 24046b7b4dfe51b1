"""The admission policy: exact to the block, and fair."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import InvalidRequest
from brim.guard.admission import FITS, AdmissionSettings, AdmissionView, Cause, Decision, may_overtake, may_start

BUSY = AdmissionView(needed=(5, 2), peaks=(90, 20), blocks=(100, 20), kept_free=(10, 0), running=3, free_slots=1)

counts = st.integers(0, 12)


@st.composite
def views(draw: st.DrawFn) -> AdmissionView:
    blocks = st.tuples(*[counts] * draw(st.integers(1, 3)))
    return AdmissionView(
        draw(blocks), draw(blocks), draw(blocks), draw(blocks), draw(st.integers(0, 3)), draw(st.integers(0, 2))
    )


def test_the_last_block_is_given_and_one_more_is_not() -> None:
    assert may_start(BUSY) == FITS
    held = may_start(replace(BUSY, peaks=(91, 20)))
    assert held == Decision(False, Cause.BLOCKS, pool=0, needed=5, peak=91, limit=90)
    assert held.reason == "pool 0: with the 5 blocks that it needs the batch would grow to 91, and 90 may be held"
    assert may_start(replace(BUSY, peaks=(90, 21))) == Decision(False, Cause.BLOCKS, 1, 2, 21, 20)


def test_no_slot_no_start() -> None:
    held = may_start(replace(BUSY, free_slots=0))
    assert held == Decision(False, Cause.SLOTS, limit=3)
    assert held.reason == "all 3 slots are taken"


def test_what_never_fits_is_told_with_the_numbers() -> None:
    held = may_start(replace(BUSY, needed=(5, 21), peaks=(5, 21), running=0))
    assert held == Decision(False, Cause.NEVER, pool=1, needed=21, peak=21, limit=20)
    assert held.reason == "pool 1: needs 21 blocks, and there are 20"


def test_alone_a_request_may_have_what_is_kept_free() -> None:
    alone = AdmissionView(needed=(100,), peaks=(100,), blocks=(100,), kept_free=(10,), running=0, free_slots=4)
    assert may_start(alone) == FITS
    assert not may_start(replace(alone, running=1)).start


@given(view=views())
def test_a_request_starts_if_and_only_if_it_fits(view: AdmissionView) -> None:
    pools = list(zip(view.needed, view.peaks, view.blocks, view.kept_free, strict=True))
    alone = all(needed <= blocks for needed, _, blocks, _ in pools)
    beside = all(peak <= blocks - free for _, peak, blocks, free in pools)
    assert may_start(view).start == (view.free_slots > 0 and alone and (beside or not view.running))


@given(passed=st.lists(st.integers(0, 4), max_size=6), passes=st.integers(0, 3), lookahead=st.integers(0, 5))
def test_nobody_is_passed_more_often_than_allowed(passed: list[int], passes: int, lookahead: int) -> None:
    behind = may_overtake(passed, AdmissionSettings(passes=passes, lookahead=lookahead))
    assert all(times < passes for times in passed[:behind])
    assert behind == min(lookahead, len(passed)) or passed[behind] >= passes


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mode": "best"}, "admission is 'best'; it must be expected or worst"),
        ({"quantile": 0.0}, "admission_quantile is 0.0; it must be above 0 and at most 1"),
        ({"quantile": float("nan")}, "admission_quantile is nan; it must be above 0 and at most 1"),
        ({"watermark": 1.0}, "admission_watermark is 1.0; it must be at least 0 and below 1"),
        ({"watermark": -0.1}, "admission_watermark is -0.1; it must be at least 0 and below 1"),
        ({"prior": 0}, "admission_prior is 0; it must be an integer, at least 1"),
        ({"passes": -1}, "admission_passes is -1; it must be an integer, at least 0"),
        ({"lookahead": True}, "admission_lookahead is True; it must be an integer, at least 0"),
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        AdmissionSettings(**wrong)
    assert str(caught.value) == message


def test_only_expected_keeps_blocks_free() -> None:
    assert AdmissionSettings(watermark=0.1).kept_free((100, 19)) == (10, 1)
    assert AdmissionSettings("worst", watermark=0.1).kept_free((100, 19)) == (0, 0)

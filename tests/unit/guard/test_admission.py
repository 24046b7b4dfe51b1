"""Admission is exact to the block."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from brim.guard.admission import AdmissionView, Decision, admit

ALONE = AdmissionView(needed=(10, 4), available=(10, 4), promised=(0, 0), running=0, free_slots=1)
counts = st.integers(0, 40)


@st.composite
def views(draw: st.DrawFn) -> AdmissionView:
    pools = draw(st.integers(1, 3))
    blocks = st.tuples(*[counts] * pools)
    return AdmissionView(draw(blocks), draw(blocks), draw(blocks), draw(st.integers(0, 8)), draw(st.integers(0, 3)))


def test_the_last_block_is_given_and_one_more_is_not() -> None:
    assert admit(ALONE) == Decision(True, "fits")
    assert admit(replace(ALONE, needed=(10, 5))) == Decision(False, "pool 1: needs 5 blocks, 4 are free")
    busy = AdmissionView(needed=(5,), available=(10,), promised=(3,), running=2, free_slots=1)
    assert admit(busy) == Decision(True, "fits")
    assert admit(replace(busy, promised=(4,))) == Decision(False, "pool 0: needs 5 blocks, 4 are left")
    assert admit(replace(busy, running=3)) == Decision(False, "pool 0: needs 5 blocks, 4 are left")


def test_no_slot_no_admission() -> None:
    assert admit(replace(ALONE, running=4, free_slots=0)) == Decision(False, "all 4 slots are taken")


@given(view=views())
def test_what_is_admitted_fits_beside_every_promise(view: AdmissionView) -> None:
    if admit(view).admit:
        assert view.free_slots > 0
        for needed, available, promised in zip(view.needed, view.available, view.promised, strict=True):
            assert needed <= available
            assert not view.running or needed + promised + view.running <= available


@given(view=views())
def test_a_request_that_fits_is_admitted(view: AdmissionView) -> None:
    fits = all(
        needed + (promised + view.running if view.running else 0) <= available
        for needed, available, promised in zip(view.needed, view.available, view.promised, strict=True)
    )
    assert admit(view).admit == (fits and view.free_slots > 0)


@given(view=views(), pool=st.integers(0, 2), less=st.integers(1, 5))
def test_asking_for_less_never_hurts(view: AdmissionView, pool: int, less: int) -> None:
    if admit(view).admit and pool < len(view.needed):
        needed = list(view.needed)
        needed[pool] = max(0, needed[pool] - less)
        assert admit(replace(view, needed=tuple(needed))).admit

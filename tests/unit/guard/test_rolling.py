"""Which exchanges give way: the oldest, whole, no more than needed for the low-water mark, never pinned ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.errors import InvalidRequest
from brim.guard.rolling import RollingSettings, roll

SIZES = st.lists(st.tuples(st.integers(1, 60), st.booleans()), min_size=1, max_size=24)


def test_nothing_goes_before_the_threshold_is_passed() -> None:
    found = roll([False] * 3, lambda kept: 10 * len(kept), 70, RollingSettings(100, 50))
    assert (found.kept, found.dropped, found.tokens, found.fits) == ((0, 1, 2), (), 30, True)


def test_the_oldest_go_down_to_the_low_water_mark() -> None:
    found = roll([False, True, *[False] * 8], lambda kept: 10 * len(kept), 5, RollingSettings(100, 50))
    assert found.dropped == (0, 2, 3, 4, 5, 6)
    assert (found.kept, found.tokens, found.tokens_before) == ((1, 7, 8, 9), 40, 100)


def test_what_cannot_be_dropped_may_be_too_much() -> None:
    found = roll([True, False, False], lambda kept: 40 * len(kept), 30, RollingSettings(100, 50))
    assert (found.kept, found.fits) == ((0, 2), False)


@settings(max_examples=400, deadline=None)
@given(
    sizes=SIZES, opening=st.integers(0, 40), room=st.integers(0, 60), low=st.integers(1, 200), more=st.integers(0, 200)
)
def test_it_keeps_its_word(sizes: list[tuple[int, bool]], opening: int, room: int, low: int, more: int) -> None:
    rolling = RollingSettings(low + more, low)
    pinned = [one for _, one in sizes]

    def count(kept: Sequence[int]) -> int:
        return opening + sum(sizes[number][0] for number in kept)

    found = roll(pinned, count, room, rolling)
    assert sorted((*found.kept, *found.dropped)) == list(range(len(sizes)))
    assert found.tokens == count(found.kept)
    assert found.fits == (found.tokens + room <= rolling.threshold)
    assert len(sizes) - 1 in found.kept
    assert not any(pinned[number] for number in found.dropped)
    droppable = [number for number in range(len(sizes) - 1) if not pinned[number]]
    assert list(found.dropped) == droppable[: len(found.dropped)], "the oldest first"
    if found.dropped:
        assert count(range(len(sizes))) + room > rolling.threshold, "nothing goes that could stay"
        fewer = count(sorted((*found.kept, found.dropped[-1])))
        assert fewer + room > rolling.low_water, "no more goes than is needed"
    if len(found.dropped) < len(droppable):
        assert found.fits


@pytest.mark.parametrize(("threshold", "low"), [(0, 0), (10, 11), (True, 1), (10, 0), (10.5, 2)])
def test_marks_that_mean_nothing_are_refused(threshold: int, low: int) -> None:
    with pytest.raises(InvalidRequest, match=r"threshold|low_water"):
        RollingSettings(threshold, low)


def test_a_template_that_writes_more_without_a_turn_is_answered_too() -> None:
    """More dropped is expected to be less text, and checked."""
    sizes = {8: 200, 7: 60, 6: 48, 5: 70, 4: 70, 3: 30, 2: 20, 1: 10}
    found = roll([False] * 8, lambda kept: sizes[len(kept)], 0, RollingSettings(100, 50))
    assert found.tokens <= 50

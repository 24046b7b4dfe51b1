"""How many replicas there should be: between the bounds, never fewer with more load, and calm at the edges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("ray.serve")

from brim.ray.scaling import Load, wanted_replicas


@pytest.mark.parametrize(
    ("load", "wanted"),
    [
        (Load(2, 0, (0.1, 0.1)), 1),  # both idle
        (Load(2, 0, (0.5, 0.5)), 2),  # one alone would be too full
        (Load(2, 0, (0.9, 0.9)), 3),  # the pools are too full
        (Load(2, 7, (0.2, 0.2)), 4),  # a queue of more than twice what is usual
        (Load(4, 100, (0.2,) * 4), 8),  # at most twice as many at once
        (Load(0, 0, ()), 1),
    ],
)
def test_by_queue_and_by_memory(load: Load, wanted: int) -> None:
    assert wanted_replicas(load, 1, 16) == wanted


LOADS = st.integers(1, 20).flatmap(
    lambda count: st.builds(Load, st.just(count), st.floats(0, 200), st.tuples(*[st.floats(0, 1)] * count))
)


@given(LOADS, st.integers(1, 5), st.integers(0, 20))
def test_within_the_bounds_and_one_fewer_at_a_time(load: Load, least: int, more: int) -> None:
    found = wanted_replicas(load, least, least + more)
    assert least <= found <= least + more
    assert found >= min(load.replicas - 1, least + more)


@given(LOADS, st.floats(0, 50))
def test_a_longer_queue_never_means_fewer(load: Load, more: float) -> None:
    longer = Load(load.replicas, load.waiting + more, load.held_parts)
    assert wanted_replicas(longer, 1, 100) >= wanted_replicas(load, 1, 100)


@given(LOADS)
def test_after_one_was_removed_it_is_not_added_again_at_once(load: Load) -> None:
    found = wanted_replicas(load, 1, 100)
    if found < load.replicas:
        held = sum(load.held_parts) / found
        assert wanted_replicas(Load(found, load.waiting, (held,) * found), 1, 100) <= found

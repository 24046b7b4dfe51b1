"""Least squares without negative coefficients: never negative, never worse than another choice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.fit.scaling.least_squares import non_negative_least_squares

NUMBERS = st.floats(0, 100, allow_subnormal=False).map(lambda value: round(value, 3))
SYSTEMS = st.integers(1, 4).flatmap(
    lambda width: st.tuples(
        st.lists(st.lists(NUMBERS, min_size=width, max_size=width), min_size=1, max_size=7),
        st.lists(NUMBERS, min_size=width, max_size=width),
    )
)


def squared_error(rows: list[list[float]], targets: list[float], found: list[float]) -> float:
    sums = [sum(a * b for a, b in zip(row, found, strict=True)) for row in rows]
    return sum((total - target) ** 2 for total, target in zip(sums, targets, strict=True))


@given(SYSTEMS, st.data())
def test_no_other_choice_that_is_not_negative_is_better(
    system: tuple[list[list[float]], list[float]], data: st.DataObject
) -> None:
    rows, other = system
    targets = data.draw(st.lists(NUMBERS, min_size=len(rows), max_size=len(rows)))
    found = non_negative_least_squares(rows, targets)
    assert min(found) >= 0
    assert squared_error(rows, targets, found) <= squared_error(rows, targets, other) * (1 + 1e-6) + 1e-3


def test_a_slope_downwards_becomes_a_constant() -> None:
    assert non_negative_least_squares([[1, 1], [2, 1], [3, 1]], [5, 4, 3]) == pytest.approx([0, 4])


def test_terms_that_cannot_be_told_apart_are_not_both_used() -> None:
    assert non_negative_least_squares([[1, 1], [2, 2]], [3, 6]) == pytest.approx([3, 0])

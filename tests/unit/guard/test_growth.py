"""How long answers are expected to become."""

from __future__ import annotations

from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from brim.guard.growth import ENOUGH, REMEMBERED, ExpectedGrowth, WorstGrowth


def test_the_worst_is_all_that_is_allowed() -> None:
    growth = WorstGrowth()
    growth.ended(3)
    assert growth.tokens(0, 4096) == 4096


def test_before_enough_have_ended_a_prior_is_taken() -> None:
    growth = ExpectedGrowth(0.9, prior=256)
    assert growth.tokens(0, 100_000) == 256
    assert growth.tokens(0, 100) == 100
    assert growth.tokens(200, 100_000) == 400


def test_an_answer_longer_than_usual_is_expected_among_the_longer_ones() -> None:
    growth = ExpectedGrowth(0.9, prior=8)
    for length in range(1, 101):
        growth.ended(length)
    assert growth.tokens(0, 4096) == 90
    assert growth.tokens(50, 4096) == 95
    assert growth.tokens(95, 4096) == 190  # too few were longer


def test_what_ended_long_ago_is_forgotten() -> None:
    growth = ExpectedGrowth(0.5, prior=8)
    for _ in range(REMEMBERED):
        growth.ended(1000)
    for _ in range(REMEMBERED):
        growth.ended(10)
    assert growth.tokens(0, 4096) == 10


@given(
    lengths=st.lists(st.integers(1, 50), max_size=80),
    generated=st.integers(0, 60),
    more=st.integers(0, 60),
    quantile=st.sampled_from([0.1, 0.5, 0.9, 1.0]),
)
def test_it_is_the_quantile_of_the_longer_ones(lengths: list[int], generated: int, more: int, quantile: float) -> None:
    growth = ExpectedGrowth(quantile, prior=7)
    for length in lengths:
        growth.ended(length)
    tokens = growth.tokens(generated, generated + more)
    assert generated < tokens <= generated + more or more == 0
    longer = sorted(length for length in lengths if length > generated)
    if len(longer) >= ENOUGH:
        wanted = longer[ceil(quantile * len(longer)) - 1]
        assert sum(length <= wanted for length in longer) >= quantile * len(longer)
        assert tokens == min(wanted, generated + more)

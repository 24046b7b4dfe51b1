"""From bytes to tokens and back."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import DoesNotFit
from brim.fit.target import KvPrice, limit_tokens, most_tokens_within, shrunk_tokens, target_tokens
from brim.records.fit import Attempt, AttemptOutcome, FitRequest, Usage

BLOCK = 16


def blocks(token_bytes: int) -> KvPrice:
    """Whole blocks, and one more for padding: as the engine's pools are priced."""
    return lambda tokens: (-(-tokens // BLOCK) + 1) * BLOCK * token_bytes


def usage(left: int) -> Usage:
    return Usage(
        total_bytes=left + 1000,
        held_bytes=700,
        other_bytes=300,
        neighbour_bytes=100,
        free_before_bytes=0,
        weights_bytes=400,
        built_bytes=150,
        activation_bytes=100,
        slack_bytes=50,
    )


def request(**changes: Any) -> FitRequest:
    return replace(FitRequest(16, 16, 10_000, canary_bytes=0), **changes)


@given(st.integers(0, 10**6), st.integers(0, 5000), st.integers(1, 1000))
def test_most_tokens_are_the_most_that_fit(limit: int, most: int, token_bytes: int) -> None:
    price = blocks(token_bytes)
    found = most_tokens_within(limit, most, price)
    assert 0 <= found <= most
    assert found == 0 or price(found) <= limit
    assert found == most or price(found + 1) > limit


def test_everything_that_is_left_is_given_to_kv() -> None:
    assert target_tokens(usage(100 * 160), request(), blocks(10)) == 99 * BLOCK
    assert target_tokens(usage(100 * 160), request(canary_bytes=161), blocks(10)) == 97 * BLOCK
    assert target_tokens(usage(100 * 160), request(most_tokens=50), blocks(10)) == 50


def test_the_limit_has_no_canary_no_slack_and_nothing_built() -> None:
    assert limit_tokens(usage(100 * 160), request(canary_bytes=800), lambda tokens: tokens * 10) == 1600 + 20


@given(
    st.integers(-(10**6), 10**6),
    st.integers(0, 10**5),
    st.floats(0, 1, exclude_min=True, allow_subnormal=False).filter(lambda fraction: fraction > 1e-6),
    st.integers(1, 500),
)
def test_the_reported_shortfall_is_the_least_that_is_enough(
    left: int, canary: int, fraction: float, least: int
) -> None:
    asked = request(canary_bytes=canary, memory_fraction=fraction, least_tokens=least)
    price = blocks(7)
    try:
        assert target_tokens(usage(left), asked, price) >= least
    except DoesNotFit as error:
        missing = error.missing_bytes
        assert missing is not None
        assert missing > 0
        assert target_tokens(usage(left + missing), asked, price) >= least
        with pytest.raises(DoesNotFit):
            target_tokens(usage(left + missing - 1), asked, price)


@given(st.integers(1, 5000), st.none() | st.integers(0, 10**6), st.integers(1, 100))
def test_a_shrink_is_the_shortfall_and_never_zero(tokens: int, missing: int | None, token_bytes: int) -> None:
    price = blocks(token_bytes)
    smaller = shrunk_tokens(Attempt(tokens, AttemptOutcome.OUT_OF_MEMORY, missing), price)
    assert smaller < tokens
    size = price(tokens)
    allowed = size - (ceil(size * 0.05) if missing is None else max(missing, ceil(size * 0.01)))
    assert smaller <= 0 or price(smaller) <= allowed
    assert smaller == tokens - 1 or price(smaller + 1) > allowed

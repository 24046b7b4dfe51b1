"""Tokens of a step among requests that all want more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brim.vllm.runner.requests import shared_out


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(0, 200))
def test_every_request_gets_a_token_and_no_token_is_left(wanted: list[int], more: int) -> None:
    tokens = len(wanted) + more
    given_tokens = shared_out(tokens, wanted)
    assert all(1 <= got <= asked for got, asked in zip(given_tokens, wanted, strict=True))
    assert sum(given_tokens) == min(tokens, sum(wanted))

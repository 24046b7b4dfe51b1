"""Lists of allowed tokens and banned sequences as masks, alone and within a grammar."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.engine.front.token_limits import limited
from brim.engine.requests.grammar import Constraint
from brim.engine.requests.params import SamplingParams
from brim.errors import InvalidRequest

VOCAB = 19


class Fixed:
    """A grammar that allows the same tokens at every place, and counts what it is told."""

    fixed = False

    def __init__(self, tokens: Iterable[int]) -> None:
        self.allowed = np.packbits([token in set(tokens) for token in range(VOCAB)], bitorder="little")
        self.taken: list[int] = []

    def take(self, token: int) -> str | None:
        self.taken.append(token)
        return "the grammar ends" if token == 0 else None


def tokens_of(constraint: Constraint) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(constraint.allowed, bitorder="little")[:VOCAB]).tolist())


def constraint(
    allowed: tuple[int, ...] | None = None,
    banned: tuple[tuple[int, ...], ...] = (),
    grammar: Constraint | None = None,
) -> Constraint:
    found = limited(SamplingParams(allowed_token_ids=allowed, banned_sequences=banned), VOCAB, grammar)
    assert found is not None
    return found


def test_what_limits_nothing_is_the_grammar_or_none() -> None:
    assert limited(SamplingParams(), VOCAB, None) is None
    grammar = Fixed([1])
    assert limited(SamplingParams(), VOCAB, grammar) is grammar


def test_a_list_and_single_tokens_are_fixed() -> None:
    found = constraint(allowed=(1, 5, 18), banned=((5,), (7,)))
    assert found.fixed
    assert tokens_of(found) == {1, 18}
    assert tokens_of(constraint(banned=((5,),))) == set(range(VOCAB)) - {5}


def test_a_sequence_is_banned_by_its_last_token_where_the_others_came() -> None:
    found = constraint(banned=((3, 4), (9, 3, 5), (6,)))
    every = set(range(VOCAB)) - {6}
    assert not found.fixed
    seen = []
    for token in (9, 3, 7, 3):
        seen.append(tokens_of(found))
        assert found.take(token) is None
    assert seen == [every, every, every - {4, 5}, every]
    assert tokens_of(found) == every - {4}


def test_bans_give_way_where_nothing_would_be_left() -> None:
    found = constraint(allowed=(5,), banned=((5, 5),))
    assert [tokens_of(found)] == [{5}]
    found.take(5)
    assert tokens_of(found) == {5}
    assert tokens_of(constraint(allowed=(5,), banned=((5,),))) == {5}


def test_bans_give_way_where_only_an_end_would_be_left_before_min_tokens() -> None:
    """The sampler lets no end be drawn there: nothing at all could be, and anything would be."""
    early = SamplingParams(allowed_token_ids=(2, 5), banned_sequences=((5,),), min_tokens=1)
    one = limited(early, VOCAB, None, ends=[2])
    assert one is not None
    assert tokens_of(one) == {2, 5}
    pairs = limited(replace(early, banned_sequences=((5, 5),), min_tokens=2), VOCAB, None, ends=[2])
    assert pairs is not None
    seen = []
    for _ in range(3):
        seen.append(tokens_of(pairs))
        assert pairs.take(5) is None
    assert seen == [{2, 5}, {2, 5}, {2}]


def test_within_a_grammar_both_hold_and_it_is_told_every_token() -> None:
    grammar = Fixed([1, 2, 3])
    found = constraint(allowed=(2, 3, 4), banned=((2, 3),), grammar=grammar)
    assert tokens_of(found) == {2, 3}
    assert found.take(2) is None
    assert tokens_of(found) == {2}
    assert found.take(0) == "the grammar ends"
    assert grammar.taken == [2, 0]
    with pytest.raises(InvalidRequest, match="allowed_token_ids: none of them may come next by the grammar"):
        constraint(allowed=(9,), grammar=grammar)


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple), max_size=5).map(tuple),
    st.lists(st.integers(0, 3), max_size=12),
)
def test_no_banned_sequence_is_ever_completed(banned: tuple[tuple[int, ...], ...], wishes: Sequence[int]) -> None:
    """An answer that takes the wished token wherever it may, and one that is never banned otherwise."""
    found = limited(SamplingParams(banned_sequences=banned), VOCAB, None)
    answer: list[int] = []
    for wish in wishes:
        may = found is None or wish in tokens_of(found)
        completes = any(tuple([*answer, wish][-len(one) :]) == one for one in banned)
        assert may == (not completes)
        token = wish if may else 10
        answer.append(token)
        if found is not None:
            assert found.take(token) is None

"""Prompt lookup beside a search through the whole text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brim.engine.drafts.prompt_lookup import _LONG_ENOUGH, _LOOKED_AT, _NOTED_AT_ONCE, PairIndex, PromptLookup
from brim.engine.requests.params import SamplingParams
from brim.engine.requests.request import Request
from brim.engine.requests.sequence import Sequence


def longest_match(tokens: list[int]) -> int | None:
    """The latest of the places, among the last few of its pair, with the most tokens before it in common."""
    places = [end for end in range(len(tokens) - 2, 0, -1) if tokens[end - 1 : end + 1] == tokens[-2:]][:_LOOKED_AT]

    def common(end: int) -> int:
        length = 0
        while length <= end and length < _LONG_ENOUGH and tokens[end - length] == tokens[-1 - length]:
            length += 1
        return length

    return max(places, key=common, default=None)


@given(st.lists(st.integers(0, 2), max_size=80))
def test_it_finds_what_a_search_of_the_text_finds_at_every_length(tokens: list[int]) -> None:
    text: list[int] = []
    index = PairIndex(text)
    for token in tokens:
        text.append(token)
        assert index.match() == longest_match(text)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=20), st.lists(st.integers(0, 2), max_size=40))
def test_a_prediction_is_looked_through_as_if_it_stood_before_the_text(predicted: list[int], tokens: list[int]) -> None:
    text: list[int] = []
    index = PairIndex(text, predicted)
    for token in tokens:
        text.append(token)
        assert index.match() == longest_match([*predicted, *text])


def test_a_prediction_is_drafted_from_its_first_token_on_and_known_as_one() -> None:
    request = Request("r", (7, 8, 9), SamplingParams(), 0, 8, prediction=(1, 2, 3, 4))
    sequence = Sequence(request, [7, 8, 9])
    lookup = PromptLookup()
    assert not lookup.is_predicted(sequence)
    assert lookup.propose({sequence: 2}) == {sequence: (1, 2)}
    assert lookup.is_predicted(sequence)
    sequence.tokens += [1, 2, 5, 8, 9]  # it went another way, and the prompt comes again
    assert lookup.propose({sequence: 1}) == {sequence: (1,)}
    lookup.forget(sequence)
    assert not lookup.is_predicted(sequence)


def test_longer_matches_come_before_later_ones() -> None:
    text = [1, 2, 3, 4, 9, 3, 4, 8, 1, 2, 3, 4]
    index = PairIndex(text)
    place = index.match()
    assert place == 3
    assert index.following(place, 3) == (9, 3, 4)


def test_what_follows_goes_on_with_itself() -> None:
    index = PairIndex([5, 6, 7, 6, 7])
    place = index.match()
    assert place == 2
    assert index.following(place, 5) == (6, 7, 6, 7, 6)


def test_a_long_text_is_noted_over_several_steps() -> None:
    text = [*range(2 * _NOTED_AT_ONCE + 8), 3, 4]
    index = PairIndex(text)
    assert index.match() is None
    assert index.match() is None
    assert index.match() == 4
    assert index.following(4, 2) == (5, 6)


def test_drafts_are_for_those_that_have_one() -> None:
    def text(name: str, *tokens: int) -> Sequence:
        return Sequence(Request(name, tokens, SamplingParams(), 0, 8), list(tokens))

    again, new = text("again", 1, 2, 3, 1, 2), text("new", 1, 2, 3, 4, 5)
    lookup = PromptLookup()
    assert (lookup.has_one(again), lookup.has_one(new)) == (True, False)
    assert lookup.propose({again: 2, new: 2}) == {again: (3, 1)}
    lookup.forget(again)
    assert list(lookup._indices) == [new]

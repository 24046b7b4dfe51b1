"""The small language that dialogues are written in."""

from __future__ import annotations

from random import Random

import pytest

from models.tiny.phrasing import Phrases


def test_choices_nest_and_may_be_empty() -> None:
    phrases = Phrases("[Hi|Hello[ there|]][,|] {v}")
    assert phrases.all == {
        "Hi, {v}",
        "Hi {v}",
        "Hello, {v}",
        "Hello {v}",
        "Hello there, {v}",
        "Hello there {v}",
    }


def test_every_pattern_is_as_likely_as_another() -> None:
    phrases = Phrases("[a|b|c|d|e|f|g|h]", "x")
    said = [phrases.say(Random(seed)) for seed in range(400)]
    assert 150 < said.count("x") < 250


def test_slots_are_filled_when_said_or_before() -> None:
    phrases = Phrases("{what} is {v}")
    assert phrases.say(Random(0), what="it", v=3) == "it is 3"
    assert phrases.filled(what="he", v="old").say(Random(0)) == "he is old"


def test_either_of_two() -> None:
    assert (Phrases("[a|b]") | Phrases("c")).all == {"a", "b", "c"}


@pytest.mark.parametrize("pattern", ["[a|b", "a]", "[a|[b]"])
def test_brackets_must_match(pattern: str) -> None:
    with pytest.raises(AssertionError, match="unbalanced"):
        Phrases(pattern)

"""Many ways to say one thing, written as patterns.

`[a|b|c]` is a choice, `[a|]` may be left out, choices nest, and `{slot}` is filled when it is said:

    Phrases("[Hi|Hello][,|] my name is {v}[.|!|]")

A pattern is expanded once, when it is written down; to say it is a random choice. `all` holds every expansion, so that
an evaluation can prove its own phrasings were not in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

T = TypeVar("T")


def pick(rng: Random, options: Sequence[T]) -> T:
    """One of them (a few times faster than `Random.choice`, which the making of data mostly consists of)."""
    return options[int(rng.random() * len(options))]


class Phrases:
    """Ways to say one thing. Each pattern is as likely as another, however many expansions it has."""

    def __init__(self, *patterns: str) -> None:
        self._expanded = tuple(tuple(dict.fromkeys(_expand(pattern))) for pattern in patterns)

    @property
    def all(self) -> frozenset[str]:
        return frozenset(text for texts in self._expanded for text in texts)

    def say(self, rng: Random, **slots: object) -> str:
        return pick(rng, pick(rng, self._expanded)).format(**slots)

    def filled(self, **slots: object) -> Filled:
        """The same with some slots filled already."""
        return Filled(self, slots)

    def __or__(self, other: Phrases) -> Phrases:
        both = Phrases()
        both._expanded = self._expanded + other._expanded
        return both


@dataclass(frozen=True, slots=True)
class Filled:
    """Phrases about one thing: they were expanded once, for all things."""

    phrases: Phrases
    slots: dict[str, object]

    def say(self, rng: Random) -> str:
        return self.phrases.say(rng, **self.slots)


def _expand(pattern: str) -> list[str]:
    texts, rest = _sequence(pattern, 0)
    assert rest == len(pattern), f"unbalanced brackets in {pattern!r}"
    return texts


def _sequence(pattern: str, at: int) -> tuple[list[str], int]:
    """All texts of the pattern from here to its end, or to the end of the choice that it stands in."""
    texts = [""]
    while at < len(pattern) and pattern[at] not in "|]":
        if pattern[at] == "[":
            choices, at = _choice(pattern, at + 1)
            texts = [text + choice for text in texts for choice in choices]
        else:
            texts, at = [text + pattern[at] for text in texts], at + 1
    return texts, at


def _choice(pattern: str, at: int) -> tuple[list[str], int]:
    choices: list[str] = []
    while True:
        texts, at = _sequence(pattern, at)
        choices += texts
        assert at < len(pattern), f"unbalanced brackets in {pattern!r}"
        if pattern[at] == "]":
            return choices, at + 1
        at += 1


def capitalised(text: str) -> str:
    """The text as a sentence: its first letter large."""
    return text[:1].upper() + text[1:]

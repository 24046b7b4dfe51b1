"""How many tokens a prompt or an answer has: a number, a range, or a distribution with a long tail."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Protocol

from brim.errors import InvalidRequest
from brim.suggest import shown
from brim.units import parse_count

_MOST_SIGMA = 4.0
_TAIL = 8  # times the median: no draw of a long tail is longer


class Lengths(Protocol):
    """A distribution of lengths."""

    @property
    def longest(self) -> int: ...

    def draw(self, numbers: random.Random) -> int: ...


@dataclass(frozen=True, slots=True)
class Between:
    """Every length from the least to the most is as likely."""

    least: int
    most: int

    @property
    def longest(self) -> int:
        return self.most

    def draw(self, numbers: random.Random) -> int:
        return numbers.randint(self.least, self.most)


@dataclass(frozen=True, slots=True)
class LongTailed:
    """A lognormal distribution: most are near the median, some are several times as long."""

    median: int
    sigma: float

    @property
    def longest(self) -> int:
        return self.median * _TAIL

    def draw(self, numbers: random.Random) -> int:
        length = round(self.median * math.exp(numbers.gauss(0, self.sigma)))
        return min(max(length, 1), self.longest)


def parse_lengths(text: str, what: str) -> Lengths:
    """Lengths from text: "512", "128-1024" or "lognormal:512:0.7"."""
    kind, _, rest = text.partition(":")
    if kind == "lognormal":
        median, _, sigma = rest.partition(":")
        return LongTailed(_at_least_one(median, what), _sigma(sigma or "1", what))
    least, dash, most = text.partition("-")
    found = Between(_at_least_one(least, what), _at_least_one(most if dash else least, what))
    if found.least > found.most:
        raise InvalidRequest(f"{what} '{shown(text)}' ends before it begins; write the smaller number first")
    return found


def _at_least_one(text: str, what: str) -> int:
    found = parse_count(text, what)
    if found < 1:
        raise InvalidRequest(f"{what} is {found}; it must be at least 1")
    return found


def _sigma(text: str, what: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= _MOST_SIGMA:
        raise InvalidRequest(f"{what}: sigma '{shown(text)}' is not from 0 to {_MOST_SIGMA:g}; try lognormal:512:0.7")
    return found

"""How long an answer is expected to become: in the worst case, or as answers have turned out so far."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from math import ceil
from typing import Protocol

REMEMBERED = 1000  # lengths of answers that have ended
ENOUGH = 16  # longer answers, without which no quantile is taken


class Growth(Protocol):
    """Estimates how many tokens an answer will have."""

    def tokens(self, generated: int, most: int) -> int:
        """Of an answer with `generated` tokens so far and `most` allowed: more than the former, if that is allowed."""
        ...

    def ended(self, tokens: int) -> None:
        """An answer has ended with so many tokens."""
        ...


class WorstGrowth:
    """Every answer has all tokens that it may have."""

    def tokens(self, generated: int, most: int) -> int:
        return most

    def ended(self, tokens: int) -> None:
        pass


class ExpectedGrowth:
    """An upper quantile of the answers that ended lately, of those longer than this one is by now.

    Where too few are known that were longer, `prior` tokens, or twice what there is.
    """

    def __init__(self, quantile: float, prior: int) -> None:
        self._quantile = quantile
        self._prior = prior
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []

    def tokens(self, generated: int, most: int) -> int:
        known = self._sorted
        first = bisect_right(known, generated)
        longer = len(known) - first
        if longer >= ENOUGH:
            expected = known[first + ceil(self._quantile * longer) - 1]
        else:
            expected = max(self._prior, 2 * generated, generated + 1)
        return min(expected, most)

    def ended(self, tokens: int) -> None:
        self._recent.append(tokens)
        insort(self._sorted, tokens)
        if len(self._recent) > REMEMBERED:
            del self._sorted[bisect_right(self._sorted, self._recent.popleft()) - 1]

"""Texts of so many tokens, for a tokenizer that only the server has.

The server is asked what common words cost (`/tokenize`, or the usage of an answer of one token where it has no such
endpoint). Tokenizers cut at spaces, so that a text costs the sum of its words.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

_COMMON = (
    "the of and to in is it you that was for on are with as his they be at one have this from or had by hot but some "
    "what there we can out other were all your when up use word how said an each she which do their time if will way "
    "about many then them would write like so these her long make thing see him two has look more day could go come "
    "did my no most who over know than call first people may down side been now find any new work part take get place "
    "made live where after back little only round man year came show every good me give our under name very through"
)
_WORDS = tuple(_COMMON.split())
_OFTEN = 8  # times that a word is repeated to find its cost
_ASKED = 48  # words whose cost is asked for one by one
Count = Callable[[str], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class Words:
    """What texts cost: `overhead` tokens for the empty one, and each word its own."""

    overhead: int
    costs: tuple[tuple[str, float], ...]
    exact: bool  # costs were found word by word

    def text(self, tokens: int, numbers: random.Random) -> str:
        """About so many tokens, exactly so many where costs are known and some words cost one; at least a word."""
        left: float = tokens - self.overhead
        found: list[str] = []
        cheapest = min(cost for _, cost in self.costs)
        while left >= cheapest or not found:
            word, cost = self.costs[numbers.randrange(len(self.costs))]
            if cost > left:
                word, cost = min(self.costs, key=lambda one: one[1])
            found.append(word)
            left -= cost
        return " ".join(found)


async def known_by_word(count: Count) -> Words:
    """For a server that counts tokens: the cost of every word, one by one."""
    first, asked = _WORDS[0], _WORDS[:_ASKED]
    texts = [first, *(" ".join([first] + [word] * _OFTEN) for word in asked)]
    base, *counts = await asyncio.gather(*(count(text) for text in texts))
    more = {word: counted - base for word, counted in zip(asked, counts, strict=True)}
    costs = [(word, found / _OFTEN) for word, found in more.items() if found > 0 and found % _OFTEN == 0]
    if not costs:
        return await known_on_average(count)
    cheapest = min(cost for _, cost in costs)
    own = dict(costs).get(first, cheapest)
    kept = tuple(one for one in costs if one[1] <= 2 * cheapest)
    return Words(round(base - own), kept, exact=True)


async def known_on_average(count: Count) -> Words:
    """For any server: what a word costs on average, from two texts."""
    short, long = await count(_joined(_WORDS[:8])), await count(_joined(_WORDS))
    cost = max(0.1, (long - short) / (len(_WORDS) - 8))
    return Words(max(0, round(short - 8 * cost)), tuple((word, cost) for word in _WORDS), exact=False)


def _joined(words: Sequence[str]) -> str:
    return " ".join(words)

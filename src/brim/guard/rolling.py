"""Which exchanges of a conversation give way when it would outgrow its memory.

In: how many exchanges there are, which are pinned, how many tokens the prompt has with some of them, and the room that
the answer needs. Out: which stay. Nothing is dropped before prompt and room pass the threshold; then the oldest go,
whole exchanges at a time, until prompt and room are down to the low-water mark, so that it happens rarely: everything
behind what was dropped is recomputed. The last exchange, which is being answered, and pinned ones always stay.

Pure: token counts come from a function, because chat templates may write earlier turns differently when others go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from brim.errors import InvalidRequest

Count = Callable[[Sequence[int]], int]  # tokens of the prompt with these exchanges, exactly


@dataclass(frozen=True, slots=True)
class RollingSettings:
    """Tokens of prompt and answer: how many there may be, and how many are left when exchanges are dropped."""

    threshold: int
    low_water: int

    def __post_init__(self) -> None:
        check_marks(self.threshold, self.low_water, optional=False)


def check_marks(threshold: int | None, low_water: int | None, optional: bool = True) -> None:
    """Refuse marks that are no numbers of tokens, or in the wrong order; None: it was left open."""
    for name, value in (("rolling_threshold", threshold), ("low_water", low_water)):
        if (value is None and optional) or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
            continue
        raise InvalidRequest(f"{name} is {value!r}; it must be an integer of at least 1")
    if threshold is not None and low_water is not None and low_water > threshold:
        raise InvalidRequest(f"low_water is {low_water}, more than the rolling_threshold of {threshold}; lower it")


@dataclass(frozen=True, slots=True)
class Rolled:
    """What stays of a conversation, by number, and the prompt that it makes."""

    kept: tuple[int, ...]
    dropped: tuple[int, ...]
    tokens: int
    tokens_before: int
    fits: bool  # prompt and room are within the threshold


def roll(pinned: Sequence[bool], count: Count, room: int, settings: RollingSettings) -> Rolled:
    """Let the oldest exchanges go, if that is necessary."""
    everything = range(len(pinned))
    before = count(everything)
    if before + room <= settings.threshold:
        return Rolled(tuple(everything), (), before, before, fits=True)
    oldest = [number for number in everything[:-1] if not pinned[number]]

    def without(dropped: int) -> tuple[int, ...]:
        gone = set(oldest[:dropped])
        return tuple(number for number in everything if number not in gone)

    dropped = _fewest(len(oldest), lambda number: count(without(number)) + room <= settings.low_water)
    tokens = count(without(dropped))
    fits = tokens + room <= settings.threshold
    return Rolled(without(dropped), tuple(oldest[:dropped]), tokens, before, fits)


def _fewest(most: int, enough: Callable[[int], bool]) -> int:
    """The least number from 0 to `most` that is enough, or `most`. More is expected to be no worse, and checked."""
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle + 1
    while low < most and not enough(low):
        low += 1
    return low

"""Prompt lookup: what followed the last time that a text came to the same tokens is what may follow now.

In: the tokens of a request, prompt and answer, and what its client predicts of the answer. Out: the tokens behind the
longest earlier match of its last ones, the latest of equally long ones. Summaries, edits of code and answers that quote
are full of such matches; other texts have few, and looking for them costs microseconds.

Every pair of neighbouring tokens is noted with the place where it last ended, and each place with the one before it of
the same pair. A long prompt is noted over several steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from brim.engine.requests.request import Request
from brim.engine.requests.sequence import Sequence as RunningSequence

_NOTED_AT_ONCE = 4096  # tokens: about a millisecond
_LOOKED_AT = 8  # earlier places of a pair
_LONG_ENOUGH = 16  # tokens: a longer match is no better
_SHIFT = 32  # a pair of tokens as one integer


class PairIndex:
    """Where each pair of neighbouring tokens of one text has ended."""

    __slots__ = ("_before", "_grows", "_last", "_tokens", "predicted")

    def __init__(self, tokens: list[int], predicted: Sequence[int] = ()) -> None:
        """`predicted` is looked through as well, as if it stood before the text."""
        self._grows = tokens  # nothing of it changes
        self._tokens = [*predicted, *tokens] if predicted else tokens
        self.predicted = len(predicted)
        self._last: dict[int, int] = {}  # pair -> place of its second token
        self._before: list[int] = [-1]  # by place: the one before it of the same pair; -1: there is none

    def catch_up(self) -> bool:
        """Note pairs that something follows; False if some are left for another call."""
        tokens, last, before = self._tokens, self._last, self._before
        end = len(tokens) - 1
        stop = min(end, len(before) + _NOTED_AT_ONCE)
        for place in range(len(before), stop):
            pair = tokens[place - 1] << _SHIFT | tokens[place]
            before.append(last.get(pair, -1))
            last[pair] = place
        return stop >= end

    def match(self) -> int | None:
        """The place that the last token has matched, with the most tokens before it."""
        self._follow()
        tokens = self._tokens
        if len(tokens) < 3 or not self.catch_up():
            return None
        place = self._last.get(tokens[-2] << _SHIFT | tokens[-1], -1)
        found, longest = None, 0
        for _ in range(_LOOKED_AT):
            if place < 0:
                break
            length = _matching(tokens, place)
            if length > longest:
                found, longest = place, length
                if length == _LONG_ENOUGH:
                    break
            place = self._before[place]
        return found

    def _follow(self) -> None:
        """Add what the text has grown by to what is before it."""
        if self.predicted:
            self._tokens.extend(self._grows[len(self._tokens) - self.predicted :])

    def following(self, place: int, count: int) -> tuple[int, ...]:
        """The tokens behind a place. Where they reach the end of the text, they go on with themselves."""
        tokens = self._tokens
        found = tokens[place + 1 : place + 1 + count]
        period = len(tokens) - 1 - place
        while len(found) < count:
            found.append(found[len(found) - period])
        return tuple(found)


def _matching(tokens: list[int], place: int) -> int:
    """How many tokens up to a place are those at the end of the text."""
    length, behind = 0, len(tokens) - 1 - place
    most = min(_LONG_ENOUGH, place + 1)
    while length < most and tokens[place - length] == tokens[place + behind - length]:
        length += 1
    return length


class PromptLookup:
    """Drafts from the request's own text, and from what its client predicts."""

    def __init__(self) -> None:
        self._indices: dict[RunningSequence, PairIndex] = {}
        self._predicted: set[RunningSequence] = set()  # whose last draft was a part of its prediction

    def has_one(self, sequence: RunningSequence) -> bool:
        return self._index(sequence).match() is not None

    def propose(self, depths: Mapping[RunningSequence, int]) -> dict[RunningSequence, tuple[int, ...]]:
        found = {}
        for sequence, depth in depths.items():
            index = self._index(sequence)
            place = index.match()
            if place is not None:
                found[sequence] = index.following(place, depth)
                (self._predicted.add if place < index.predicted else self._predicted.discard)(sequence)
        return found

    def is_predicted(self, sequence: RunningSequence) -> bool:
        return sequence in self._predicted

    def forget(self, sequence: RunningSequence) -> None:
        self._indices.pop(sequence, None)
        self._predicted.discard(sequence)

    def _index(self, sequence: RunningSequence) -> PairIndex:
        index = self._indices.get(sequence)
        if index is None:
            index = self._indices[sequence] = PairIndex(sequence.tokens, _expected(sequence.request))
        return index


def _expected(request: Request) -> Sequence[int]:
    """The prediction behind the end of the prompt, where it is expected."""
    return (*request.prompt[-_LONG_ENOUGH:], *request.prediction) if request.prediction else ()

"""How far the requests of a failed step have to get before its rescue is over, and how large their steps may be.

In: the requests of a step that failed, and where each stood. Out: which of them are still behind, and the bounds of the
next step of a part. A failed step may cost a request what it had computed (recurrent states). Then the first tokens of
its text say nothing about those that failed: the part goes on until the request is past the place where it stood, or it
would come back to that place in ordinary serving, with all others, and fail there again and again.

Each rescue thus brings every request that it can run further than it was, and ends those that cannot run alone.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from brim.engine.requests.sequence import Sequence
from brim.engine.schedule.plan import StepBounds
from brim.engine.schedule.scheduler import Scheduler
from brim.guard.rescue import CHUNK_FLOOR_TOKENS, RequestKey, RetryPart, Work


class CatchUp:
    """Requests of one rescue that are not past the place where a failed step found them."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._places: dict[RequestKey, int] = {}  # tokens that were computed: it is past them when it has more
        self._reached: dict[RequestKey, int] = {}  # the most that had been computed of it when a step failed

    def expect(self, sequences: Collection[Sequence], work: dict[RequestKey, Work]) -> None:
        """A step of these requests has failed. The furthest place counts: one may fail again on its way there."""
        for sequence in sequences:
            key = sequence.request.key
            place = work[key].start
            if len(sequences) == 1 and self._scheduler.begins_at(sequence) < place:
                place = sequence.length - 1  # alone up to its next token: each further failure would cost all of it
            self._places[key] = max(place, self._places.get(key, 0))

    def with_history(self, work: Work) -> Work:
        """What a step was to compute of a request, and how far that one had come when a step failed before."""
        reached = self._reached.get(work.request, 0)
        self._reached[work.request] = max(reached, work.start)
        return replace(work, reached=reached)

    def behind(self, part: RetryPart) -> list[Sequence]:
        """Those of a part that wait or run, and are not past their places."""
        self._forget_past()
        scheduler, wanted = self._scheduler, self._places.keys() & set(part.requests)
        return [one for one in (*scheduler.running, *scheduler.waiting) if one.request.key in wanted]

    def _forget_past(self) -> None:
        for sequence in self._scheduler.running:
            key = sequence.request.key
            if sequence.computed > self._places.get(key, sequence.computed):
                del self._places[key]

    def bounds(self, part: RetryPart, usual_tokens: int) -> StepBounds:
        """The next step of a part. Steps up to a place may be of the usual size: it was reached with such steps."""
        sequences = self.behind(part)
        only = frozenset(one.request.key for one in sequences)
        if len(part.requests) == 1:
            return StepBounds(self._tokens_alone(part, sequences[0], usual_tokens), only)
        set_back = any(self._scheduler.begins_at(one) < self._places[one.request.key] for one in sequences)
        return StepBounds(max(part.tokens, usual_tokens) if set_back else part.tokens, only)

    def _tokens_alone(self, part: RetryPart, sequence: Sequence, usual_tokens: int) -> int:
        start = self._scheduler.begins_at(sequence)
        if start < part.start:
            return min(part.way_tokens or usual_tokens, usual_tokens, part.start - start)
        if start < self._places[sequence.request.key]:
            return max(part.tokens, min(usual_tokens, CHUNK_FLOOR_TOKENS))
        return part.tokens

"""How far the requests of a failed step have to get before its rescue is over, and how large their steps may be.

In: what a step that failed was to compute, and how far each of its requests is. Out: which of them are still behind,
and the bounds of the next step of a part. A failed step may cost a request what it had computed (recurrent states).
Then the first tokens of its text say nothing about those that failed: the part goes on until the request is past the
place where it stood, or it would come back to that place in ordinary serving, with all others, and fail there again and
again.

Each rescue thus brings every request that it can run further than it was, and ends those that cannot run alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from brim.guard.rescue import CHUNK_FLOOR_TOKENS, RetryPart
from brim.records.rescue import LaunchBounds, RequestKey, RequestProgress, Work

Progress = tuple[RequestProgress, ...]


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Requests of one rescue that are not past the place where a failed step found them."""

    places: Mapping[RequestKey, int] = field(default_factory=dict)  # computed tokens: it is past them when it has more
    reached: Mapping[RequestKey, int] = field(default_factory=dict)  # the most computed when a step of it failed

    def expecting(self, failed: tuple[Work, ...], progress: Progress) -> CatchUp:
        """A step of these requests has failed. The furthest place counts: one may fail again on its way there."""
        places = dict(self.places)
        now = {one.request: one for one in progress}
        for work in failed:
            place = work.start
            if len(failed) == 1 and now[work.request].computed < place:
                place = now[work.request].length - 1  # alone up to its next token: each failure would cost all of it
            places[work.request] = max(place, places.get(work.request, 0))
        reached = {work.request: max(work.start, self.reached.get(work.request, 0)) for work in failed}
        return CatchUp(places, {**self.reached, **reached})

    def with_history(self, work: Work) -> Work:
        """What a step was to compute of a request, and how far that one had come when a step failed before."""
        return replace(work, reached=self.reached.get(work.request, 0))

    def without_past(self, progress: Progress) -> CatchUp:
        """Forget the requests that run and are past their places."""
        past = {one.request for one in progress if one.running and one.computed > self.places[one.request]}
        if not past:
            return self
        return replace(self, places={request: at for request, at in self.places.items() if request not in past})

    def behind(self, part: RetryPart, progress: Progress) -> Progress:
        """Those of a part that wait or run, and are not past their places."""
        wanted = self.places.keys() & set(part.requests)
        return tuple(one for one in progress if one.request in wanted)

    def bounds(self, part: RetryPart, progress: Progress, usual_tokens: int) -> LaunchBounds:
        """The next step of a part. Steps up to a place may be of the usual size: it was reached with such steps."""
        behind = self.behind(part, progress)
        only = frozenset(one.request for one in behind)
        if len(part.requests) == 1:
            return LaunchBounds(self._tokens_alone(part, behind[0], usual_tokens), only)
        set_back = any(one.computed < self.places[one.request] for one in behind)
        return LaunchBounds(max(part.tokens, usual_tokens) if set_back else part.tokens, only)

    def _tokens_alone(self, part: RetryPart, request: RequestProgress, usual_tokens: int) -> int:
        if request.computed < part.start:
            return min(part.way_tokens or usual_tokens, usual_tokens, part.start - request.computed)
        if request.computed < self.places[request.request]:
            return max(part.tokens, min(usual_tokens, CHUNK_FLOOR_TOKENS))
        return part.tokens

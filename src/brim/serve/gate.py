"""How many answers may be inside at once: those the engine runs, and a bounded queue behind them.

Who finds it full is told when a place is likely to be free, from how fast answers have ended lately. A client that has
less than its fair part finds a place all the same: the newest waiting request of the client that is furthest above its
own gives way, and is told to come back (`brim.guard.shares`). Nothing that has begun to be answered gives way.
"""

from __future__ import annotations

import time
from asyncio import CancelledError
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from brim.guard.shares import EVERYBODY, ClientShare, displaced, fair_places
from brim.serve.problems import Problem, invalid

if TYPE_CHECKING:
    from asyncio import Task

_REMEMBERED = 128  # answers whose end the forecast is made of
_LONGEST_WAIT = 120  # seconds


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """The places of one request, from when it was let in."""

    share: ClientShare
    places: int
    task: Task[Any] | None = None  # that answers it, and is cancelled when it gives way; None: it cannot
    begun: bool = False  # something of its answer is known
    was_displaced: bool = False

    @property
    def waiting(self) -> bool:
        return self.task is not None and not self.begun

    def displace(self) -> None:
        assert self.task is not None
        self.was_displaced = True
        self.task.cancel()


class RequestGate:
    """Counts answers, in the event loop's thread alone."""

    def __init__(
        self,
        batch: int,
        queue: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        most_per_share: int | None = None,
    ) -> None:
        self.places = batch + queue
        self.most_per_share = most_per_share
        self.inside = 0
        self.refused = 0  # requests, because it was full
        self.refused_by_share = 0  # requests, because their share had as many inside as it may
        self.displaced = 0  # requests that gave way
        self._holders: dict[QueuedRequest, None] = {}  # in the order in which they were let in
        self._clock = clock
        self._busy_before = 0.0  # seconds with somebody inside, up to the last time that it became empty
        self._busy_since = 0.0  # by the clock; where somebody is inside
        self._ended: deque[tuple[float, str]] = deque()  # busy seconds at the end of each answer, and its share
        self._remembered_from = 0.0  # busy seconds

    @contextmanager
    def entered(
        self, answers: int, share: ClientShare = EVERYBODY, task: Task[Any] | None = None
    ) -> Iterator[QueuedRequest]:
        """Take a place for each answer, or refuse. A `task` is cancelled here if the request has to give way."""
        self._check(answers, share)
        self._make_room(answers, share)
        place = QueuedRequest(share, answers, task)
        if not self.inside:
            self._busy_since = self._clock()
        self.inside += answers
        self._holders[place] = None
        try:
            yield place
            self._remember(place)
        except CancelledError:
            if place.was_displaced and task is not None and task.uncancel() == 0:
                raise self._full("it gave its place to a client that has fewer", "displaced", answers) from None
            raise  # the client has left
        finally:
            self._leave(place)

    def _check(self, answers: int, share: ClientShare) -> None:
        most = self.places if self.most_per_share is None else min(self.places, self.most_per_share)
        if answers > most:
            raise invalid("n", f"{answers} answers were asked for at once, and the server holds {most} of one client")
        held = 0 if self.most_per_share is None else self.held(share)
        if held + answers > most:
            self.refused_by_share += 1
            wait = self.wait_seconds(held + answers - most, share)
            raise Problem(
                429,
                f"{held} answers of this client are running or waiting, and it may have {most} (--max-per-key); "
                f"try again in {wait} s",
                kind="rate_limit_error",
                code="client_limit",
                retry_after=wait,
            )

    def _make_room(self, answers: int, share: ClientShare) -> None:
        missing = self.inside + answers - self.places
        if missing <= 0:
            return
        leaving = displaced(share, answers, list(self._holders), self.places)
        if not leaving:
            self.refused += 1
            raise self._full("the queue is full", "queue_full", missing)
        for place in leaving:
            self.displaced += 1
            place.displace()
            self._leave(place)

    def _full(self, said: str, code: str, missing: int) -> Problem:
        wait = self.wait_seconds(missing)
        return Problem(
            429,
            f"{said}: {self.inside} answers are running or waiting, of at most {self.places}; try again in {wait} s",
            kind="rate_limit_error",
            code=code,
            retry_after=wait,
        )

    def _leave(self, place: QueuedRequest) -> None:
        """Its places are free. One that gave way has left before its task notices."""
        if place in self._holders:
            busy = self._busy_seconds()
            del self._holders[place]
            self.inside -= place.places
            if not self.inside:
                self._busy_before = busy

    # -- figures -------------------------------------------------------------------------------------------------

    @property
    def refused_or_displaced(self) -> int:
        """Requests that were told that the queue is full."""
        return self.refused + self.displaced

    def held(self, share: ClientShare) -> int:
        """Answers of one share that are inside."""
        return self.by_share[share.name]

    @property
    def by_share(self) -> Counter[str]:
        """Answers inside, of each share that has any."""
        found = Counter[str]()
        for place in self._holders:
            found[place.share.name] += place.places
        return found

    def report(self, share: ClientShare) -> dict[str, Any]:
        """What one client has of the places: for itself, with stable keys."""
        weights = {one.share.name: one.share.weight for one in self._holders}
        return {
            "share": share.name,
            "weight": share.weight,
            "inside": self.held(share),
            "fair_places": int(fair_places(share, weights, self.places)),
            "most_places": self.most_per_share,
            "clients": len(weights),
        }

    def wait_seconds(self, places: int, share: ClientShare | None = None) -> int:
        """Until so many more places are free (of a share's own), as far as the past tells."""
        if len(self._ended) < 2:
            return 1
        taken = self._busy_seconds() - self._remembered_from
        ended = len(self._ended) if share is None else sum(name == share.name for _, name in self._ended)
        return max(1, min(_LONGEST_WAIT, ceil(places * taken / max(1, ended))))

    def _remember(self, place: QueuedRequest) -> None:
        """Answers that were given; requests that were refused inside say nothing of how long one takes."""
        self._ended.extend([(self._busy_seconds(), place.share.name)] * place.places)
        while len(self._ended) > _REMEMBERED:
            self._remembered_from, _ = self._ended.popleft()

    def _busy_seconds(self) -> float:
        """An hour without requests is not an hour that an answer took."""
        return self._busy_before + (self._clock() - self._busy_since if self.inside else 0.0)

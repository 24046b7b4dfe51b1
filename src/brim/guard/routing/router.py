"""A router's state between decisions: reports, what was sent since, and where conversations went.

The one object that the router of `brim.ray` and its simulation use. In one thread; the clock is given.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from brim.guard.routing.policy import Fleet
from brim.guard.routing.sent import Conversations, Sent, SentSince
from brim.records.routing import ReplicaStatistics, Route, RouteRefusal, RouteRequest


@dataclass(slots=True)
class _Replica:
    number: int  # of its last report
    reported: float  # when that came
    sent: SentSince
    seen: ReplicaStatistics | None = None  # that report


class MemoryRouter:
    """Routes requests among replicas, by their memory."""

    def __init__(self, period_seconds: float = 1.0) -> None:
        """`period_seconds`: how old a report may be when it comes; what was sent in that time may not be in it."""
        self._period = period_seconds
        self._fleet = Fleet()
        self._replicas: dict[str, _Replica] = {}
        self._conversations = Conversations()

    def reported(self, name: str, seen: ReplicaStatistics, now: float) -> None:
        """Statistics of a replica; those that were seen already change nothing."""
        replica = self._replicas.get(name)
        if replica is None:
            replica = self._replicas[name] = _Replica(-1, now, SentSince())
        if seen.number == replica.number:
            return
        replica.number, replica.reported, replica.seen = seen.number, now, seen
        replica.sent.counted_until(now - self._period)
        self._fleet.put(name, seen, sent_blocks=replica.sent.blocks, sent_answers=replica.sent.answers)

    def assume_idle(self, name: str, now: float) -> None:
        """A replica that has not reported yet has just started: like another of its kind, with nothing in it."""
        like = next((one.seen for one in self._replicas.values() if one.seen is not None), None)
        if name not in self._replicas and like is not None:
            self.reported(name, like.when_idle(), now)

    def knows(self, name: str) -> bool:
        return name in self._replicas

    def number(self, name: str) -> int | None:
        """Of the last report of a replica."""
        replica = self._replicas.get(name)
        return None if replica is None else replica.number

    def only(self, names: Collection[str]) -> None:
        """Replicas that are no longer among these are gone."""
        for name in [one for one in self._replicas if one not in names]:
            self.gone(name)

    def gone(self, name: str) -> None:
        if self._replicas.pop(name, None) is not None and name in self._fleet:
            self._fleet.remove(name)

    def route(self, asked: RouteRequest) -> Route | RouteRefusal:
        """Where a request goes, of the replicas that have reported."""
        return self._fleet.choose(asked, self._remembered(asked))

    def _remembered(self, asked: RouteRequest) -> dict[str, int]:
        found = self._conversations.find(asked.digests)
        return {} if found is None else dict([found])

    def sent(self, asked: RouteRequest, name: str, now: float, key: str) -> None:
        """The request went there; `key` tells it from others."""
        self._conversations.went(asked.digests, name)
        replica = self._replicas.get(name)
        if replica is not None:
            replica.sent.add(Sent(key, now, asked.blocks, asked.answers))
            self._fleet.sent(name, replica.sent.blocks, replica.sent.answers)

    def ended(self, name: str, key: str) -> None:
        """The request has been answered, or given up."""
        replica = self._replicas.get(name)
        if replica is not None:
            replica.sent.ended(key)
            self._fleet.sent(name, replica.sent.blocks, replica.sent.answers)

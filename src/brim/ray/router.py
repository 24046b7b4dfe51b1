"""Ray Serve's router for replicas of Brim: its public interface, with the decisions of `brim.guard.routing`.

It runs in a front end, beside the handle that sends. A replica that has not reported yet counts as an idle one.
Where the policy refuses, no replica is named and the request's `Sending` is told: the front end gives it up and
answers 429.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from brim.guard.routing.router import MemoryRouter
from brim.ray.wire import Sending
from brim.records.routing import ReplicaStatistics, RouteRefusal, RouteRequest

Ranked = list[list[RunningReplica]]


class MemoryRequestRouter(RequestRouter):  # type: ignore[misc]
    """One deployment's replicas, as one front end sees them."""

    def initialize_state(self, report_seconds: float = 1.0, **_: Any) -> None:
        self._memory = MemoryRouter(report_seconds)
        self._unreported: dict[str, int] = {}  # requests sent to replicas before their first report

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Called when replicas come, go or report."""
        super().update_replicas(replicas)
        now = time.monotonic()
        self._memory.only({name_of(one.replica_id) for one in replicas})
        for replica in replicas:
            found = replica.routing_stats
            if found and found.get("number") != self._memory.number(name_of(replica.replica_id)):
                self._memory.reported(name_of(replica.replica_id), ReplicaStatistics.from_wire(found), now)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> Ranked:
        by_name = {name_of(one.replica_id): one for one in candidate_replicas}
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # where none of them takes it
        sending = sending_of(pending_request)
        if sending is not None and sending.pinned is not None:
            return [[by_name[sending.pinned]]] if sending.pinned in by_name else await self._refused(sending, _GONE)
        asked = RouteRequest() if sending is None else sending.asked
        for name in by_name:
            self._memory.assume_idle(name, time.monotonic())
        if not any(self._memory.knows(name) for name in by_name):
            names = [name for name in by_name if name not in asked.excluded]
            return self._least_sent(by_name, names or list(by_name))
        found = self._memory.route(asked)
        if isinstance(found, RouteRefusal):
            if sending is None:  # nobody to tell: any of them says why not
                return [list(by_name.values())]
            return await self._refused(sending, found)
        ranked = [name for name in found.replicas if name in by_name]
        if ranked and sending is not None and pending_request is not None:
            self._count(pending_request, sending, ranked[0])
        return [[by_name[name]] for name in ranked]

    def _count(self, pending: PendingRequest, sending: Sending, name: str) -> None:
        """As sent there: Ray asks a replica before it sends, and those that are routed meanwhile should know."""
        key = pending.metadata.internal_request_id
        if sending.counted_at not in (None, name):
            self._memory.ended(sending.counted_at, key)
        sending.counted_at = name
        self._memory.sent(sending.asked, name, time.monotonic(), key)

    def _least_sent(self, by_name: dict[str, RunningReplica], names: list[str]) -> Ranked:
        return [[by_name[name]] for name in sorted(names, key=lambda name: (self._unreported.get(name, 0), name))]

    async def _refused(self, sending: Sending, refusal: RouteRefusal) -> Ranked:
        """Ray Serve asks again at once, until the front end has given the request up: others have a turn meanwhile."""
        sending.refuse(refusal)
        await asyncio.sleep(_REFUSED_SECONDS)
        return []

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        name, sending = name_of(replica_id), sending_of(pending_request)
        if sending is None:
            return
        sending.went_to = name
        self._count(pending_request, sending, name)
        if not self._memory.knows(name):
            self._unreported[name] = self._unreported.get(name, 0) + 1

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        self._memory.ended(name_of(replica_id), internal_request_id)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._memory.gone(name_of(replica_id))
        self._unreported.pop(name_of(replica_id), None)


_REFUSED_SECONDS = 0.05
_GONE = RouteRefusal(1, "the replica that has this response is gone")


def name_of(replica_id: ReplicaID) -> str:
    return str(replica_id.unique_id)


def sending_of(pending: PendingRequest | None) -> Sending | None:
    """The first argument of the methods that are routed; None for others, such as a broadcast."""
    first = pending.args[0] if pending is not None and pending.args else None
    return first if isinstance(first, Sending) else None

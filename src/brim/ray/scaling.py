"""How many replicas there should be: by the queue, and by how much of their KV pools is held.

`wanted_replicas` is a function of numbers. `by_memory` is what Ray Serve calls; it applies the bounds and the delays of
the deployment's autoscaling config itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

_HELD = 0.7  # part of the KV pools that may be held before there are more replicas
_SPARE = 0.6  # of that, below which one replica fewer would do
_WAITING = 2.0  # answers that may wait for each replica


@dataclass(frozen=True, slots=True)
class Load:
    """What replicas have reported, on average over a while."""

    replicas: int
    waiting: float  # answers, of all replicas
    held_parts: tuple[float, ...]  # of each KV pool, 0 to 1


def wanted_replicas(load: Load, least: int, most: int) -> int:
    """Enough for the queue and for the memory, whichever asks for more; fewer only where both have room."""
    if load.replicas == 0:
        return least
    held = sum(load.held_parts)
    for_memory = held / _HELD
    # A queue beyond what is usual asks for replicas in proportion, at most for twice as many at once.
    for_queue = load.replicas * min(2.0, load.waiting / (_WAITING * load.replicas))
    wanted = ceil(max(for_memory, for_queue) - 1e-9)
    if wanted < load.replicas:
        fewer = load.replicas - 1
        room = load.waiting <= _WAITING * fewer * _SPARE and held <= _HELD * fewer * _SPARE
        wanted = fewer if room else load.replicas
    return max(least, min(most, wanted))


def by_memory(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """A policy of Ray Serve's."""
    found: Mapping[str, Mapping[Any, float]] = context.aggregated_metrics or {}
    load = Load(
        replicas=context.current_num_replicas,
        waiting=sum(found.get("waiting", {}).values()) + context.total_queued_requests,
        held_parts=tuple(found.get("held_part", {}).values()),
    )
    wanted = wanted_replicas(load, context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas)
    return wanted, dict(context.policy_state)

"""Operators think in users: how many run at once, and can the memory be read fast enough for them?

In: a solved plan for users that have so many tokens on average. Out: a `UsersAnswer`. The speed is a bound from above
and no forecast: every step reads the weights and the KV of the requests that run, once, at the bandwidth of the
datasheet; computing, communication and everything else come on top. Of a mixture only the experts of one token are
counted, since all tokens might choose the same. Drafted tokens are not counted.
"""

from __future__ import annotations

from dataclasses import replace

from brim.planning.engines import device_specs
from brim.planning.gpus.cards import BANDWIDTH_GB
from brim.planning.pricer import Pricer
from brim.planning.settings import PlanSettings
from brim.planning.solving.solve import Solution
from brim.records.model import FeedForward, ModelSpec
from brim.records.plan import PlanRequest, UsersAnswer
from brim.units import ceil_div


def answer_users(
    settings: PlanSettings, pricer: Pricer, solution: Solution, request: PlanRequest
) -> UsersAnswer | None:
    """What a plan means for the users that were asked about; None where none were."""
    if request.users is None or settings.mean_len is None:
        return None
    replicas = settings.placement.replicas
    at_once = min(request.users, replicas * (solution.mean_requests or 0)) if solution.fits else 0
    each = sum(one.costs.request_bytes(settings.mean_len) for one in solution.filled.devices)  # stage after stage
    read = _weights_read(settings, pricer) + ceil_div(at_once, replicas) * each
    bandwidth = None if settings.placement.offloads else BANDWIDTH_GB.get(settings.device.key)
    return UsersAnswer(
        users=request.users,
        at_once=at_once,
        read_bytes=read,
        most_tokens_per_second=bandwidth * 1e9 / read if bandwidth and at_once else None,
        wanted_tokens_per_second=request.tokens_per_second,
    )


def _weights_read(settings: PlanSettings, pricer: Pricer) -> int:
    """The weights of a rank that every step reads: no input embeddings, no towers, the experts of one token."""
    spec = replace(device_specs(settings.spec, 1)[0], towers=())
    whole = pricer.weights(spec, settings.ranks, settings.stored, settings.weights_dtype).rank_bytes
    return whole - whole * _unread_elements(spec) // max(1, spec.parameters)


def _unread_elements(spec: ModelSpec) -> int:
    return sum(
        _unread_of_layer(layer.feed_forward, spec.hidden) * count
        for layer, count in spec.layer_groups
        if layer.feed_forward is not None and layer.feed_forward.experts
    )


def _unread_of_layer(part: FeedForward, hidden: int) -> int:
    matrices = 3 if part.expert_gated else 2
    return (part.experts - part.top_k) * matrices * (part.expert_hidden or hidden) * part.expert_intermediate

"""What a source says in words: pools that are too small, and kills by the host."""

from __future__ import annotations

from collections.abc import Iterator

from brim.explain.causes import MemoryCause, Suspicion
from brim.explain.facts import Incident, Sign
from brim.explain.rules import PLACED, SAID, USUAL

_POOLS = (Sign.PREEMPTED, Sign.POOL_FULL, Sign.POOL_BELOW_REQUEST)


def from_pool(incident: Incident) -> Iterator[Suspicion]:
    """A pool that its requests do not fit in. Beside a refusal of the device it is not what ended the server."""
    for sign in _POOLS:
        seen = incident.first_seen(sign)
        if seen is not None:
            count = max(one.count for one in incident.seen if one.sign is sign)
            times = f", {count:,} times" if count > 1 else ""
            confidence = USUAL - 0.1 if incident.refusals and sign is Sign.PREEMPTED else SAID
            yield Suspicion(MemoryCause.POOL, confidence, (seen.evidence,), f"{sign}{times}")
    seen = incident.first_seen(Sign.NO_POOL)
    if seen is not None:
        why = "after the weights and the profile, nothing was left for a KV pool"
        weights, total = incident.value("weights_bytes"), incident.value("total_bytes")
        cause = MemoryCause.WEIGHTS if weights and total and weights > 0.8 * total else MemoryCause.POOL
        yield Suspicion(cause, SAID - 0.05, (seen.evidence,), why)


def from_host(incident: Incident) -> Iterator[Suspicion]:
    """A kill by the kernel is certain; a machine that is low may be the reason for an end without words."""
    killed = incident.first_seen(Sign.HOST_KILL)
    if killed is not None:
        confidence = SAID + 0.05 if not incident.refusals else PLACED
        yield Suspicion(MemoryCause.HOST, confidence, (killed.evidence,), "the host ended the process for its memory")
        return
    low = incident.first_seen(Sign.HOST_LOW)
    if low is not None:
        yield Suspicion(MemoryCause.HOST, PLACED, (low.evidence,), "the machine had too little memory")

"""What the figures of a refusal say by themselves: others on the device, fragments, and less free than asked for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from brim.explain.causes import MemoryCause, Suspicion
from brim.explain.facts import HolderFact, Incident, RefusedAllocation, Sign
from brim.explain.rules import PLACED, SAID, USUAL
from brim.units import GIB, MIB, format_bytes

_REMARKABLE_PART = 0.05  # of a device, in other hands
_CONTEXT_BYTES = GIB  # what a process of its own may hold outside its allocator
_FRAGMENTS_BYTES = 256 * MIB


def from_others(incident: Incident) -> Iterator[Suspicion]:
    """Memory that neither this process nor the free part explains."""
    for refusal in incident.refusals[-1:]:
        others = other_bytes(refusal)
        total = refusal.total_bytes
        if others is not None and total and others >= max(GIB // 2, int(total * _REMARKABLE_PART)):
            why = f"{format_bytes(others)} of {format_bytes(total)} were in other hands"
            yield Suspicion(MemoryCause.NEIGHBOUR, PLACED + 0.05, (refusal.evidence,), why)
    if incident.recordings:
        return  # who is who is known there
    refused = incident.refusals or incident.first_seen(Sign.TOO_LITTLE_FREE)
    tables = _others_in_tables(incident.holders)
    if refused and tables:
        held = sum(one.held_bytes for one in tables)
        why = f"{len(tables)} other processes hold {format_bytes(held)} of the device"
        yield Suspicion(MemoryCause.NEIGHBOUR, PLACED, tuple(one.evidence for one in tables[:4]), why)


def other_bytes(refusal: RefusedAllocation) -> int | None:
    """What others hold, by the message itself or by what is left of its figures."""
    if refusal.other_bytes is not None:
        return refusal.other_bytes
    total, free, own = refusal.total_bytes, refusal.free_bytes, refusal.process_bytes
    if total is None or free is None:
        return None
    if own is not None:
        return max(0, total - free - own)
    if refusal.allocated_bytes is None:
        return None
    torch_bytes = refusal.allocated_bytes + (refusal.unused_bytes or 0)
    return max(0, total - free - torch_bytes - _CONTEXT_BYTES)


def _others_in_tables(holders: tuple[HolderFact, ...]) -> list[HolderFact]:
    """All but the largest holder, which is the server; small ones are displays and tools."""
    latest = {one.pid: one for one in holders}
    ordered = sorted(latest.values(), key=lambda one: one.held_bytes, reverse=True)
    return [one for one in ordered[1:] if one.held_bytes >= GIB // 2]


def from_fragments(incident: Incident) -> Iterator[Suspicion]:
    """Enough was reserved and unused, and not in one piece."""
    for refusal in incident.refusals[-1:]:
        tried, unused, free = refusal.tried_bytes, refusal.unused_bytes, refusal.free_bytes or 0
        if tried is None or unused is None or unused < _FRAGMENTS_BYTES:
            continue
        if unused >= tried or (unused + free >= tried and unused >= tried // 2):
            why = f"{format_bytes(unused)} were reserved and unused, and {format_bytes(tried)} were asked for"
            yield Suspicion(MemoryCause.FRAGMENTATION, PLACED - 0.05, (refusal.evidence,), why)


def from_start(incident: Incident) -> Iterator[Suspicion]:
    """vLLM's own check at the start: less is free than its fraction of the device."""
    seen = incident.first_seen(Sign.TOO_LITTLE_FREE)
    total, free, fraction = (incident.last(name) for name in ("total_bytes", "free_at_start_bytes", "fraction"))
    if seen is None:
        return
    if total is None or free is None:
        yield Suspicion(MemoryCause.NEIGHBOUR, USUAL, (seen.evidence,), "less was free at the start than was asked for")
        return
    taken = total.value - free.value
    if taken >= max(GIB, total.value * _REMARKABLE_PART):
        why = f"{format_bytes(int(taken))} of {format_bytes(int(total.value))} were taken before it started"
        yield Suspicion(MemoryCause.NEIGHBOUR, SAID, (seen.evidence,), why)
    elif fraction is not None:
        why = f"nobody else is there, and {fraction.value:g} of the device is more than a process can have"
        yield Suspicion(MemoryCause.FRACTION, PLACED, (seen.evidence,), why)


def from_usage_over_time(incident: Incident) -> Iterator[Suspicion]:
    """Tables of `nvidia-smi` one after the other: used memory that only grows, while nobody else came."""
    used = [one for one in incident.figures if one.name == "used_by_device_bytes"]
    if len(used) < 4:
        return
    values = [one.value for one in used]
    rises = sum(later > earlier for earlier, later in itertools.pairwise(values))
    if rises >= 0.75 * (len(values) - 1) and values[-1] - values[0] >= max(GIB, 0.1 * values[0]):
        why = f"used memory grew from {format_bytes(int(values[0]))} to {format_bytes(int(values[-1]))}"
        yield Suspicion(MemoryCause.LEAK, USUAL + 0.05, (used[0].evidence, used[-1].evidence), why)

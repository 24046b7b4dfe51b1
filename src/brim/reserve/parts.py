"""Who may take how much of a device: arithmetic over leases, and nothing else.

A device at one moment (`DeviceNow`) is what its driver says is free, and how much of each lease its driver already
counts as used. What a lease claims beyond that is *outstanding*: it is free by the driver's figure, and is not there
for others. Held memory is so never counted twice. A budget on the CPU has no driver: all of it is "free", and every
claim is outstanding in full.

Sizers take what the holders leave, one after the other in the order of arrival. Those that have not decided yet are
thought of: a fraction is kept for each that asked for one, and the others divide the rest equally.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import floor

from brim.records.lease import Expected, Lease, LeaseState


@dataclass(frozen=True, slots=True)
class DeviceNow:
    """A device at one moment."""

    free_bytes: int  # by its driver
    taken_bytes: Mapping[str, int] = field(default_factory=dict)  # of each lease, by name: what the driver counts

    def taken(self, lease: Lease) -> int:
        return self.taken_bytes.get(lease.name, 0)

    def outstanding(self, lease: Lease) -> int:
        """Claimed, and still free by the driver's figure."""
        return max(0, lease.claim_bytes - self.taken(lease))


@dataclass(frozen=True, slots=True)
class DevicePart:
    """A sizer's part of a device."""

    promised_bytes: int  # all that the process may hold, as published
    limited: bool  # False: it is whatever the neighbours leave


def available_bytes(others: Iterable[Lease], now: DeviceNow) -> int:
    """What a newcomer may take; below 0 where more is promised than there is."""
    return now.free_bytes - sum(now.outstanding(lease) for lease in others)


def part_of(me: Lease, others: Sequence[Lease], now: DeviceNow) -> DevicePart:
    """The part of a sizer whose turn it is: everyone before it holds."""
    assert me.share is not None
    sizers = [lease for lease in others if lease.sizes]
    undecided = [lease for lease in sizers if lease.promised_bytes is None]
    if me.promised_bytes is not None:  # a size, admitted when it was asked for
        return DevicePart(me.promised_bytes, limited=True)
    room = _room_bytes(me, others, now)
    rest = room - sum(max(lease.claim_bytes, now.taken(lease)) for lease in sizers)
    if me.share.fraction is not None:
        return DevicePart(max(0, min(floor(me.share.fraction * room), rest)), limited=True)
    rest -= sum(_kept_for(lease, room, now) for lease in undecided)
    equals = sum(_fraction(lease) is None for lease in undecided)
    return DevicePart(max(0, rest // (1 + equals)), limited=bool(undecided))


def _room_bytes(me: Lease, others: Sequence[Lease], now: DeviceNow) -> int:
    """What all sizers divide: the device without what holders claim and without processes that take no part."""
    return (
        now.free_bytes
        + now.taken(me)
        + sum(now.taken(lease) for lease in others if lease.sizes)
        - sum(now.outstanding(lease) for lease in others if not lease.sizes)
    )


def _fraction(lease: Lease) -> float | None:
    return None if lease.share is None else lease.share.fraction


def _kept_for(undecided: Lease, room_bytes: int, now: DeviceNow) -> int:
    """What a sizer that comes later will take of the rest, beyond what it has."""
    fraction = _fraction(undecided)
    return 0 if fraction is None else max(0, floor(fraction * room_bytes) - now.taken(undecided))


def late_neighbours(me: Lease, others: Sequence[Lease], expected: Expected) -> tuple[str, ...]:
    """Whom a sizer still waits for, in words: who is starting, which sizer is before it, who has not come."""
    starting = [
        lease
        for lease in others
        if lease.state is LeaseState.STARTING and (not lease.sizes or lease.generation < me.generation)
    ]
    there = [lease for lease in others if lease.state is not LeaseState.RELEASING]
    roles = Counter(expected.roles) - Counter(lease.role for lease in there)
    absent = [role if count == 1 else f"{count} × {role}" for role, count in roles.items()]
    more = expected.count - len(there)
    absent += [f"{more} more"] if more > 0 else []
    return (*(lease.title for lease in starting), *(f"{who} (not started)" for who in absent))

"""Leases: the processes on one device tell each other what they hold and what they will take.

For authors of engines: `join` a device before a fit, and give the `Sizer` to it as its neighbours (docs/authors.md).
A process that takes a fixed amount holds it by `brim.hold`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brim.exports import lazily

if TYPE_CHECKING:
    from brim.records.lease import Expected, Lease, LeaseState, SizeWish
    from brim.reserve.devices import Budget, Gpu, LeasedDevice, find_leased
    from brim.reserve.hold import OwnLease, take
    from brim.reserve.sizing import Sizer
    from brim.reserve.sizing import sizing as join

__all__ = [
    "Budget",
    "Expected",
    "Gpu",
    "Lease",
    "LeaseState",
    "LeasedDevice",
    "OwnLease",
    "SizeWish",
    "Sizer",
    "find_leased",
    "join",
    "take",
]

__getattr__ = lazily(
    __name__,
    {
        "Budget": "brim.reserve.devices",
        "Expected": "brim.records.lease",
        "Gpu": "brim.reserve.devices",
        "Lease": "brim.records.lease",
        "LeaseState": "brim.records.lease",
        "LeasedDevice": "brim.reserve.devices",
        "OwnLease": "brim.reserve.hold",
        "SizeWish": "brim.records.lease",
        "Sizer": "brim.reserve.sizing",
        "find_leased": "brim.reserve.devices",
        "join": "brim.reserve.sizing:sizing",
        "take": "brim.reserve.hold",
    },
)

"""Leases as tests want them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from brim.records.lease import Lease, LeaseState, ProcessId, SizeWish
from brim.reserve.devices import Budget
from brim.reserve.hold import blank
from brim.units import MIB

LAB = Budget("cpu:lab", 1000 * MIB)
SOMEBODY = ProcessId(pid=77, started_ticks=123, boot_id="this-boot", pid_space=4026531836)


def holder(promised: int, held: int | None = None, *, generation: int = 1, **changes: Any) -> Lease:
    state = LeaseState.STARTING if held is None else LeaseState.HELD
    lease = Lease(
        name=f"{generation}-77-ab",
        device=LAB.key,
        device_bytes=LAB.total_bytes,
        holder=SOMEBODY,
        role="embedder",
        generation=generation,
        state=state,
        promised_bytes=promised,
        held_bytes=held,
        measured=held is not None,
        created_seconds=1.0,
        heartbeat_seconds=2.0,
    )
    return replace(lease, **changes)


def sizer(share: SizeWish | None = None, *, generation: int = 1, **changes: Any) -> Lease:
    waiting = {"promised_bytes": None, "share": share or SizeWish(), "role": "llm", **changes}
    return holder(0, generation=generation, **waiting)


def mine(promised: int, role: str = "tower") -> Lease:
    """A lease of this very process, not added to a ledger yet."""
    return replace(blank(LAB, role), promised_bytes=promised)

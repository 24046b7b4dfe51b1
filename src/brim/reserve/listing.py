"""The leases of a device beside what their processes really use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brim.errors import DeviceError, UnknownDevice
from brim.records.lease import Lease, LedgerProblem, UnknownLease
from brim.reserve.devices import is_left_over, known_device
from brim.reserve.ledger import Ledger, forget_device
from brim.reserve.processes import boot_clock


@dataclass(frozen=True, slots=True)
class ListedLease:
    """A lease as `brim leases` shows it."""

    lease: Lease
    used_bytes: int | None  # None: not known
    age_seconds: float

    def to_json(self) -> dict[str, Any]:
        """The lease with stable keys."""
        return {
            "pid": self.lease.holder.pid,
            "role": self.lease.role,
            "device": self.lease.device,
            "promised_bytes": self.lease.promised_bytes,
            "held_bytes": self.lease.held_bytes,
            "used_bytes": self.used_bytes,
            "state": str(self.lease.state),
            "age_seconds": round(self.age_seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class Listing:
    """Leases in the order of arrival, those of running processes that cannot be read, and files that are no leases."""

    leases: tuple[ListedLease, ...]
    unknown: tuple[UnknownLease, ...] = ()
    problems: tuple[LedgerProblem, ...] = ()


def listed_leases(folder: Path, device: str) -> Listing:
    """The leases of a device; empty where nobody ever took one."""
    ledger = Ledger(folder, device)
    if not ledger.has_holders:
        return Listing(())
    with ledger.opened() as page:
        leases, unknown, problems = page.leases, tuple(page.unknown), tuple(page.problems)
        earlier = _isolated_earlier(ledger, problems)
    if is_left_over(device):
        forget_device(folder, device)
    try:
        used = known_device(device, leases).used_bytes(leases)
    except (DeviceError, UnknownDevice):  # the driver, or the GPU, is not there any more
        used = {}
    now = boot_clock()
    listed = tuple(ListedLease(lease, used.get(lease.name), now - lease.created_seconds) for lease in leases)
    return Listing(listed, unknown, (*earlier, *problems))


def _isolated_earlier(ledger: Ledger, found_now: tuple[LedgerProblem, ...]) -> tuple[LedgerProblem, ...]:
    """What others have moved away: they may have had nobody to tell."""
    if not ledger.isolated.is_dir():
        return ()
    left = set(ledger.isolated.iterdir()) - {problem.moved_to for problem in found_now}
    reason = "was no lease when it was moved here; delete it once you have looked at it"
    return tuple(LedgerProblem(path, reason) for path in sorted(left))

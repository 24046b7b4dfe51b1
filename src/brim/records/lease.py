"""A lease: what one process has promised to take of a device, and what it holds (`Lease`).

Times are seconds of the boot clock, which no change of the date moves. A lease never outlives the boot it was made in.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class LeaseState(StrEnum):
    """Where a lease is in its life. One that was given up has no record."""

    STARTING = "starting"  # promised; what it will hold is not known yet
    HELD = "held"  # what it holds is published, and stays
    RELEASING = "releasing"  # still held, and about to be freed


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process, distinguished from a later one with the same number and from one in another container."""

    pid: int
    started_ticks: int  # of the kernel's clock, since boot
    boot_id: str
    pid_space: int  # inode of its pid namespace


@dataclass(frozen=True, slots=True)
class SizeWish:
    """What a sizer wants of a device: a fraction, a size, or (neither) as much as the others leave."""

    fraction: float | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """One process on one device. `share` is that of a sizer, which takes what the others leave; None: a holder."""

    name: str  # unique on the device; that of its file
    device: str  # UUID of a GPU or of a part of one; cpu:NAME
    device_bytes: int  # its size, as the holder sees it
    holder: ProcessId
    role: str
    generation: int  # the number of leases made on this device before it, plus one: the order of arrival
    state: LeaseState
    promised_bytes: int | None  # the most it will hold; None: a sizer whose part is not decided
    held_bytes: int | None  # None: not published yet, which is not zero
    measured: bool  # held bytes are in the holder's allocator: the driver counts them. False: they are only set aside
    created_seconds: float
    heartbeat_seconds: float  # when the holder last wrote this record
    share: SizeWish | None = None
    keeper: ProcessId | None = None  # for which it stays when the holder dies: that will start another in its place

    @property
    def sizes(self) -> bool:
        return self.share is not None

    @property
    def claim_bytes(self) -> int:
        """What others must leave to it: the promise until it holds, then what it holds."""
        held = self.held_bytes or 0
        return max(self.promised_bytes or 0, held) if self.state is LeaseState.STARTING else held

    @property
    def title(self) -> str:
        return f"{self.role} (pid {self.holder.pid})"


@dataclass(frozen=True, slots=True)
class LedgerProblem:
    """A file among the leases that is none: why, and where it is now."""

    path: Path
    reason: str
    moved_to: Path | None = None  # None: it was left where it is

    def __str__(self) -> str:
        moved = f"; moved to {self.moved_to}" if self.moved_to else "; left where it is"
        return f"{self.path}: {self.reason}; not counted{moved}"


@dataclass(frozen=True, slots=True)
class UnknownLease:
    """A lease whose process runs and whose record cannot be read: it may claim all of the device."""

    name: str
    mark: Path  # the file that its process keeps locked

    @property
    def pid(self) -> str:
        """Its process, as the lease's name has it."""
        return next(iter(self.name.split("-")[1:2]), "unknown")

    def __str__(self) -> str:
        return (
            f"{self.mark}: its process (pid {self.pid}) runs and its lease cannot be read, so that what it holds is "
            "not known; end that process, or delete this file if it holds nothing there"
        )


@dataclass(frozen=True, slots=True)
class Expected:
    """The neighbours that a sizer waits for although they may not have started: by role, or so many of any."""

    count: int = 0
    roles: tuple[str, ...] = ()  # a role twice: two of them

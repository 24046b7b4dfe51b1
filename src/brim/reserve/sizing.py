"""A sizer: a process that takes what its neighbours leave (an LLM server), after all of them hold what they promised.

In: a device, what the sizer wants of it, whom it expects. Out: a `Sizer` with its part of the device, published before
anything is allocated. The wait has a limit, and its error names who is late. Several sizers on one device decide one
after the other, in the order of arrival, and each leaves the others their parts. Between deciding and holding, the
part is the sizer's promise: nobody else is given any of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from brim.errors import DoesNotFit, InvalidRequest, NeighboursLate
from brim.folders import leases_folder
from brim.records.lease import Expected, Lease, Share
from brim.records.memory import MemoryReading
from brim.records.progress import Stage, Told, silent
from brim.reserve.devices import LeasedDevice
from brim.reserve.hold import OwnLease, blank, check_known, check_room, check_size, described
from brim.reserve.ledger import Ledger, Page
from brim.reserve.parts import Part, late_neighbours, part_of
from brim.reserve.processes import is_suspended
from brim.units import format_bytes

WAIT_SECONDS = 120.0
_PAUSE_SECONDS = 0.05
_ROUNDING = 1e-9  # thirds may add up to a little more than one


class Sizer:
    """This process' part of a device."""

    def __init__(self, device: LeasedDevice, own: OwnLease, part: Part) -> None:
        self.device = device
        self.part = part
        self._own = own
        self._free_at_first_bytes = device.now((own.lease,)).free_bytes

    @property
    def lease(self) -> Lease:
        return self._own.lease

    def neighbours(self) -> tuple[Lease, ...]:
        """Everybody else on the device now."""
        with self._own.ledger.opened() as page:
            return page.others(self.lease)

    def note(self) -> str:
        """The neighbours in words."""
        with self._own.ledger.opened() as page:
            unknown = (f"{one.name} (pid {one.pid}) cannot be read" for one in page.unknown_others(self.lease))
            return ", ".join((described(page.others(self.lease)), *unknown)).removeprefix(", ")

    def seen(self, reading: MemoryReading) -> MemoryReading:
        """A reading in which the memory that neighbours may still take counts as theirs."""
        if not self.device.has_driver:
            elsewhere = self.device.total_bytes - self.part.promised_bytes  # the probe's own limit is this part
            return replace(reading, total_bytes=self.device.total_bytes, other_bytes=reading.other_bytes + elsewhere)
        kept = self._kept_bytes(reading)
        return replace(reading, free_bytes=reading.free_bytes - kept, other_bytes=reading.other_bytes + kept)

    def _kept_bytes(self, reading: MemoryReading) -> int:
        """What is free by the driver's figure and promised to others, or beyond this process' own part."""
        with self._own.ledger.opened() as page:
            check_known(self.lease.role, page, self.lease)
            others = page.others(self.lease)
        if not others and not self.part.limited:
            return 0
        now = self.device.now(others)
        promised = sum(now.outstanding(lease) for lease in others)
        if not self.part.limited:
            return promised
        return max(promised, reading.free_bytes + self._own_bytes(reading) - self.part.promised_bytes)

    def _own_bytes(self, reading: MemoryReading) -> int:
        """What this process holds. Where the driver does not say, its context is what else has gone since the start."""
        if not self.device.has_driver:
            return reading.reserved_bytes
        if reading.process_bytes is not None:
            return reading.process_bytes
        gone = self._free_at_first_bytes - reading.free_bytes - reading.reserved_bytes
        return reading.reserved_bytes + max(0, gone)

    def hold(self, reading: MemoryReading) -> None:
        """Publish what this process holds at its peak, by a reading that was taken after its worst steps."""
        given_back = reading.peak_reserved_bytes - reading.reserved_bytes
        self._own.hold(self._own_bytes(reading) + max(0, given_back))


@contextmanager
def sizing(
    device: LeasedDevice,
    *,
    role: str = "llm",
    share: Share | None = None,
    expected: Expected | None = None,
    wait_seconds: float = WAIT_SECONDS,
    told: Told = silent,
    folder: Path | None = None,
) -> Iterator[Sizer]:
    """Wait for the neighbours, and have a part of the device until the end."""
    own = _registered(device, role, share or Share(), folder)
    try:
        for problem in own.problems:
            told(Stage("neighbours", str(problem)))
        part = _decided(device, own, expected or Expected(), wait_seconds, told)
        yield Sizer(device, own, part)
    finally:
        own.release()


def _registered(device: LeasedDevice, role: str, share: Share, folder: Path | None) -> OwnLease:
    """On the ledger, so that neighbours know of it. A size that was asked for is promised at once, if it fits."""
    ledger = Ledger(leases_folder() if folder is None else folder, device.key)
    lease = replace(blank(device, role, share), promised_bytes=share.bytes)
    with ledger.opened() as page:
        check_size(device, page)
        _check_fractions(lease, page)
        check_room(lease, device, page)
        return OwnLease(device, ledger, page.add(lease), tuple(page.problems))


def _check_fractions(lease: Lease, page: Page) -> None:
    sharing = [one for one in (*page.leases, lease) if one.share is not None and one.share.fraction is not None]
    together = sum(one.share.fraction or 0.0 for one in sharing if one.share is not None)
    if together > 1 + _ROUNDING:
        there = ", ".join(f"{one.title} {one.share.fraction:g}" for one in sharing if one.share is not None)
        raise InvalidRequest(f"share: together these are {together:g} of {lease.device} ({there}); give at most 1")


def _decided(device: LeasedDevice, own: OwnLease, expected: Expected, wait_seconds: float, told: Told) -> Part:
    """The barrier. The last look, the decision and its publication are one step: nobody comes in between."""
    deadline = time.monotonic() + wait_seconds
    while True:
        with own.ledger.opened() as page:
            others = page.others(own.lease)
            late = late_neighbours(own.lease, others, expected)
            if not late:
                return _published(device, own, page)
        if time.monotonic() >= deadline:
            raise _timed_out(device, late, others, wait_seconds)
        told(Stage("neighbours", f"waiting for {', '.join(late)}"))
        time.sleep(min(_PAUSE_SECONDS, max(0.0, deadline - time.monotonic())))


def _published(device: LeasedDevice, own: OwnLease, page: Page) -> Part:
    check_known(own.lease.role, page, own.lease)
    others = page.others(own.lease)
    part = part_of(own.lease, others, device.now(page.leases))
    if part.promised_bytes < 1:
        raise DoesNotFit(
            f"nothing of {device.key} ({format_bytes(device.total_bytes)}) is left for {own.lease.role}: "
            f"{described(others) or 'processes without a lease have taken it'}"
        )
    own.change(replace(own.lease, promised_bytes=part.promised_bytes), page)
    return part


def _timed_out(
    device: LeasedDevice, late: tuple[str, ...], others: tuple[Lease, ...], seconds: float
) -> NeighboursLate:
    stopped = [lease.title for lease in others if lease.title in late and is_suspended(lease.holder)]
    return NeighboursLate(
        f"wait-neighbours: after {seconds:g} s these are not ready on {device.key}: {', '.join(late)}"
        + (f"; suspended: {', '.join(stopped)}" if stopped else "")
        + "; start or end them, or wait longer"
    )

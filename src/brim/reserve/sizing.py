"""A sizer: a process that takes what its neighbours leave (an LLM server), after all of them hold what they promised.

In: a device, what the sizer wants of it, whom it expects. Out: a `Sizer` with its part of the device, published before
anything is allocated. The wait has a limit, and its error names who is late. Several sizers on one device decide one
after the other, in the order of arrival, and each leaves the others their parts. Between deciding and holding, the
part is the sizer's promise: nobody else is given any of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from brim.errors import DoesNotFit, InvalidRequest, NeighboursLate
from brim.records.lease import Expected, Lease, SizeWish
from brim.records.memory import MemoryReading
from brim.records.progress import Stage, Told, silent
from brim.reserve.devices import LeasedDevice
from brim.reserve.hold import OwnLease, blank, check_known, check_room, described, enter
from brim.reserve.page import Page
from brim.reserve.parts import DevicePart, late_neighbours, part_of
from brim.reserve.processes import is_suspended
from brim.units import GIB, format_bytes

WAIT_SECONDS = 120.0
_PAUSE_SECONDS = 0.05
CONTEXT_BYTES = GIB  # of a process on a GPU, where the driver does not say what it uses
_ROUNDING = 1e-9  # thirds may add up to a little more than one


@dataclass(frozen=True, slots=True)
class _Taken:
    """A device when a part of it was decided, and what this process had of it then."""

    free_bytes: int
    process_bytes: int
    reserved_bytes: int  # by torch's allocator


class Sizer:
    """This process on a device: its part of that, once decided."""

    def __init__(self, device: LeasedDevice, own: OwnLease, barrier: _Barrier) -> None:
        self.device = device
        self._own = own
        self._barrier = barrier
        self._part: DevicePart | None = None
        self._at_first = _Taken(0, 0, 0)

    @property
    def is_decided(self) -> bool:
        return self._part is not None

    @property
    def part(self) -> DevicePart:
        assert self._part is not None, "a part is decided before it is used"
        return self._part

    def decide(self, reading: MemoryReading | None = None) -> None:
        """Wait for everybody, and promise this process' part; `reading`: of what it has loaded before that."""
        reserved = 0 if reading is None else reading.reserved_bytes
        taken = 0 if reading is None else reading.process_bytes or reserved + CONTEXT_BYTES
        self._part = self._barrier.decided(taken, reserved)
        self._at_first = _Taken(self.device.now((self._own.lease,)).free_bytes, taken, reserved)

    @property
    def lease(self) -> Lease:
        return self._own.lease

    @property
    def keeps_promises(self) -> bool:
        """A budget on the CPU is this process' part already, and refuses what is beyond it."""
        return self.device.has_driver

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
        first = self._at_first
        grown = reading.reserved_bytes - first.reserved_bytes
        gone = first.free_bytes - reading.free_bytes - grown
        return first.process_bytes + grown + max(0, gone)

    def hold(self, reading: MemoryReading) -> None:
        """Publish what this process holds at its peak, by a reading that was taken after its worst steps."""
        given_back = reading.peak_reserved_bytes - reading.reserved_bytes
        self._own.hold(self._own_bytes(reading) + max(0, given_back))


@contextmanager
def sizing(
    device: LeasedDevice,
    *,
    role: str = "llm",
    share: SizeWish | None = None,
    expected: Expected | None = None,
    wait_seconds: float = WAIT_SECONDS,
    told: Told = silent,
    folder: Path | None = None,
    started: tuple[str, ...] = (),
) -> Iterator[Sizer]:
    """Wait for the neighbours, and have a part of the device until the end.

    `started` are roles of neighbours that this process has started itself. Then only the others are waited for here: it
    may load its weights while those start, and `Sizer.decide` waits for them and decides.
    """
    own = _registered(device, role, share or SizeWish(), folder)
    try:
        for problem in own.problems:
            told(Stage("neighbours", str(problem)))
        barrier = _Barrier(device, own, expected or Expected(), started, wait_seconds, told)
        sizer = Sizer(device, own, barrier)
        if started:
            barrier.wait_for_others()
        else:
            sizer.decide()
        yield sizer
    finally:
        own.release()


def _registered(device: LeasedDevice, role: str, share: SizeWish, folder: Path | None) -> OwnLease:
    """On the ledger, so that neighbours know of it. A size that was asked for is promised at once, if it fits."""
    lease = replace(blank(device, role, share), promised_bytes=share.bytes)

    def admit(page: Page) -> None:
        _check_fractions(lease, page)
        check_room(lease, device, page)

    return enter(device, lease, admit, folder)


def _check_fractions(lease: Lease, page: Page) -> None:
    sharing = [one for one in (*page.leases, lease) if one.share is not None and one.share.fraction is not None]
    together = sum(one.share.fraction or 0.0 for one in sharing if one.share is not None)
    if together > 1 + _ROUNDING:
        there = ", ".join(f"{one.title} {one.share.fraction:g}" for one in sharing if one.share is not None)
        raise InvalidRequest(f"share: together these are {together:g} of {lease.device} ({there}); give at most 1")


class _Late(Exception):
    """Neighbours that are not ready yet, and everybody who is there."""

    def __init__(self, who: tuple[str, ...], others: tuple[Lease, ...]) -> None:
        super().__init__(who)
        self.who = who
        self.others = others


@dataclass(frozen=True, slots=True)
class _Barrier:
    """Where a sizer waits until its neighbours hold what they promised."""

    device: LeasedDevice
    own: OwnLease
    expected: Expected  # those besides
    started: tuple[str, ...]  # by this process itself
    wait_seconds: float
    told: Told

    def wait_for_others(self) -> None:
        def look() -> None:
            with self.own.ledger.opened() as page:
                others = page.others(self.own.lease)
            self._check([one for one in others if one.role not in self.started], self.expected)

        self._until(look)

    def decided(self, taken_bytes: int, reserved_bytes: int) -> DevicePart:
        """The last look, the decision and its publication are one step: nobody comes in between."""
        parts: list[DevicePart] = []
        expected = replace(self.expected, roles=(*self.expected.roles, *self.started))

        def decide(page: Page) -> Lease:
            self._check(page.others(self.own.lease), expected)
            parts.append(_part(self.device, self.own.lease, page, taken_bytes, reserved_bytes))
            return replace(self.own.lease, promised_bytes=parts[-1].promised_bytes)

        self._until(lambda: self.own.change(decide))
        return parts[-1]

    def _check(self, others: Sequence[Lease], expected: Expected) -> None:
        late = late_neighbours(self.own.lease, others, expected)
        if late:
            raise _Late(late, tuple(others))

    def _until(self, look: Callable[[], None]) -> None:
        deadline = time.monotonic() + self.wait_seconds
        while True:
            try:
                return look()
            except _Late as late:
                if time.monotonic() >= deadline:
                    raise _timed_out(self.device, late.who, late.others, self.wait_seconds) from None
                self.told(Stage("neighbours", f"waiting for {', '.join(late.who)}"))
            time.sleep(min(_PAUSE_SECONDS, max(0.0, deadline - time.monotonic())))


def _part(device: LeasedDevice, lease: Lease, page: Page, taken_bytes: int, reserved_bytes: int) -> DevicePart:
    """What a sizer gets that has taken so much of the device already."""
    check_known(lease.role, page, lease)
    others = page.others(lease)
    mine = replace(lease, held_bytes=taken_bytes, measured=True) if taken_bytes else lease
    part = part_of(lease, others, device.now((*others, mine)))
    if part.promised_bytes < max(1, reserved_bytes):
        left = "nothing" if part.promised_bytes < 1 else f"no more than {format_bytes(part.promised_bytes)}"
        raise DoesNotFit(
            f"{left} of {device.key} ({format_bytes(device.total_bytes)}) is left for {lease.role}"
            f"{f', which has loaded {format_bytes(reserved_bytes)}' if reserved_bytes else ''}: "
            f"{described(others) or 'processes without a lease have taken it'}"
        )
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

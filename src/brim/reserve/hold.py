"""Leases of this process: taken, published, given up.

    with brim.hold(gpu=0, bytes="4GiB", role="embedder"):
        ...

What does not fit raises `DoesNotFit`, and nothing is taken. A lease belongs to the process that took it: a forked child
cannot change it or give it up. If the process dies, the next that looks removes the lease.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from brim.errors import DoesNotFit, InvalidRequest
from brim.folders import leases_folder
from brim.records.lease import Lease, LeaseState, LedgerProblem, ProcessId, SizeWish
from brim.reserve.codec import LONGEST_ROLE
from brim.reserve.devices import LeasedDevice, find_leased
from brim.reserve.ledger import Ledger
from brim.reserve.locks import LivenessLock
from brim.reserve.page import Page
from brim.reserve.parts import available_bytes
from brim.reserve.processes import boot_clock, this_process
from brim.reserve.upkeep import kept_up
from brim.suggest import shown
from brim.units import format_bytes, parse_bytes


class OwnLease:
    """A lease of this process."""

    def __init__(
        self,
        device: LeasedDevice,
        ledger: Ledger,
        added: tuple[Lease, LivenessLock],
        problems: tuple[LedgerProblem, ...] = (),
    ) -> None:
        self.device = device
        self.ledger = ledger
        self.problems = problems  # files that were no leases, found when this one was taken
        self._lease, self._mark = added
        self._given_up = threading.Event()
        self._changing = threading.RLock()  # between the upkeep and everybody else in this process
        kept_up(self.renew, self._given_up)

    @property
    def lease(self) -> Lease:
        """As it was last published."""
        return self._lease

    def hold(self, held_bytes: int) -> None:
        """Publish what was measured: the high-water mark, which the allocator keeps. Neighbours may take the rest.

        `DoesNotFit` where it is more than was promised, and they leave less; the lease is then as before.
        """
        _check_count(held_bytes, "held_bytes", least=0)
        held = replace(self._lease, state=LeaseState.HELD, held_bytes=held_bytes, measured=True)
        in_driver_bytes = held_bytes if self.device.has_driver else 0
        self._publish_checked(held, in_driver_bytes)

    def promise(self, promised_bytes: int) -> None:
        """Promise more, or less, before it is held. `DoesNotFit` where the neighbours leave less."""
        _check_count(promised_bytes, "promised_bytes")
        self._publish_checked(replace(self._lease, promised_bytes=promised_bytes))

    def _publish_checked(self, lease: Lease, in_driver_bytes: int = 0) -> None:
        """Publish in one step with the look at the neighbours, where they must leave more than before."""

        def checked(page: Page) -> Lease:
            if lease.claim_bytes > self._lease.claim_bytes:
                check_room(lease, self.device, page, in_driver_bytes)
            return lease

        self.change(checked)

    def releasing(self) -> None:
        """Publish that what is held will soon be freed. It counts until `release`."""
        held = self._lease.claim_bytes if self._lease.held_bytes is None else self._lease.held_bytes
        self.change(lambda _: replace(self._lease, state=LeaseState.RELEASING, held_bytes=held))

    def change(self, decided: Callable[[Page], Lease]) -> None:
        """Publish the lease again, as it is decided from the ledger; nobody else changes that meanwhile."""
        if self._lease.holder.pid != os.getpid() or self._given_up.is_set():
            why = "was given up" if self._given_up.is_set() else f"belongs to process {self._lease.holder.pid}"
            raise InvalidRequest(f"the lease of {self._lease.role} on {self._lease.device} {why}; take one of your own")
        with self._changing:
            self._lease = self.ledger.change(lambda page: page.publish(decided(page), self._mark))

    def renew(self) -> None:
        """Make others find the lease again where a cleaner has deleted its files, and keep it from deleting them."""
        with self._changing:
            if self._given_up.is_set():
                return
            if not (self._mark.touch() and self.ledger.touch(self._lease.name)):
                self._lease = self.ledger.change(self._made_again)

    def _made_again(self, page: Page) -> Lease:
        if not self._mark.touch():
            self._mark.make_again()
        return page.publish(self._lease, self._mark)

    def keep_over_exec(self) -> None:
        """The lease stays when this process becomes another program: the pid and its start stay too."""
        self._mark.keep_over_exec()

    def release(self) -> None:
        """Give the lease up, after its memory was freed. Once is enough; a forked child gives up nothing."""
        if self._lease.holder.pid != os.getpid() or self._given_up.is_set():
            return
        with self._changing:
            self._mark.write(b"")  # a process that finds it deleted must not write the lease again
            self.ledger.change(lambda page: page.remove(self._lease))
            self._mark.end()
            self._given_up.set()


@contextmanager
def hold(
    *,
    gpu: int | str,
    bytes: int | str,  # noqa: A002 - as it is read: brim.hold(gpu=0, bytes="4GiB")
    role: str = "holder",
    starting: bool = False,
    folder: Path | None = None,
) -> Iterator[OwnLease]:
    """Hold memory of a device against neighbours that size themselves; everything the process takes there counts.

    `gpu` is an index, a UUID or a budget on the CPU ("cpu:lab:4GiB"). With `starting`, sizers wait until `hold` of the
    lease has published what is really held, `bytes` at most; otherwise `bytes` are set aside from the beginning.
    """
    size = parse_bytes(bytes, "bytes") if isinstance(bytes, str) else bytes
    lease = take(find_leased(str(gpu)), size, role, starting=starting, folder=folder)
    try:
        yield lease
    finally:
        lease.release()


def take(
    device: LeasedDevice,
    promised_bytes: int,
    role: str,
    *,
    starting: bool = False,
    folder: Path | None = None,
    keeper: ProcessId | None = None,
) -> OwnLease:
    """A holder's lease, if it fits beside the others.

    `keeper` is a process that starts another holder of this role when this one dies: until then the lease stays, and
    what the last one left is taken over. It was promised, so that as much as that is not asked for again.
    """
    _check_count(promised_bytes, "bytes")
    lease = replace(blank(device, role), promised_bytes=promised_bytes, keeper=keeper)
    if not starting:
        lease = replace(lease, state=LeaseState.HELD, held_bytes=promised_bytes)

    def admit(page: Page) -> None:
        left = page.kept_for(lease)
        if left is None or lease.claim_bytes > left.claim_bytes:
            check_room(lease, device, page, left=left)
        if left is not None:
            page.remove(left)

    return enter(device, lease, admit, folder)


def enter(device: LeasedDevice, lease: Lease, admit: Callable[[Page], None], folder: Path | None) -> OwnLease:
    """Put a lease on the ledger, unless `admit` raises; nobody comes in between."""
    ledger = Ledger(leases_folder() if folder is None else folder, device.key)

    def added(page: Page) -> tuple[tuple[Lease, LivenessLock], tuple[LedgerProblem, ...]]:
        check_size(device, page)
        admit(page)
        return page.add(lease), tuple(page.problems)

    return OwnLease(device, ledger, *ledger.change(added))


def _check_count(size: object, what: str, least: int = 1) -> None:
    """Whole bytes: a record with anything else in it could not be read."""
    if not isinstance(size, int) or isinstance(size, bool) or size < least:
        raise InvalidRequest(f"{what} is {size!r:.40}; write whole bytes, at least {least}")


def blank(device: LeasedDevice, role: str, share: SizeWish | None = None) -> Lease:
    """A lease of this process that nobody has seen yet: name and generation are the ledger's to give."""
    words = " ".join(role.split())
    if not is_role(words):
        raise InvalidRequest(f"role '{shown(role)}' is not 1 to {LONGEST_ROLE} printable characters")
    return Lease(
        name="",
        device=device.key,
        device_bytes=device.total_bytes,
        holder=this_process(),
        role=words,
        generation=0,
        state=LeaseState.STARTING,
        promised_bytes=None,
        held_bytes=None,
        measured=False,
        created_seconds=boot_clock(),
        heartbeat_seconds=0.0,
        share=share,
    )


def is_role(text: str) -> bool:
    return text.isprintable() and 0 < len(text) <= LONGEST_ROLE


def check_size(device: LeasedDevice, page: Page) -> None:
    """A budget on the CPU has the size that those who are there have given it."""
    for lease in page.leases:
        if lease.device_bytes != device.total_bytes and not device.has_driver:
            raise InvalidRequest(
                f"gpu '{device.key}' is {format_bytes(lease.device_bytes)} to {lease.title}, which is on it, and "
                f"{format_bytes(device.total_bytes)} here; give every process the same size"
            )


def check_room(
    lease: Lease, device: LeasedDevice, page: Page, in_driver_bytes: int = 0, left: Lease | None = None
) -> None:
    """`DoesNotFit`, with who has what, where a lease claims more than what is left.

    Of its claim, `in_driver_bytes` are taken: the driver's free memory is without them already. `left` is a lease that
    this one takes the place of.
    """
    check_known(lease.role, page, lease)
    others = page.others(lease, left)
    room = min(available_bytes(others, device.now(others)) + in_driver_bytes, device.total_bytes)
    wanted = lease.claim_bytes
    if wanted > room:
        there = described(others) or "no leases there"
        raise DoesNotFit(
            f"{lease.role} wants {format_bytes(wanted)} of {device.key}, and {format_bytes(max(0, room))} of "
            f"{format_bytes(device.total_bytes)} are left: the shortfall is {format_bytes(wanted - room)} ({there})",
            missing_bytes=wanted - room,
        )


def check_known(who: str, page: Page, own: Lease | None = None) -> None:
    """`DoesNotFit` where a neighbour runs whose lease cannot be read: it may have been promised everything."""
    unknown = page.unknown_others(own)
    if unknown:
        raise DoesNotFit(
            f"{who} can be promised nothing beside a lease that is unknown: {'; '.join(map(str, unknown))}"
        )


def described(leases: tuple[Lease, ...]) -> str:
    """Leases in words, for notes and errors."""
    return ", ".join(_described(lease) for lease in leases)


def _described(lease: Lease) -> str:
    if lease.state is LeaseState.STARTING:
        promised = "" if lease.promised_bytes is None else f" {format_bytes(lease.promised_bytes)}"
        return f"{lease.title} promised{promised}" if promised else f"{lease.title} is about to size itself"
    return f"{lease.title} holds {format_bytes(lease.held_bytes or 0)}"

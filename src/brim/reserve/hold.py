"""Leases of this process: taken, published, given up.

    with brim.hold(gpu=0, bytes="4GiB", role="embedder"):
        ...

What does not fit raises `DoesNotFit`, and nothing is taken. A lease belongs to the process that took it: a forked child
cannot change it or give it up. If the process dies, the next that looks removes the lease.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from brim.errors import DoesNotFit, InvalidRequest
from brim.folders import leases_folder
from brim.records.lease import Lease, LeaseState, LedgerProblem, Share
from brim.reserve.codec import LONGEST_ROLE
from brim.reserve.devices import LeasedDevice, find_leased
from brim.reserve.ledger import Ledger, Page
from brim.reserve.locks import LifeMark
from brim.reserve.parts import available_bytes
from brim.reserve.processes import boot_clock, this_process
from brim.suggest import shown
from brim.units import format_bytes, parse_bytes


class OwnLease:
    """A lease of this process."""

    def __init__(
        self,
        device: LeasedDevice,
        ledger: Ledger,
        added: tuple[Lease, LifeMark],
        problems: tuple[LedgerProblem, ...] = (),
    ) -> None:
        self.device = device
        self.ledger = ledger
        self.problems = problems  # files that were no leases, found when this one was taken
        self._lease, self._mark = added
        self._given_up = False

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
        self._check_own()
        with self.ledger.opened() as page:
            if lease.claim_bytes > self._lease.claim_bytes:
                check_room(lease, self.device, page, in_driver_bytes)
            self.change(lease, page)

    def releasing(self) -> None:
        """Publish that what is held will soon be freed. It counts until `release`."""
        held = self._lease.claim_bytes if self._lease.held_bytes is None else self._lease.held_bytes
        self.change(replace(self._lease, state=LeaseState.RELEASING, held_bytes=held))

    def change(self, lease: Lease, page: Page | None = None) -> None:
        """Publish the lease anew; on a page of the ledger, where one is open."""
        self._check_own()
        if page is not None:
            self._lease = page.publish(lease)
            return
        with self.ledger.opened() as opened:
            self._lease = opened.publish(lease)

    def _check_own(self) -> None:
        if self._lease.holder.pid != os.getpid() or self._given_up:
            why = "was given up" if self._given_up else f"belongs to process {self._lease.holder.pid}"
            raise InvalidRequest(f"the lease of {self._lease.role} on {self._lease.device} {why}; take one of your own")

    def keep_over_exec(self) -> None:
        """The lease stays when this process becomes another program: the pid and its start stay too."""
        self._mark.keep_over_exec()

    def release(self) -> None:
        """Give the lease up, after its memory was freed. Once is enough; a forked child gives up nothing."""
        if self._lease.holder.pid != os.getpid() or self._given_up:
            return
        with self.ledger.opened() as page:
            page.remove(self._lease)
            self._mark.end()
        self._given_up = True


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
    device: LeasedDevice, promised_bytes: int, role: str, *, starting: bool = False, folder: Path | None = None
) -> OwnLease:
    """A holder's lease, if it fits beside the others."""
    _check_count(promised_bytes, "bytes")
    lease = replace(blank(device, role), promised_bytes=promised_bytes)
    if not starting:
        lease = replace(lease, state=LeaseState.HELD, held_bytes=promised_bytes)
    ledger = Ledger(leases_folder() if folder is None else folder, device.key)
    with ledger.opened() as page:
        check_size(device, page)
        check_room(lease, device, page)
        return OwnLease(device, ledger, page.add(lease), tuple(page.problems))


def _check_count(size: object, what: str, least: int = 1) -> None:
    """Whole bytes: a record with anything else in it could not be read."""
    if not isinstance(size, int) or isinstance(size, bool) or size < least:
        raise InvalidRequest(f"{what} is {size!r:.40}; write whole bytes, at least {least}")


def blank(device: LeasedDevice, role: str, share: Share | None = None) -> Lease:
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


def check_room(lease: Lease, device: LeasedDevice, page: Page, in_driver_bytes: int = 0) -> None:
    """`DoesNotFit`, with who has what, where a lease claims more than what is left.

    Of its claim, `in_driver_bytes` are taken: the driver's free memory is without them already.
    """
    check_known(lease.role, page, lease)
    others = page.others(lease)
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

"""The requests that run: the slot, the blocks and the snapshot of each, and how one starts, leaves and is preempted.

In: requests that the planners start and preempt. Out: `running`, in the order of admission, with what each holds; those
that leave before they have ended are in the queue again. Everything here can be repeated after an interrupt.

Does not know which requests a step takes (`decode`, `prefill`).
"""

from __future__ import annotations

from brim.engine.kv.ledger import KvLedger
from brim.engine.requests.sequence import Sequence
from brim.engine.schedule.drafting import Snapshots
from brim.engine.schedule.figures import AdmissionCounts
from brim.engine.schedule.forecast import BlockForecast
from brim.engine.schedule.host_copies import HostCopies
from brim.engine.schedule.plan import StepLimits
from brim.engine.schedule.queue import Departure, WaitingQueue
from brim.guard.admission import AdmissionSettings


class RunningBatch:
    """The running requests, and the queue that they came from and may go back to."""

    def __init__(
        self, ledger: KvLedger, limits: StepLimits, admission: AdmissionSettings, waiting: WaitingQueue
    ) -> None:
        self.ledger = ledger
        self.limits = limits
        self.waiting = waiting
        self.running: list[Sequence] = []  # in the order of admission
        self.free_slots = list(range(limits.max_batch - 1, -1, -1))
        self.forecast = BlockForecast(ledger, admission, limits.max_batch, limits.max_batch_tokens)
        self.host_copies = HostCopies.none()
        self.counts = AdmissionCounts()
        self.snapshots = (
            Snapshots(limits.max_batch + 1, limits.max_drafted) if limits.has_states and limits.max_drafted else None
        )
        self._leaving: Sequence | None = None  # being preempted

    def start(self, sequence: Sequence) -> None:
        """Give a request a slot. It holds no blocks yet."""
        sequence.slot = self.free_slots.pop()
        self.running.append(sequence)
        sequence.blocks = self.ledger.open(sequence.slot)
        self.forecast.started(sequence)

    def end(self, sequence: Sequence) -> None:
        """A request has ended: what it holds is free."""
        self.running.remove(sequence)
        self._release(sequence)

    def preempt(self, sequence: Sequence, intact: bool = True) -> None:
        """`intact`: its blocks and state hold what it has computed, and may be kept in host memory."""
        self._leaving = sequence
        intact = intact and sequence.snapshot is None  # with one, its state has seen tokens that do not stand
        self.host_copies.leaves(sequence, self.ledger, intact)
        self._put_back(sequence)
        sequence.preemptions += 1
        self.counts.preemptions += 1
        self._leaving = None

    def finish_preemption(self) -> None:
        """Put back a request whose preemption was interrupted."""
        if self._leaving is not None:
            self._put_back(self._leaving)
            self._leaving = None

    def take_back(self, departure: Departure) -> None:
        """Undo an admission: the request waits where it stood."""
        self._let_go(departure.sequence)
        self.waiting.rejoin(departure)

    def move(self, ledger: KvLedger) -> None:
        """Preempt all, and hold blocks of another ledger from now on; those of the present one are given up."""
        for sequence in self.running:
            sequence.blocks = None
        self.ledger = ledger
        for sequence in list(reversed(self.running)):
            self.preempt(sequence, intact=False)
        self.free_slots = list(range(self.limits.max_batch - 1, -1, -1))
        self.forecast.move(ledger)

    def snapshot_problems(self) -> list[str]:
        """Snapshots that are neither free nor a request's, or both."""
        return [] if self.snapshots is None else self.snapshots.problems(self.running)

    def _put_back(self, sequence: Sequence) -> None:
        """To the front of those of its priority, holding nothing."""
        self._let_go(sequence)
        self.waiting.come_back(sequence)

    def _let_go(self, sequence: Sequence) -> None:
        """It holds nothing, and nothing of it is computed."""
        self._release(sequence)
        if sequence in self.running:
            self.running.remove(sequence)
        sequence.computed = sequence.reused = 0
        sequence.drawn_on_device = False

    def _release(self, sequence: Sequence) -> None:
        if sequence.blocks is not None:
            self.ledger.close(sequence.blocks)
            sequence.blocks = None
        if sequence.slot is not None:
            self.forecast.left(sequence.slot)
            self.free_slots.append(sequence.slot)
            sequence.slot = None
        if self.snapshots is not None:
            self.snapshots.free(sequence)

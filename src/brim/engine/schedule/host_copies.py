"""What becomes of preempted requests: copies in host memory, or nothing.

In: requests as they are preempted, started again and ended. Out: orders for the device, which the ledger carries, and
each request's `HostCopy`, from which it goes on. A copy is freed when the step that copies it back has been launched,
or when its request ends. The policy is `brim.guard.preemption`.

The device carries out copies in the order of its steps: blocks are copied before a later step writes to them, and a
part of the arena is read before a later copy is written there. Nothing on the host looks at what they contain.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from brim.engine.kv.host import CopyOut, HostCopy, HostRoom, HostSizes
from brim.engine.kv.ledger import KvLedger
from brim.engine.requests.sequence import Sequence
from brim.guard.preemption import PreemptionAction, PreemptionChoice, PreemptionRates, PreemptionView, keep_or_compute
from brim.units import ceil_div


@dataclass(frozen=True, slots=True)
class PreemptionFigures:
    """What became of preempted requests so far."""

    host_bytes: int = 0  # of the arena; 0: none are kept
    held_bytes: int = 0
    kept: int = 0
    copied_back: int = 0
    dropped: int = 0  # kept, and ended or recomputed all the same
    recomputed: int = 0  # not kept, though something of them was computed
    out_bytes: int = 0
    back_bytes: int = 0  # without what was found on the device
    rates: PreemptionRates | None = None  # of this machine, measured at start
    last_recomputed: str = ""  # why the last one was not kept


class HostCopies:
    """The copies of all preempted requests."""

    def __init__(self, room: HostRoom, sizes: HostSizes, rates: PreemptionRates | None = None) -> None:
        self.room = room
        self.rates = rates  # None: nothing is kept
        self._sizes = sizes
        self._counts: Counter[str] = Counter()
        self._last_lost: PreemptionChoice | None = None

    @classmethod
    def none(cls) -> HostCopies:
        return cls(HostRoom(0), HostSizes(()))

    @property
    def figures(self) -> PreemptionFigures:
        return PreemptionFigures(
            host_bytes=self.room.total_bytes,
            held_bytes=self.room.held_bytes,
            rates=self.rates,
            last_recomputed="" if self._last_lost is None else self._last_lost.reason,
            **self._counts,
        )

    def leaves(self, sequence: Sequence, ledger: KvLedger, intact: bool) -> None:
        """A request is about to give up its blocks. They are worth keeping only while their content is `intact`."""
        if sequence.computed == 0 or sequence.complete or sequence.host_copy is not None:
            return  # nothing is lost, or nothing is left to do
        if intact and self.rates is not None:
            self._keep(sequence, ledger, self.rates)
        self._counts["recomputed"] += sequence.host_copy is None

    def _keep(self, sequence: Sequence, ledger: KvLedger, rates: PreemptionRates) -> None:
        blocks, computed = sequence.blocks, sequence.computed
        assert blocks is not None
        columns = _columns(ledger, computed)
        lasting = min(blocks.common, blocks.published)  # held by others too, and found by content later
        choice = keep_or_compute(self._view(ledger, columns, computed, lasting), rates)
        if not choice.keep:
            if choice.fate is not PreemptionAction.NOTHING:
                self._last_lost = choice
            return
        held = tuple([tuple(table[span.start : span.stop]) for table, span in zip(blocks.tables, columns, strict=True)])
        size = choice.view.out_bytes
        copy = HostCopy(self.room.take(size), size, computed, sequence.reused, columns)
        sequence.host_copy = copy
        ledger.outgoing[copy] = CopyOut(copy, blocks.slot, held)
        self._counts["kept"] += 1
        self._counts["out_bytes"] += size

    def _view(self, ledger: KvLedger, columns: tuple[range, ...], computed: int, lasting: int) -> PreemptionView:
        out = self._sizes.copy_bytes(columns)
        shared = 0 if ledger.unwindowed is None else lasting * self._sizes.block_bytes[ledger.unwindowed]
        return PreemptionView(computed - lasting * ledger.block_size, out, out - shared, self.room.largest_bytes)

    def came_back(self, sequence: Sequence, ledger: KvLedger) -> None:
        """The step that copies it back has been launched, and its reservations are not committed yet."""
        assert sequence.slot is not None
        moved = zip(ledger.returning[sequence.slot].moves, self._sizes.block_bytes, strict=True)
        self._counts["copied_back"] += 1
        self._counts["back_bytes"] += self._sizes.state_bytes + sum(len(move.blocks) * size for move, size in moved)
        self._free(sequence)

    def drop(self, sequence: Sequence, ledger: KvLedger) -> None:
        """The request has ended, or is recomputed; it may have had no copy."""
        if sequence.host_copy is not None:
            ledger.outgoing.pop(sequence.host_copy, None)
            self._free(sequence)
            self._counts["dropped"] += 1

    def _free(self, sequence: Sequence) -> None:
        copy = sequence.host_copy
        assert copy is not None
        self.room.give_back(copy)
        sequence.host_copy = None


def _columns(ledger: KvLedger, computed: int) -> tuple[range, ...]:
    """By group: the blocks that hold computed tokens which later ones attend to."""
    size = ledger.block_size
    end = ceil_div(computed, size)
    return tuple([range(group.first_block_needed(computed, size), end) for group in ledger.groups])

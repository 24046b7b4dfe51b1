"""The admission policy's view of a request: the blocks it would take from the pools, without those it shares.

In: a request and where it would begin (`Prospect`), the ledger, the running requests. Out: an `AdmissionView`, in
blocks by pool. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from brim.engine.kv.ledger import KvLedger
from brim.engine.requests.sequence import Sequence
from brim.guard.admission import AdmissionView
from brim.units import ceil_div


@dataclass(frozen=True, slots=True, eq=False)
class Prospect:
    """A waiting request, and where it would begin if it were admitted now."""

    sequence: Sequence
    reused: int = 0  # tokens that need not be computed
    digests: tuple[bytes, ...] = ()  # the content of the blocks they are in
    forks: bool = False  # it shares the blocks of another answer, copy-on-write


def admission_view(
    prospect: Prospect, ledger: KvLedger, running: list[Sequence], free_slots: int, step_tokens: int
) -> AdmissionView:
    return AdmissionView(
        needed=tuple(_needed(prospect, ledger, step_tokens)),
        available=tuple(ledger.available()),
        promised=tuple(_promised(running, ledger, step_tokens)),
        running=len(running),
        free_slots=free_slots,
    )


def _needed(prospect: Prospect, ledger: KvLedger, step_tokens: int) -> list[int]:
    """Blocks that the whole prompt and one more token would take from the pools."""
    end = len(prospect.sequence.tokens) + 1
    if prospect.forks:  # a copy of the block that it writes to first, and the blocks after it
        behind = ceil_div(end, ledger.block_size) - prospect.reused // ledger.block_size
        return [behind] * len(ledger.groups)
    total = _blocks_ahead(prospect.reused, end, ledger, step_tokens)
    shared = ledger.held_by_others(prospect.digests, max(prospect.reused, end - step_tokens))
    return [count - free for count, free in zip(total, shared, strict=True)]


def _promised(running: Iterable[Sequence], ledger: KvLedger, step_tokens: int) -> list[int]:
    """Blocks that prompts in prefill have yet to take."""
    promised = [0] * len(ledger.groups)
    for sequence in running:
        if sequence.drawn_on_device or sequence.computed >= len(sequence.tokens):
            continue
        assert sequence.blocks is not None
        for number, count in enumerate(_blocks_ahead(sequence.computed, len(sequence.tokens), ledger, step_tokens)):
            held = len(sequence.blocks.tables[number]) - sequence.blocks.given_up[number]
            promised[number] += max(0, count - held)
    return promised


def _blocks_ahead(start: int, end: int, ledger: KvLedger, step_tokens: int) -> list[int]:
    """Most blocks held while these tokens are computed: windows move on from step to step."""
    return ledger.blocks_for(max(start, end - step_tokens), end)

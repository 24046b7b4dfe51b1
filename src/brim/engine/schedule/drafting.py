"""Drafted tokens in a step: which of them are computed, and where the state of before is kept.

Drafts get what is left of a step and of the pools when everything else is planned. Nobody waits or is preempted for
them: where blocks are short, less is drafted.
"""

from __future__ import annotations

from collections.abc import Mapping

from brim.engine.kv.ledger import KvLedger
from brim.engine.requests.sequence import Sequence
from brim.engine.schedule.plan import NO_DRAFT, DraftTokens


class Snapshots:
    """Rows behind the slots that keep recurrent states as they were before drafted tokens."""

    def __init__(self, first_row: int, count: int) -> None:
        self._rows = range(first_row, first_row + count)
        self._free = list(self._rows)

    def take(self, sequence: Sequence) -> int | None:
        """A row for the state of a request; None if there is none left."""
        if sequence.snapshot is None and self._free:
            sequence.snapshot = self._free.pop()
        return sequence.snapshot

    def free(self, sequence: Sequence) -> None:
        """Its state is not needed any more. Can be called again after an interrupt."""
        row, sequence.snapshot = sequence.snapshot, None
        if row is not None and row not in self._free:
            self._free.append(row)

    def problems(self, running: list[Sequence]) -> list[str]:
        """What contradicts these requests, which have all that are taken."""
        rows = sorted([*self._free, *(one.snapshot for one in running if one.snapshot is not None)])
        return [] if rows == list(self._rows) else [f"snapshots {rows} are taken or free; each must be, once"]


def plan_drafts(
    decodes: list[Sequence],
    wanted: Mapping[Sequence, tuple[int, ...]],
    budget: int,
    ledger: KvLedger,
    snapshots: Snapshots | None,
) -> tuple[list[Sequence], tuple[DraftTokens, ...]]:
    """The decodes of a step in their order, those without a draft first, and their drafts; none if nobody has one.

    `budget` is what is left of the step's tokens. `snapshots` are needed where there are recurrent states.
    """
    found: dict[Sequence, DraftTokens] = {}
    for sequence in decodes:
        tokens = wanted.get(sequence, ())[:budget]
        draft = _reserved(sequence, tokens, ledger, snapshots) if tokens else NO_DRAFT
        if draft.tokens:
            found[sequence] = draft
            budget -= len(draft.tokens)
    if not found:
        return decodes, ()
    plain = [sequence for sequence in decodes if sequence not in found]
    return [*plain, *found], (*(NO_DRAFT for _ in plain), *found.values())


def _reserved(
    sequence: Sequence, tokens: tuple[int, ...], ledger: KvLedger, snapshots: Snapshots | None
) -> DraftTokens:
    """As much of a draft as there are blocks for."""
    assert sequence.blocks is not None
    if snapshots is not None and snapshots.take(sequence) is None:
        return NO_DRAFT
    start, size = sequence.computed + 1, ledger.block_size
    end = start + len(tokens)
    while end > start and not ledger.reserve(sequence.blocks, start, end):
        end = (end - 1) // size * size  # one block less
    if end <= start:
        if snapshots is not None:
            snapshots.free(sequence)
        return NO_DRAFT
    return DraftTokens(tokens[: end - start], sequence.snapshot)

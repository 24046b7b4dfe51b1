"""The rows of a step that decode: one for each request, and one for each drafted token behind it.

A drafted token is a decode too, of a request that is longer by one: its row reads what the rows before it have written
in the same step. So a step with drafts runs in the kernels and graphs of decodes, and every row computes what it would
compute if the tokens before it had been drawn one by one.

Recurrent layers cannot: their states pass through the tokens one after the other. They see drafted tokens as chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from brim.engine.device.layout import ChunkPlace, PackedLayout
from brim.engine.requests.sequence import Sequence
from brim.engine.schedule.plan import StepPlan

if TYPE_CHECKING:
    import torch

LAST_DRAWN = -1  # in place of a token: what was drawn last in the slot


@dataclass(frozen=True, slots=True, eq=False)
class DecodeRows:
    """For each row its slot, the length of its request with it, and its token, if that was drafted."""

    slots: np.ndarray
    lengths: np.ndarray
    tokens: np.ndarray

    def __len__(self) -> int:
        return self.slots.size


def decode_rows(plan: StepPlan) -> DecodeRows:
    """The rows of a plan's decodes, in its order."""
    slots = np.array(plan.slots, dtype=np.int64)
    lengths = np.array(plan.lengths, dtype=np.int64)
    if not plan.drafts:
        return DecodeRows(slots, lengths, np.full(slots.size, LAST_DRAWN, dtype=np.int64))
    counts = [draft.rows for draft in plan.drafts]
    tokens = [token for draft in plan.drafts for token in (LAST_DRAWN, *draft.tokens)]
    return DecodeRows(
        np.repeat(slots, counts),
        np.repeat(lengths, counts) + _ahead(counts),
        np.array(tokens, dtype=np.int64),
    )


def _ahead(counts: list[int]) -> np.ndarray:
    """0, 1, 2, … for the rows of each request."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1]) - np.repeat(ends - counts, counts)


def drawing_slots(plan: StepPlan) -> list[tuple[Sequence, int]]:
    """The rows that draw a token: whose, and in which slot."""
    if not plan.drafts:
        decodes = list(zip(plan.decodes, plan.slots, strict=True))
    else:
        rows = zip(plan.decodes, plan.slots, plan.drafts, strict=True)
        decodes = [(sequence, slot) for sequence, slot, draft in rows for _ in range(draft.rows)]
    return [*decodes, *((chunk.sequence, chunk.slot) for chunk in plan.chunks if chunk.draws)]


def tokens_ahead(plan: StepPlan) -> list[int]:
    """For each row that draws: how many tokens of its request are drafted before the one that it draws."""
    return [place for _, draft in plan.drawn_rows for place in range(draft.rows)]


def as_chunks(plan: StepPlan, layout: PackedLayout) -> PackedLayout:
    """A step as recurrent layers see it: drafted tokens, and those before them, are chunks."""
    first = place = sum(not draft.tokens for draft in plan.drafts)
    chunks = []
    drafted = zip(plan.slots[first:], plan.lengths[first:], plan.drafts[first:], strict=True)
    for slot, length, draft in drafted:
        chunks.append(ChunkPlace(place, draft.rows, slot, length - 1))
        place += draft.rows
    return PackedLayout(first, (*chunks, *layout.chunks), layout.decode_slots[:first])


def snapshots(plan: StepPlan) -> list[tuple[int, int]]:
    """Slots whose recurrent state is kept before the step changes it, and the rows that keep it."""
    drafted = zip(plan.slots, plan.drafts, strict=False)
    return [(slot, draft.snapshot) for slot, draft in drafted if draft.snapshot is not None]


def last_drawn(tokens: torch.Tensor, slots: torch.Tensor, last_tokens: torch.Tensor) -> torch.Tensor:
    """The tokens of rows, with what was drawn last in their slots where that is meant."""
    return tokens.where(tokens != LAST_DRAWN, last_tokens[slots])

"""The rows of a step with drafts: what each computes, whose token it draws, and what recurrent layers see."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from brim.engine.device.layout import ChunkPlace, PackedLayout  # noqa: E402
from brim.engine.requests.params import SamplingParams  # noqa: E402
from brim.engine.requests.request import Request  # noqa: E402
from brim.engine.requests.sequence import Sequence  # noqa: E402
from brim.engine.run.packing import drawing_rows, sample_rows  # noqa: E402
from brim.engine.run.rows import (  # noqa: E402
    LAST_DRAWN,
    as_chunks,
    decode_rows,
    drawing_slots,
    last_drawn,
    snapshots,
    tokens_ahead,
)
from brim.engine.schedule.plan import NO_DRAFT, Chunk, DraftTokens, StepPlan  # noqa: E402


def text(name: str, length: int) -> Sequence:
    request = Request(name, (1,) * 3, SamplingParams(), seed=0, max_tokens=40)
    return Sequence(request, [1] * length)


A, B, C, D = text("a", 6), text("b", 9), text("c", 4), text("d", 8)
PLAN = StepPlan(
    (A, B, C),
    (5, 1, 3),
    (6, 9, 4),
    (Chunk(D, 2, 6, 2, draws=True),),
    (NO_DRAFT, DraftTokens((21, 22), snapshot=9), DraftTokens((31,), snapshot=8)),
)


def test_a_drafted_token_is_a_decode_of_a_longer_text() -> None:
    rows = decode_rows(PLAN)
    assert rows.slots.tolist() == [5, 1, 1, 1, 3, 3]
    assert rows.lengths.tolist() == [6, 9, 10, 11, 4, 5]
    assert rows.tokens.tolist() == [LAST_DRAWN, LAST_DRAWN, 21, 22, LAST_DRAWN, 31]
    assert len(rows) == PLAN.decode_rows == 6
    assert PLAN.tokens == 8


def test_every_row_draws_with_the_index_of_its_own_token() -> None:
    assert drawing_rows(PLAN) == [0, 1, 2, 3, 4, 5, 7]
    assert drawing_slots(PLAN) == [(A, 5), (B, 1), (B, 1), (B, 1), (C, 3), (C, 3), (D, 2)]
    rows = sample_rows((sequence for sequence, _ in drawing_slots(PLAN)), tokens_ahead(PLAN))
    assert [row.index for row in rows] == [3, 6, 7, 8, 1, 2, 5]
    assert PLAN.drawing == (A, B, C, D)


def test_recurrent_layers_see_drafts_as_chunks_behind_the_decodes() -> None:
    layout = PackedLayout(6, (ChunkPlace(6, 2, 2, 6),), torch.tensor([5, 1, 1, 1, 3, 3]))
    seen = as_chunks(PLAN, layout)
    assert seen.decodes == 1
    assert seen.decode_slots.tolist() == [5]
    assert seen.chunks == (ChunkPlace(1, 3, 1, 8), ChunkPlace(4, 2, 3, 3), ChunkPlace(6, 2, 2, 6))
    assert snapshots(PLAN) == [(1, 9), (3, 8)]


def test_tokens_that_were_not_drafted_are_the_last_ones_of_their_slots() -> None:
    tokens = torch.tensor([LAST_DRAWN, 7, LAST_DRAWN])
    assert last_drawn(tokens, torch.tensor([2, 2, 0]), torch.tensor([50, 51, 52])).tolist() == [52, 7, 50]

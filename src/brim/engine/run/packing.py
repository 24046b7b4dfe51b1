"""A planned step as tensors: its tokens in one row, and where each request's lie in it.

Tokens that a launched step is still drawing are not known here: their places are, and the device fills them in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from brim.engine.device.layout import ChunkPlace, StepLayout
from brim.engine.device.staging import Staging
from brim.engine.kv.tensors import KvTensors
from brim.engine.requests.sequence import Sequence
from brim.engine.run.rows import decode_rows
from brim.engine.run.sampling.sampler import SampleRow
from brim.engine.schedule.plan import StepPlan

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, eq=False)
class PackedStep:
    """What the device needs of a step."""

    layout: StepLayout
    tokens: torch.Tensor  # int64 [tokens]; of decodes only the drafted ones are known
    positions: torch.Tensor  # int64 [tokens]


def pack(plan: StepPlan, kv: KvTensors, staging: Staging) -> PackedStep:
    """Send a step to the device, in one copy."""
    chunks = plan.chunks
    starts = np.cumsum([0, *(chunk.length for chunk in chunks)])
    positions = [np.arange(chunk.start, chunk.start + chunk.length) for chunk in chunks]
    decodes = decode_rows(plan)
    known = [np.array(chunk.sequence.tokens[chunk.start : chunk.start + chunk.length]) for chunk in chunks]
    decode_slots, lengths, tokens, places, rows, chunk_slots, chunk_starts, ends = staging.send(
        [
            decodes.slots,
            decodes.lengths,
            np.concatenate([decodes.tokens, *known]).astype(np.int64),
            np.concatenate([decodes.lengths - 1, *positions]).astype(np.int64),
            np.concatenate(
                [
                    decodes.slots,
                    np.repeat(
                        np.array([chunk.slot for chunk in chunks], dtype=np.int64), [chunk.length for chunk in chunks]
                    ),
                ]
            ),
            np.array([chunk.slot for chunk in chunks], dtype=np.int64),
            starts.astype(np.int64),
            np.array([chunk.start + chunk.length for chunk in chunks], dtype=np.int64),
        ]
    )
    layout = StepLayout(
        decodes=len(decodes),
        chunks=tuple(
            ChunkPlace(len(decodes) + int(starts[number]), chunk.length, chunk.slot, chunk.start)
            for number, chunk in enumerate(chunks)
        ),
        decode_slots=decode_slots,
        decode_lengths=lengths.int(),
        chunk_slots=chunk_slots,
        chunk_starts=chunk_starts.int(),
        chunk_lengths=ends.int(),
        write_slots=tuple(kv.write_slots(group, rows, places) for group in range(len(kv.tables))),
        longest_chunk=max((chunk.length for chunk in chunks), default=0),
        visible_until=_visible_until(plan, staging),
    )
    return PackedStep(layout, tokens, places)


def drawing_rows(plan: StepPlan) -> list[int]:
    """The rows of a step whose hidden states a token is drawn from."""
    end = plan.decode_rows
    rows = list(range(end))
    for chunk in plan.chunks:
        end += chunk.length
        if chunk.draws:
            rows.append(end - 1)
    return rows


def sample_rows(drawing: Iterable[Sequence], ahead: Iterable[int] = repeat(0)) -> list[SampleRow]:
    """How each row's token is to be drawn. What ends a text goes along where it matters; the text itself does not.

    `ahead` is how many drafted tokens of its request come before the one that a row draws.
    """
    return [
        SampleRow(
            params=sequence.request.params,
            seed=sequence.request.seed,
            index=sequence.generated + drafted,
            eos_ids=tuple(sequence.request.stop_ids) if sequence.request.params.min_tokens else (),
            allowed=None if sequence.constraint is None else sequence.constraint.allowed,
        )
        for sequence, drafted in zip(drawing, ahead, strict=False)
    ]


def _visible_until(plan: StepPlan, staging: Staging) -> torch.Tensor | None:
    """For chunks with tokens that see each other in both directions: how far each token sees."""
    if not any(span.together for chunk in plan.chunks for span in chunk.sequence.request.spans):
        return None
    limits = []
    for chunk in plan.chunks:
        until = np.arange(chunk.start, chunk.start + chunk.length)
        for span in chunk.sequence.request.spans:
            if span.together:
                until[(until >= span.start) & (until < span.end)] = span.end - 1
        limits.append(until)
    return staging.send([np.concatenate(limits)])[0].int()

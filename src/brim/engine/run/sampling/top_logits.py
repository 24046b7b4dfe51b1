"""The largest logits of each row that asked for them, and the log-normaliser of its whole row.

In: the logits of a step, and how many each row asked to keep. Out: tensors of a row for each that asked. The row of the
vocabulary is gone with the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from brim.engine.run.sampling.sampler import ROWS_AT_ONCE, Sampled


@torch.no_grad()
def with_top_logits(sampled: Sampled, logits: torch.Tensor, asked: Sequence[int]) -> Sampled:
    """`asked`: for each row of `logits` how many to keep. As many are kept of all as any of them asked."""
    rows = [row for row, count in enumerate(asked) if count]
    if not rows:
        return sampled
    most = min(max(asked), logits.shape[1])
    slices = [rows[first : first + ROWS_AT_ONCE] for first in range(0, len(rows), ROWS_AT_ONCE)]
    parts = [_kept(logits, places, most, every=len(rows) == len(asked)) for places in slices]
    values, tokens, normalisers = (torch.cat(kind) for kind in zip(*parts, strict=True))
    return replace(sampled, kept_logits=values, kept_tokens=tokens, log_normaliser=normalisers)


def _kept(
    logits: torch.Tensor, rows: list[int], count: int, every: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of these rows, in float32. `every`: no row is left out, so they are a slice."""
    if every:
        picked = logits[rows[0] : rows[-1] + 1]
    else:
        places = torch.tensor(rows, dtype=torch.int64)
        if logits.is_cuda:
            places = places.pin_memory()
        picked = logits.index_select(0, places.to(logits.device, non_blocking=True))
    scores = picked.float()
    top = scores.topk(count, dim=-1)
    return top.values, top.indices.int(), scores.logsumexp(dim=-1)

"""Log-probabilities of prompt tokens, for the chunks of a step that ask for them.

In: a planned step and its hidden states. Out: for each such chunk how likely its own tokens were, on the device. Logits
exist for a slice of positions at a time: those of a whole prompt would be as large as prompt × vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np
import torch

from brim.engine.device.staging import Staging
from brim.engine.run.sampler import PromptLogprobs, prompt_logprobs
from brim.engine.schedule.plan import Chunk, StepPlan

ROWS_AT_ONCE = 256  # prompt positions whose logits exist at once

Logits = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of hidden states, at these rows


def score_prompts(plan: StepPlan, hidden: torch.Tensor, logits: Logits, staging: Staging) -> dict[int, PromptLogprobs]:
    """Scores by the number of the chunk."""
    scores: dict[int, PromptLogprobs] = {}
    start = plan.decode_rows
    for number, chunk in enumerate(plan.chunks):
        count = chunk.sequence.request.params.prompt_logprobs
        following = _following(chunk)
        if count is not None and following is not None:
            rows, targets = staging.send(
                [np.arange(start, start + len(following)), np.array(following, dtype=np.int64)]
            )
            scores[number] = _score(hidden, rows, targets, count, logits)
        start += chunk.length
    return scores


def scored_rows(plan: StepPlan) -> list[int]:
    """Rows whose logits exist at once, for each time that `score_prompts` computes some of this step."""
    found = [_following(chunk) for chunk in plan.chunks]
    return [len(tokens[here]) for tokens in found if tokens is not None for here in _slices(len(tokens))]


def _following(chunk: Chunk) -> tuple[int, ...] | None:
    """The tokens of the prompt that this chunk says the likelihood of; None if nobody asks."""
    request = chunk.sequence.request
    if request.params.prompt_logprobs is None or chunk.start >= chunk.sequence.prompt_length:
        return None
    return request.prompt[chunk.start + 1 : chunk.start + chunk.length + 1]


def _slices(rows: int) -> list[slice]:
    return [slice(first, min(first + ROWS_AT_ONCE, rows)) for first in range(0, max(rows, 1), ROWS_AT_ONCE)]


def _score(
    hidden: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor, count: int, logits: Logits
) -> PromptLogprobs:
    parts = [prompt_logprobs(logits(hidden, rows[here]), targets[here], count) for here in _slices(len(rows))]
    return PromptLogprobs(
        **{field.name: torch.cat([getattr(part, field.name) for part in parts]) for field in fields(PromptLogprobs)}
    )

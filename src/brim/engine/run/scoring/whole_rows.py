"""Scores of any class: whole rows of its own logits, few at a time.

In: hidden states, the tokens that follow, and bytes that may be taken. Out: `PromptLogprobs`. For heads that cannot be
computed in parts (`brim.engine.weights.head`), those that are split over ranks among them. One row is the least: a
bound smaller than that is passed.
"""

from __future__ import annotations

import torch

from brim.engine.run.scoring.scores import PromptLogprobs, joined, slices
from brim.engine.weights.text_model import TextModel

_COPIES_OF_THE_CLASS = 4  # of a logit, in the class's type: gathered from ranks, divided, capped, multiplied
_FLOAT_COPIES = 3  # in float32: the logits, their exponentials, and what a search for the largest keeps
_FLAGS = 1  # larger than the token's own, or not


def rows_at_once(vocab: int, element_bytes: int, memory: int) -> int:
    """Rows whose logits exist at once within so many bytes."""
    row = vocab * (_COPIES_OF_THE_CLASS * element_bytes + _FLOAT_COPIES * 4 + _FLAGS)
    return max(1, memory // row)


def score_whole_rows(
    text_model: TextModel, hidden: torch.Tensor, targets: torch.Tensor, count: int, most: int
) -> PromptLogprobs:
    """Of all rows of `hidden`, `most` at once."""
    parts = []
    for here in slices(len(targets), most):
        rows = torch.arange(here.start, here.stop, device=hidden.device)
        parts.append(prompt_logprobs(text_model.logits(hidden, rows), targets[here], count))
    return joined(parts)


@torch.no_grad()
def prompt_logprobs(logits: torch.Tensor, targets: torch.Tensor, count: int) -> PromptLogprobs:
    """Judge the tokens that follow some positions of a prompt, with so many alternatives."""
    scores = logits.float()
    chosen = scores.gather(-1, targets.unsqueeze(-1))
    total = scores.logsumexp(dim=-1, keepdim=True)
    top = scores.topk(min(count, scores.shape[-1]), dim=-1)
    return PromptLogprobs(
        logprob=(chosen - total).squeeze(-1),
        top_logprobs=top.values - total,
        top_tokens=top.indices,
        rank=(scores > chosen).sum(dim=-1, dtype=torch.int32).long() + 1,  # a sum of int64 takes twice as much
    )

"""Scores while the vocabulary goes by in pieces (`Running`), and what reduces a piece into them.

A row needs its maximum and the sum of exponentials below it (log-sum-exp), the largest logits so far, its own token's
logit, and how many are larger than that. The last needs the token's logit before its piece has come: it is multiplied
by itself first (`reference`). That sum is rounded in another order than the piece's, so the token's own column is not
compared, and among the largest logits, which are known as the pieces have them, the rank follows those (`finished`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from brim.engine.run.scoring.scores import PromptLogprobs, slices
from brim.engine.weights.head import LogitsHead


@dataclass(frozen=True, slots=True, eq=False)
class RunningScores:
    """What is known of some rows; the tensors change with every piece."""

    targets: torch.Tensor  # int64 [rows]: the tokens that follow
    reference: torch.Tensor  # float32 [rows]: their logits, multiplied one by one
    chosen: torch.Tensor  # float32 [rows]: their logits, as their pieces have them
    maximum: torch.Tensor  # float32 [rows]
    total: torch.Tensor  # float32 [rows]: of exp(logit - maximum)
    above: torch.Tensor  # int32 [rows]: other tokens whose logit is above the reference
    top_logits: torch.Tensor  # float32 [rows, k], in any order
    top_tokens: torch.Tensor  # int32 [rows, k]

    @classmethod
    def begun(cls, targets: torch.Tensor, reference: torch.Tensor, count: int) -> RunningScores:
        rows = len(targets)
        lowest = torch.full((rows, count + 2), -torch.inf, dtype=torch.float32, device=targets.device)
        whole = torch.zeros((rows, count + 1), dtype=torch.int32, device=targets.device)
        return cls(
            targets,
            reference,
            chosen=lowest[:, -1].clone(),
            maximum=lowest[:, -2].clone(),
            total=torch.zeros_like(reference),
            above=whole[:, -1].clone(),
            top_logits=lowest[:, :count].contiguous(),
            top_tokens=whole[:, :count].contiguous(),
        )

    def finished(self) -> PromptLogprobs:
        total = (self.maximum + self.total.log()).unsqueeze(-1)
        top = self.top_logits.sort(dim=-1, descending=True, stable=True)
        tokens = self.top_tokens.long().gather(-1, top.indices)
        own = tokens == self.targets.unsqueeze(-1)
        larger = ((top.values > self.chosen.unsqueeze(-1)) & ~own).sum(-1)
        others = self.above.long().maximum(larger)
        return PromptLogprobs(
            logprob=self.chosen - total.squeeze(-1),
            top_logprobs=top.values - total,
            top_tokens=tokens,
            rank=torch.where(own.any(-1), larger, others) + 1,
        )


class Reduction(Protocol):
    """Reduces pieces of products, one way or another."""

    element_bytes: int  # that an element of a piece takes, its own four included

    def reference(self, rows: torch.Tensor, targets: torch.Tensor, head: LogitsHead, memory: int) -> torch.Tensor:
        """Float32 logits of one token for each row."""
        ...

    def take(self, piece: torch.Tensor, first: int, head: LogitsHead, running: RunningScores) -> None:
        """Products [rows, columns] of the vocabulary from `first` on; may be written on."""
        ...


class TorchReduction:
    """In torch's own operations, on any device: each of them reads the piece again."""

    element_bytes = 4 + 4 + 1  # products, what a search for the largest keeps, flags

    def reference(self, rows: torch.Tensor, targets: torch.Tensor, head: LogitsHead, memory: int) -> torch.Tensor:
        most = max(1, memory // (head.width * (2 * head.weight.element_size() + 3 * 4)))
        parts = [(rows[here].float() * head.weight[targets[here]].float()).sum(-1) for here in slices(len(rows), most)]
        found = torch.cat(parts)
        if head.bias is not None:
            found += head.bias[targets]
        return LogitsHead(head.weight, None, head.scale, head.cap).finish_(found)

    def take(self, piece: torch.Tensor, first: int, head: LogitsHead, running: RunningScores) -> None:
        logits = head.finish_(piece, first)
        columns = logits.shape[1]
        places = running.targets - first
        inside = (places >= 0) & (places < columns)
        own = logits.gather(-1, places.clamp(0, columns - 1).unsqueeze(-1)).squeeze(-1)
        running.chosen.copy_(torch.where(inside, own, running.chosen))
        above = (logits > running.reference.unsqueeze(-1)).sum(-1, dtype=torch.int32)
        running.above.add_(above).sub_((inside & (own > running.reference)).int())
        self._keep_largest(logits, first, running)
        maximum = running.maximum.maximum(logits.amax(-1))
        running.total.mul_((running.maximum - maximum).exp_()).add_(logits.sub_(maximum.unsqueeze(-1)).exp_().sum(-1))
        running.maximum.copy_(maximum)

    def _keep_largest(self, logits: torch.Tensor, first: int, running: RunningScores) -> None:
        count = running.top_logits.shape[1]
        if not count:
            return
        here = logits.topk(min(count, logits.shape[1]), dim=-1)
        values = torch.cat([running.top_logits, here.values], -1)
        tokens = torch.cat([running.top_tokens, (here.indices + first).int()], -1)
        best = values.topk(count, dim=-1)
        running.top_logits.copy_(best.values)
        running.top_tokens.copy_(tokens.gather(-1, best.indices))


def reduction_for(device: torch.device) -> Reduction:
    """The one that is faster there: on a GPU a kernel that reads each piece once, where Triton is installed."""
    if device.type != "cuda":
        return TorchReduction()
    try:
        from brim.engine.run.scoring.kernels import TritonReduction
    except ImportError:
        return TorchReduction()
    return TritonReduction()

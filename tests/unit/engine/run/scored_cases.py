"""Heads and hidden states to score, and how far scores in pieces are from whole rows of logits in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from brim.engine.run.scoring.pieces import PieceSize, score_in_pieces
from brim.engine.run.scoring.running import Reduction
from brim.engine.run.scoring.scores import PromptLogprobs
from brim.engine.weights.head import LogitsHead


@dataclass(frozen=True, slots=True)
class ScoredCase:
    """Dimensions, the head's form, and the pieces it is computed in."""

    vocab: int = 197
    width: int = 48
    rows: int = 3
    count: int = 5
    columns: int = 64
    kind: str = "float32"
    bias: bool = False
    scale: float = 1.0
    cap: float | None = None
    spread: float = 1.0  # of the logits: wide ones reach the cap
    equal: bool = False  # many tokens have the same logit

    def head(self) -> LogitsHead:
        numbers = torch.Generator().manual_seed(self.vocab + self.width)
        weight = torch.randn(self.vocab, self.width, generator=numbers) * self.spread / self.width**0.5
        if self.equal:
            weight = weight[: self.vocab // 4 + 1].repeat(4, 1)[: self.vocab]
        bias = torch.randn(self.vocab, generator=numbers) if self.bias else None
        dtype = getattr(torch, self.kind)
        return LogitsHead(weight.to(dtype), None if bias is None else bias.to(dtype), self.scale, self.cap)

    def hidden(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states, and the tokens that follow: the first and the last of the vocabulary among them."""
        numbers = torch.Generator().manual_seed(self.rows)
        hidden = torch.randn(self.rows, self.width, generator=numbers).to(getattr(torch, self.kind))
        targets = torch.randint(0, self.vocab, (self.rows,), generator=numbers)
        targets[0], targets[-1] = 0, self.vocab - 1
        return hidden, targets


CASES = (
    ScoredCase(),
    ScoredCase(count=0),
    ScoredCase(vocab=19, count=1, columns=1),
    ScoredCase(count=20, columns=48, rows=2),
    ScoredCase(columns=197, rows=1),
    ScoredCase(kind="bfloat16", scale=0.0625, spread=8.0),
    ScoredCase(kind="float16", cap=30.0, spread=20.0),
    ScoredCase(kind="bfloat16", bias=True, scale=0.25, cap=5.0, spread=4.0, count=9),
    ScoredCase(bias=True, vocab=2500, columns=2200, rows=2),
    ScoredCase(equal=True, count=7),
)


@dataclass(frozen=True, slots=True)
class Difference:
    """Between scores and their reference, and how often the tokens or ranks are others than ties explain."""

    largest: float
    wrong_tokens: int
    wrong_ranks: int


def difference(case: ScoredCase, reduction: Reduction) -> Difference:
    head, (hidden, targets) = case.head(), case.hidden()
    found = score_in_pieces(hidden, targets, case.count, head, reduction, PieceSize(case.rows, case.columns))
    logits = _logits(head, hidden)
    return Difference(*_distances(found, logits, targets, case.count))


def _logits(head: LogitsHead, hidden: torch.Tensor) -> torch.Tensor:
    wide = LogitsHead(head.weight.double(), None if head.bias is None else head.bias.double(), head.scale, head.cap)
    return wide.finish_(hidden.double() @ wide.weight.t())


def _distances(
    found: PromptLogprobs, logits: torch.Tensor, targets: torch.Tensor, count: int
) -> tuple[float, int, int]:
    scores = logits.log_softmax(-1)
    own = scores.gather(-1, targets[:, None])
    top = scores.topk(count)
    assert found.top_tokens.shape == top.indices.shape
    there = scores.gather(-1, found.top_tokens)
    parts = [found.logprob - own[:, 0], (found.top_logprobs - top.values).flatten(), (there - top.values).flatten()]
    once = all(len(set(row)) == count for row in found.top_tokens.tolist())
    near = 1e-5
    least = (scores > own + near).sum(-1) + 1
    most = (scores > own - near).sum(-1)
    outside = (found.rank < least) | (found.rank > most.maximum(least))
    largest = float(torch.cat([part.double().abs() for part in parts]).max())
    return largest, 0 if once else 1, int(outside.sum())

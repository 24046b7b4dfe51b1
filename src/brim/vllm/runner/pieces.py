"""Prompts that are scored in pieces, in the V1 runner (`score_in_pieces`).

For the log-probabilities of a prompt, that runner makes the logits of all its tokens in a step at once, and their
softmax in fp32: 6 GB and more for 8,192 tokens of a vocabulary of 128,256, which would have to stay free for a rare
request. Its own code still runs, but what it asks of the model and of the sampler is answered some rows at a time. The
V2 runner does so by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from brim.units import MIB

PIECE_BYTES = 128 * MIB  # of scores in fp32; about what the sampler itself has for 256 rows
_SCORE_BYTES = 4


def score_in_pieces(runner: Any, vocabulary: int, piece_bytes: int = PIECE_BYTES) -> None:
    """Let a V1 runner score prompts in pieces from now on."""
    rows = max(1, piece_bytes // (_SCORE_BYTES * vocabulary))
    stock = runner._get_prompt_logprobs_dict

    def scored(*arguments: Any, **named: Any) -> Any:
        model, sampler = runner.model, runner.sampler
        runner.model, runner.sampler = _LateModel(model), _LateSampler(model, sampler, rows)
        try:
            return stock(*arguments, **named)
        finally:
            runner.model, runner.sampler = model, sampler

    runner._get_prompt_logprobs_dict = scored


@dataclass(frozen=True, slots=True)
class _LateLogits:
    """Logits that are not made yet, and what then becomes of them."""

    hidden: Any
    scored: Callable[[Any], Any] | None = None

    def to(self, dtype: Any) -> _LateLogits:
        return replace(self, scored=lambda logits: logits.to(dtype))


@dataclass(frozen=True, slots=True)
class _LateModel:
    """What the runner's code asks of the model."""

    model: Any

    def compute_logits(self, hidden: Any) -> _LateLogits:
        return _LateLogits(hidden)


@dataclass(frozen=True, slots=True)
class _LateSampler:
    """What the runner's code asks of the sampler; `rows` are scored at a time."""

    model: Any
    sampler: Any
    rows: int

    def compute_logprobs(self, logits: _LateLogits) -> _LateLogits:
        return replace(logits, scored=self.sampler.compute_logprobs)

    def gather_logprobs(self, scores: _LateLogits, count: int, tokens: Any) -> Any:
        assert scores.scored is not None, "logits that nothing was made of"
        pieces = [
            self.sampler.gather_logprobs(scores.scored(self.model.compute_logits(hidden)), count, scored_tokens)
            for hidden, scored_tokens in zip(scores.hidden.split(self.rows), tokens.split(self.rows), strict=True)
        ]
        return _joined(pieces)


def _joined(pieces: list[Any]) -> Any:
    """One record of tensors, of many; what is no tensor is the same in all of them."""
    import torch

    columns = zip(*pieces, strict=True)
    fields = (torch.cat(parts) if isinstance(parts[0], torch.Tensor) else parts[0] for parts in columns)
    return type(pieces[0])(*fields)

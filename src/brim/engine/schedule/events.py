"""Results of a step for a request: a token, its log-probabilities, an end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from brim.engine.requests.request import FinishReason
from brim.engine.requests.sequence import Sequence

if TYPE_CHECKING:
    import numpy as np

    from brim.engine.schedule.prompt_scores import PromptScores


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The log-probability of a token, and the likeliest alternatives."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    rank: int | None = None  # of the token among all, 1 is the likeliest; known of prompts


@dataclass(frozen=True, slots=True, eq=False)
class TopLogits:
    """The largest logits of some tokens, each row from the largest down, as the model gave them.

    That is with the model's own scale and soft cap, and before bias, penalties and temperature. `logits` less
    `log_normaliser` are log-probabilities over the whole vocabulary.
    """

    logits: np.ndarray  # float32 [tokens, k]
    tokens: np.ndarray  # int32 [tokens, k]: their ids
    log_normaliser: np.ndarray  # float32 [tokens]: log of the sum of exp over all logits


class SequenceEvent(NamedTuple):
    """A token, an end, or prompt log-probabilities of a request."""

    sequence: Sequence
    token: int | None = None
    logprobs: TokenLogprobs | None = None
    finish: FinishReason | None = None
    prompt_logprobs: PromptScores | None = None
    prompt_start: int = 0  # position of the first of these prompt tokens
    error: str | None = None  # why, where it ends with an error
    top_logits: TopLogits | None = None  # of the token
    passing: bool = False  # an error that the same request may not meet again
    in_request: bool = False  # an error in what was asked for, which showed on the way

"""Results of a step for a request: a token, its log-probabilities, an end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from brim.engine.requests.request import FinishReason
from brim.engine.requests.sequence import Sequence


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The log-probability of a token, and the likeliest alternatives."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class Event(NamedTuple):
    """A token, an end, or prompt log-probabilities of a request."""

    sequence: Sequence
    token: int | None = None
    logprobs: TokenLogprobs | None = None
    finish: FinishReason | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_start: int = 0  # position of the first of these prompt tokens
    error: str | None = None  # why, where it ends with an error

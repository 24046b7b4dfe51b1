"""What a step made known of a request: a token, its log-probabilities, an end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from brim.engine.requests.request import FinishReason
from brim.engine.requests.sequence import Sequence


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely a token was, and what else could have been there."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class Event(NamedTuple):
    """Something happened to a request: a token, an end, or scores of its prompt."""

    sequence: Sequence
    token: int | None = None
    logprobs: TokenLogprobs | None = None
    finish: FinishReason | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_start: int = 0  # the place of the first token they score

"""Where two runs in bf16 part: other kernels round otherwise, which may only matter between tokens nearly as likely."""

from __future__ import annotations

from math import inf
from typing import Any

NEAR_TIE = 0.25  # of log-probabilities: two steps of bf16 where logits are 16 to 32


def gap(plain: Any, tokens: tuple[int, ...]) -> float:
    """By how much the token of the plain run was likelier than that of another run, where this parts from it.

    The plain run has `logprobs=2`. 0: they do not part; inf: the other token was not even the second.
    """
    pairs = enumerate(zip(plain.tokens, tokens, strict=False))
    place = next((number for number, (one, other) in pairs if one != other), None)
    if place is None:
        return 0.0
    (_, first), (token, second) = plain.logprobs[place].top
    return float(first - second) if token == tokens[place] else inf

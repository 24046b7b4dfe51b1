"""Tokens that one answer may not draw: all but those of a list, and those that would complete a banned sequence.

In: sampling parameters, the size of the vocabulary, and the constraint of a grammar if there is one. Out: a
`Constraint`. A list alone, or single tokens that are banned, never change: such a constraint is `fixed`, and draws do
not wait for it. Where bans of sequences would leave no token at all, or before `min_tokens` none but those that end the
answer, they are lifted for that one draw: something has to come next, and the rest was asked for more plainly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

import numpy as np

from brim.engine.requests.grammar import Constraint
from brim.engine.requests.params import SamplingParams
from brim.errors import InvalidRequest
from brim.units import ceil_div

_NOTHING = "allowed_token_ids: none of them may come next by the grammar; allow more, or leave one of both out"


def limited(
    params: SamplingParams, vocab: int, grammar: Constraint | None, ends: Collection[int] = ()
) -> Constraint | None:
    """The constraint on one answer, which `ends` end, if not before `min_tokens`; None: any token may be drawn."""
    if not params.limits_tokens:
        return grammar
    found = TokenLimits(params, vocab, grammar, ends)
    if not found.allowed.any():
        raise InvalidRequest(_NOTHING)
    return found


class TokenLimits:
    """A `Constraint` by a list of tokens and by banned sequences, within what a grammar allows."""

    def __init__(
        self, params: SamplingParams, vocab: int, grammar: Constraint | None, ends: Collection[int] = ()
    ) -> None:
        ids = params.allowed_token_ids
        listed = np.ones(vocab, dtype=bool) if ids is None else _marked(ids, vocab)
        self._listed = _packed(listed)
        listed[[tokens[0] for tokens in params.banned_sequences if len(tokens) == 1]] = False
        self._left = _packed(listed)  # without single tokens that are banned
        self._banned = [tokens for tokens in params.banned_sequences if len(tokens) > 1]
        self._last: deque[int] = deque(maxlen=max(map(len, self._banned), default=1) - 1)
        self._grammar = grammar
        self._early = params.min_tokens  # draws until the answer may end
        self._going_on = ~_packed(_marked(ends, vocab))
        self.fixed = grammar is None and not self._banned
        self.allowed = self._next()

    def take(self, token: int) -> str | None:
        problem = None if self._grammar is None else self._grammar.take(token)
        self._last.append(token)
        self._early -= 1
        self.allowed = self._next()
        return problem if problem or self.allowed.any() else _NOTHING

    def _next(self) -> np.ndarray:
        bits = self._left.copy() if self._banned else self._left
        for token in self._completing():
            bits[token >> 3] &= ~(1 << (token & 7)) & 255
        if self._grammar is None:
            left = bits & self._going_on if self._early > 0 else bits
            return bits if left.any() else self._listed
        by_grammar = self._grammar.allowed
        size = min(len(bits), len(by_grammar))
        within: np.ndarray = bits[:size] & by_grammar[:size]
        return within if within.any() else np.bitwise_and(self._listed[:size], by_grammar[:size])

    def _completing(self) -> Iterable[int]:
        """The last tokens of banned sequences whose other tokens have just been drawn."""
        last = tuple(self._last)
        return (one[-1] for one in self._banned if last[len(last) - len(one) + 1 :] == one[:-1])


def _marked(ids: Iterable[int], vocab: int) -> np.ndarray:
    found = np.zeros(vocab, dtype=bool)
    found[list(ids)] = True
    return found


def _packed(flags: np.ndarray) -> np.ndarray:
    """As bits, the lowest first."""
    bits = np.packbits(flags, bitorder="little")
    assert len(bits) == ceil_div(len(flags), 8)
    return bits

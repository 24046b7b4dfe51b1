"""Requests of constructed steps: how they sample, and the blocks that they hold."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from brim.engine.kv.ledger import KvLedger
from brim.engine.kv.request_blocks import RequestBlocks
from brim.engine.requests.grammar import Grammar
from brim.engine.requests.params import MAX_ALTERNATIVES, MAX_TOP_LOGITS, SamplingParams
from brim.engine.requests.request import Request
from brim.engine.requests.sequence import Sequence

TOKEN = 1
EVERYTHING = SamplingParams(  # a sort, penalties, a bias, log-probabilities, kept logits and a grammar
    max_tokens=2,
    temperature=0.8,
    top_p=0.9,
    min_p=0.01,
    repetition_penalty=1.1,
    presence_penalty=0.5,
    frequency_penalty=0.5,
    logit_bias=((TOKEN, 1.0),),
    logprobs=MAX_ALTERNATIVES,
    top_k_logits=MAX_TOP_LOGITS,
    grammar=Grammar.regex(".*"),
)


@dataclass(frozen=True, slots=True)
class SomeTokens:
    """A constraint that allows the first few tokens; on the device it is as large as any other."""

    allowed: np.ndarray = field(default_factory=lambda: np.array([255], dtype=np.uint8))
    fixed: bool = False

    def take(self, token: int) -> None:
        return None


def stress_sequence(number: int, length: int, params: SamplingParams, ledger: KvLedger) -> Sequence:
    """A request of so many tokens, with the blocks to hold them; its number is its slot."""
    blocks = ledger.open(number)
    fits = ledger.reserve(blocks, 0, length)
    assert fits, "a step is no larger than the pool"
    return request_of(number, length, params, blocks)


def request_of(slot: int, length: int, params: SamplingParams, blocks: RequestBlocks) -> Sequence:
    prompt = (TOKEN,) * length
    request = Request(f"stress-{slot}", prompt, params, seed=slot, max_tokens=params.max_tokens)
    constraint = None if params.grammar is None else SomeTokens()
    return Sequence(request, list(prompt), slot=slot, blocks=blocks, constraint=constraint)

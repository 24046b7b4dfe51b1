"""The weight of a batch: its predicted peak over its life. A pure function of records.

Two moments decide. While prompts are computed, a step is at its largest and the answers are still short; at the end,
every answer has grown to its last token. Speculation adds drafted tokens, which hold blocks and draw rows of logits
before it is known whether they are accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from brim.records.scaling import Scaling, StepPhase, StepShape
from brim.units import round_up

KvPrice = Callable[[int], int]  # bytes of so many KV tokens; never falls


@dataclass(frozen=True, slots=True)
class BatchLoad:
    """A batch, as sums over its requests. Tokens in the pool are rounded up to blocks, shared blocks counted once."""

    requests: int
    prompt_tokens: int  # of prompts, not computed yet
    held_tokens: int  # in the pool when all prompts are computed
    final_tokens: int  # in the pool when every answer has its last token
    longest: int  # tokens of the longest request at its end
    step_tokens: int  # most tokens of a step
    block_size: int
    drafted_tokens: int = 0  # by speculation, for each request and step


def weight_bytes(load: BatchLoad, scaling: Scaling | None, price: KvPrice) -> int:
    """The most bytes, KV and activation, that this batch holds until its last request has ended.

    Without laws (mode off) it weighs its blocks alone.
    """
    drafted = load.requests * round_up(load.drafted_tokens, load.block_size)
    at_end = price(load.final_tokens + drafted)
    if scaling is None:
        return at_end
    rows = load.requests * (1 + load.drafted_tokens)
    in_step = min(load.prompt_tokens + rows, load.step_tokens)
    generating = scaling.need_bytes(StepShape(StepPhase.NEXT_TOKEN, rows, rows, load.longest))
    if not load.prompt_tokens:
        return at_end + generating
    prefill = scaling.need_bytes(StepShape(StepPhase.PREFILL, rows, in_step, load.longest))
    return max(price(load.held_tokens + drafted) + prefill, at_end + generating)

"""What a batch with drafts weighs in bytes, by the laws of a fit: its KV cache and its largest step, of the limit.

In: the laws, the limit that they were found for, and the running requests. Without a fit there are no laws, and a batch
weighs its blocks alone.
"""

from __future__ import annotations

from collections.abc import Sequence as Requests
from dataclasses import dataclass
from math import inf

from brim.engine.requests.sequence import Sequence
from brim.guard.weight import BatchLoad, KvPrice, weight_bytes
from brim.records.scaling import Scaling
from brim.units import round_up


@dataclass(frozen=True, slots=True)
class FittedLimit:
    """The most that a batch may weigh, and how that is computed."""

    scaling: Scaling
    limit_bytes: int
    price: KvPrice  # bytes of so many KV tokens
    step_tokens: int  # most tokens of a step

    def share(self, load: BatchLoad) -> float:
        """The weight of a batch as a part of the limit; a limit that leaves nothing is always passed."""
        if self.limit_bytes <= 0:
            return inf
        return weight_bytes(load, self.scaling, self.price) / self.limit_bytes


def batch_load(
    running: Requests[Sequence], final_tokens: int, drafted_tokens: int, step_tokens: int, block_size: int
) -> BatchLoad:
    """The running requests as a load; `final_tokens` are those that they hold when each is at its end."""
    held = sum(round_up(max(one.length, one.prompt_length), block_size) for one in running)
    return BatchLoad(
        requests=len(running),
        prompt_tokens=sum(max(0, one.prompt_length - one.computed) for one in running),
        held_tokens=min(held, final_tokens),
        final_tokens=final_tokens,
        longest=max((one.longest for one in running), default=0),
        step_tokens=step_tokens,
        block_size=block_size,
        drafted_tokens=drafted_tokens,
    )

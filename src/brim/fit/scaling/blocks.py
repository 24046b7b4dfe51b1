"""The size of a KV cache from the laws alone, for engines that cannot be torn down and built again.

In: what is left of the device once everything but the KV cache and a step's activation is held. Out: the KV tokens for
which the largest step still fits beside them.
"""

from __future__ import annotations

from collections.abc import Iterable

from brim.fit.target import KvPrice, most_tokens_within
from brim.records.scaling import Scaling, StepShape


def kv_tokens_without_rebuild(
    left_bytes: int, scaling: Scaling, steps: Iterable[StepShape], price: KvPrice, most_tokens: int
) -> int:
    """The most KV tokens beside the largest of these steps; 0 if none fit."""
    return most_tokens_within(left_bytes - largest_need_bytes(scaling, steps), most_tokens, price)


def kv_share(left_bytes: int, scaling: Scaling, steps: Iterable[StepShape]) -> float:
    """The share of what is left that blocks may take; the rest is for the largest of these steps."""
    return max(0.0, 1 - largest_need_bytes(scaling, steps) / left_bytes) if left_bytes > 0 else 0.0


def largest_need_bytes(scaling: Scaling, steps: Iterable[StepShape]) -> int:
    return max((scaling.need_bytes(step) for step in steps), default=0)

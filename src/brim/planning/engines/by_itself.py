"""How an engine sizes its KV cache that is told nothing: the records between a start and its rule.

In: a `BareStart`. Out: an `OwnSize`. Each engine's file has its rule, as its sources and its documentation give it;
none of them was measured here (vLLM's was: `planning.vllm`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from brim.records.model import ModelSpec
from brim.records.plan import Device


@dataclass(frozen=True, slots=True)
class BareStart:
    """A start with the engine's own limits, but for those that were given. Bytes are those of a rank."""

    spec: ModelSpec
    device: Device
    ranks: int
    weights_bytes: int  # a draft's included
    step_bytes: Callable[[int], int]  # what a step of so many tokens takes
    max_len: int | None
    max_seqs: int | None
    batch_tokens: int | None
    graphs: bool
    media: bool

    @property
    def free_bytes(self) -> int:
        """Before weights are loaded."""
        return self.device.usable_bytes - self.device.context_bytes - self.device.neighbour_bytes


@dataclass(frozen=True, slots=True)
class OwnSize:
    """What an engine gives to its KV cache."""

    kv_bytes: int  # states included; 0 or less: it does not start
    fraction: float  # of memory, by its own option
    activation_bytes: int  # what it keeps or counts for a step
    max_len: int
    most_tokens: int | None = None  # beyond which it takes no KV
    holds_a_step: bool = True  # False: it tries a step at its start, and that does not fit

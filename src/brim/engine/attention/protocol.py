"""The interface of an attention backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from brim.engine.device.layout import StepLayout
from brim.engine.kv.tensors import LayerCache

if TYPE_CHECKING:
    import torch


class AttentionBackend(Protocol):
    """Writes new keys and values into the pool, and attends over the pool.

    A step is one call of `prepare`, and then a `store` and an `attend` for each layer. Layers that reuse the keys and
    values of others store nothing, and causal layers get a layout without `visible_until`.
    """

    def prepare(self, layout: StepLayout) -> None:
        """Compute what all layers of a step share, once.

        Also called when a decode step is captured in a CUDA graph, but not when it is replayed: device work is replayed
        with the step; decisions on the host must be valid for any lengths of a batch of that size.
        """

    def store(self, cache: LayerCache, key: torch.Tensor, value: torch.Tensor, write_slots: torch.Tensor) -> None: ...

    def attend(
        self, query: torch.Tensor, cache: LayerCache, table: torch.Tensor, layout: StepLayout, rule: AttentionRule
    ) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True, eq=False)
class AttentionRule:
    """The parameters of a layer's attention."""

    scale: float
    window: int | None
    softcap: float | None
    sinks: torch.Tensor | None
    block_size: int

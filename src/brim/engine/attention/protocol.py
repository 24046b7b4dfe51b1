"""What the engine asks of an attention backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from brim.engine.device.layout import StepLayout
from brim.engine.kv.tensors import LayerCache

if TYPE_CHECKING:
    import torch


class AttentionBackend(Protocol):
    """Writes new keys and values into the pool, and attends over what is there.

    A step is one call of `prepare`, and then a `store` and an `attend` for each layer. Layers that borrow the keys and
    values of others store nothing, and layers that do not look ahead are given a layout without `visible_until`.
    """

    def prepare(self, layout: StepLayout) -> None:
        """Work out what all layers of a step share, once.

        Also called when a decode step is captured in a CUDA graph, and not when that is replayed: what it does on the
        device is replayed with the step; what it decides on the host must hold for whatever lengths so many requests
        may have.
        """

    def store(self, cache: LayerCache, key: torch.Tensor, value: torch.Tensor, write_slots: torch.Tensor) -> None: ...

    def attend(
        self, query: torch.Tensor, cache: LayerCache, table: torch.Tensor, layout: StepLayout, rule: AttentionRule
    ) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True, eq=False)
class AttentionRule:
    """What a layer's attention is."""

    scale: float
    window: int | None
    softcap: float | None
    sinks: torch.Tensor | None
    block_size: int

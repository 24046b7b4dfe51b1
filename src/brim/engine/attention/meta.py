"""Attention on the meta device: allocates what Brim's kernels allocate, and computes nothing. For engine traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from brim.engine.attention.protocol import AttentionRule
    from brim.engine.device.layout import StepLayout
    from brim.engine.kv.tensors import LayerCache


class MetaAttention:
    """The backend of the meta device: like the CUDA kernels, it allocates only the output."""

    def prepare(self, layout: StepLayout) -> None:
        pass

    def store(self, cache: LayerCache, key: torch.Tensor, value: torch.Tensor, write_slots: torch.Tensor) -> None:
        pass

    def attend(
        self, query: torch.Tensor, cache: LayerCache, table: torch.Tensor, layout: StepLayout, rule: AttentionRule
    ) -> torch.Tensor:
        return query.new_empty((*query.shape[:2], cache.values.shape[-1]))

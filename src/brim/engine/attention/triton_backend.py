"""Paged attention on CUDA, by Brim's Triton kernels.

Decodes and prefill chunks of a step have kernels of their own, which write into one output. Nothing of size
tokens × context is allocated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from brim.engine.attention.kernels.decode import decode
from brim.engine.attention.kernels.prefill import prefill
from brim.engine.attention.kernels.splits import DecodeParts, DecodeScratch, DecodeShape, SplitTable
from brim.engine.attention.kernels.store import store_kv
from brim.engine.attention.protocol import AttentionRule
from brim.engine.device.layout import StepLayout
from brim.engine.kv.geometry import LayerGeometry
from brim.engine.kv.tensors import LayerCache

if TYPE_CHECKING:
    import torch


class TritonAttention:
    """The backend of CUDA devices. Holds the scratch of split-K decode."""

    def __init__(
        self,
        layers: Sequence[LayerGeometry],
        batches: Iterable[int],
        max_length: int,
        device: torch.device,
        multiprocessors: int,
    ) -> None:
        """`batches`: every possible number of decodes in a step; `multiprocessors`: of the device."""
        shapes = [DecodeShape(layer.query_heads, layer.kv_heads, layer.value_dim, layer.window) for layer in layers]
        self._table = SplitTable.of(shapes, batches, max_length, multiprocessors)
        self._scratch = DecodeScratch.allocate(self._table.scratch, device)
        self._parts: Mapping[DecodeShape, DecodeParts] = {}  # of the step that is being run

    def prepare(self, layout: StepLayout) -> None:
        """The splits depend on the number of requests, not on their lengths, and so are valid for CUDA graphs too."""
        self._parts = self._table.by_batch[layout.decodes] if layout.decodes else {}

    def store(self, cache: LayerCache, key: torch.Tensor, value: torch.Tensor, write_slots: torch.Tensor) -> None:
        if cache.value_in_key:
            store_kv(key, None, cache.keys, None, write_slots)
        else:
            store_kv(key, value, cache.keys, cache.values, write_slots)

    def attend(
        self, query: torch.Tensor, cache: LayerCache, table: torch.Tensor, layout: StepLayout, rule: AttentionRule
    ) -> torch.Tensor:
        tokens, heads, _ = query.shape
        _, kv_heads, value_dim = cache.values.shape
        output = query.new_empty((tokens, heads, value_dim))
        decodes = layout.decodes
        if decodes:
            parts = self._parts[DecodeShape(heads, kv_heads, value_dim, rule.window)]
            decode(
                query[:decodes],
                cache.keys,
                cache.values,
                table,
                layout.decode_slots,
                layout.decode_lengths,
                block_size=rule.block_size,
                scale=rule.scale,
                window=rule.window,
                softcap=rule.softcap,
                sinks=rule.sinks,
                splits=parts.splits,
                shortest_part=parts.shortest_part,
                scratch=self._scratch,
                out=output[:decodes],
            )
        if layout.chunks:
            prefill(
                query[decodes:],
                cache.keys,
                cache.values,
                table,
                layout.chunk_slots,
                layout.chunk_starts,
                layout.chunk_lengths,
                max_q=layout.longest_chunk,
                block_size=rule.block_size,
                scale=rule.scale,
                window=rule.window,
                softcap=rule.softcap,
                sinks=rule.sinks,
                visible_until=layout.visible_until,
                out=output[decodes:],
            )
        return output

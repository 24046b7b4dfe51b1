"""Paged attention on CUDA, by Brim's Triton kernels.

The requests of a step that generate and those whose prompts are computed have kernels of their own; both write into
one output. Nothing as large as tokens × context is made.
"""

from __future__ import annotations

import torch

from brim.engine.attention.paged import AttentionRule
from brim.engine.attention.triton_decode import DecodeScratch, choose_splits, decode
from brim.engine.attention.triton_prefill import prefill
from brim.engine.attention.triton_store import store_kv
from brim.engine.kv.geometry import LayerGeometry
from brim.engine.kv.tensors import LayerCache
from brim.engine.step import StepLayout


class TritonAttention:
    """The backend of CUDA devices. Holds what decoding in parts needs beside the pool."""

    def __init__(
        self, layers: tuple[LayerGeometry, ...], max_batch: int, max_length: int, device: torch.device
    ) -> None:
        self._max_length = max_length
        self._multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        rows, width = 0, 0
        for layer in layers:
            for batch in range(1, max_batch + 1):
                splits = self._splits(batch, layer.kv_heads, layer.window)
                if splits > 1:
                    rows = max(rows, batch * layer.query_heads * splits)
            width = max(width, layer.value_dim)
        self._scratch = DecodeScratch(
            partials=torch.empty(rows * width, dtype=torch.float32, device=device),
            stats=torch.empty(rows * 2, dtype=torch.float32, device=device),
        )

    def _splits(self, batch: int, kv_heads: int, window: int | None) -> int:
        context = self._max_length if window is None else min(window, self._max_length)
        return choose_splits(batch, kv_heads, context, self._multiprocessors)

    def store(self, cache: LayerCache, key: torch.Tensor, value: torch.Tensor, write_slots: torch.Tensor) -> None:
        if cache.value_in_key:
            store_kv(key, None, cache.keys, None, write_slots)
        else:
            store_kv(key, value, cache.keys, cache.values, write_slots)

    def attend(
        self, query: torch.Tensor, cache: LayerCache, table: torch.Tensor, layout: StepLayout, rule: AttentionRule
    ) -> torch.Tensor:
        output = query.new_empty((*query.shape[:2], cache.values.shape[-1]))
        decodes = layout.decodes
        if decodes:
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
                splits=self._splits(decodes, cache.keys.shape[1], rule.window),
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

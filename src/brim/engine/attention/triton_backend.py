"""Paged attention on CUDA, by Brim's Triton kernels.

The requests of a step that generate and those whose prompts are computed have kernels of their own; both write into
one output. Nothing as large as tokens × context is made.
"""

from __future__ import annotations

import torch

from brim.engine.attention.kernels.decode import decode
from brim.engine.attention.kernels.prefill import prefill
from brim.engine.attention.kernels.splits import DecodeScratch, choose_splits
from brim.engine.attention.kernels.store import store_kv
from brim.engine.attention.kernels.tiles import MOST_TILE_HEADS
from brim.engine.attention.protocol import AttentionRule
from brim.engine.device.layout import StepLayout
from brim.engine.kv.geometry import LayerGeometry
from brim.engine.kv.tensors import LayerCache
from brim.units import MIB, ceil_div

_FP32_BYTES = 4
_LARGEST_SCRATCH_BYTES = 256 * MIB


class TritonAttention:
    """The backend of CUDA devices. Holds what decoding in parts needs beside the pool."""

    def __init__(
        self, layers: tuple[LayerGeometry, ...], max_batch: int, max_length: int, device: torch.device
    ) -> None:
        self._max_length = max_length
        self._multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        partials = stats = 0
        for layer in layers:
            for batch in range(1, max_batch + 1):
                splits = self._splits(batch, layer.query_heads, layer.kv_heads, layer.value_dim, layer.window)
                if splits > 1:
                    rows = batch * layer.query_heads * splits
                    partials, stats = max(partials, rows * layer.value_dim), max(stats, rows * 2)
        self._scratch = DecodeScratch(
            partials=torch.empty(partials, dtype=torch.float32, device=device),
            stats=torch.empty(stats, dtype=torch.float32, device=device),
        )

    def _splits(self, batch: int, heads: int, kv_heads: int, value_dim: int, window: int | None) -> int:
        """Parts that requests are cut into: as many as keep the device busy, within what the scratch may be."""
        context = self._max_length if window is None else min(window, self._max_length)
        tiles = ceil_div(heads // kv_heads, MOST_TILE_HEADS)  # of heads that share keys
        splits = choose_splits(batch, kv_heads * tiles, context, self._multiprocessors)
        while splits > 1 and batch * heads * splits * value_dim * _FP32_BYTES > _LARGEST_SCRATCH_BYTES:
            splits //= 2
        return splits

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
                splits=self._splits(decodes, heads, kv_heads, value_dim, rule.window),
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

"""Paged attention in plain torch: the blocks of a request are gathered for scaled-dot-product attention.

Runs on any device, and is what the CPU uses. Queries are taken in slices, so that no mask is larger than slice ×
context.
"""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from brim.engine.attention.protocol import AttentionRule
from brim.engine.device.layout import StepLayout
from brim.engine.kv.tensors import LayerCache

_QUERIES_AT_ONCE = 128


class ReferenceAttention:
    """The backend without kernels of its own."""

    def __init__(self) -> None:
        self._decodes: list[tuple[int, int]] = []  # slot and length of each decode of this step

    def prepare(self, layout: StepLayout) -> None:
        """Read slots and lengths back once: on a GPU, each read is a synchronisation."""
        self._decodes = list(zip(layout.decode_slots.tolist(), layout.decode_lengths.tolist(), strict=True))

    def store(self, cache: LayerCache, key: torch.Tensor, value: torch.Tensor, write_slots: torch.Tensor) -> None:
        cache.keys[write_slots] = _stored(key, cache.keys.dtype)
        if not cache.value_in_key:
            cache.values[write_slots] = _stored(value, cache.values.dtype)

    def attend(
        self, query: torch.Tensor, cache: LayerCache, table: torch.Tensor, layout: StepLayout, rule: AttentionRule
    ) -> torch.Tensor:
        output = query.new_empty((*query.shape[:2], cache.values.shape[-1]))
        assert len(self._decodes) == layout.decodes, "a step is prepared before its layers run"
        for row, (slot, length) in enumerate(self._decodes):
            output[row : row + 1] = _one(query[row : row + 1], cache, table[slot], length, None, rule)
        for chunk in layout.chunks:
            here = slice(chunk.start, chunk.start + chunk.length)
            until = layout.visible_until
            if until is not None:
                until = until[chunk.start - layout.decodes : chunk.start - layout.decodes + chunk.length]
            output[here] = _one(query[here], cache, table[chunk.slot], chunk.context + chunk.length, until, rule)
        return output


def _stored(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """In the type of the cache; 8-bit floats saturate."""
    if dtype.itemsize == 1:
        largest = torch.finfo(dtype).max
        tensor = tensor.clamp(-largest, largest)
    return tensor.to(dtype)


def _one(
    query: torch.Tensor,
    cache: LayerCache,
    table: torch.Tensor,
    length: int,
    visible_until: torch.Tensor | None,
    rule: AttentionRule,
) -> torch.Tensor:
    """The last queries of one request: [tokens, heads, dim]."""
    tokens = query.shape[0]
    first = 0
    if rule.window is not None:
        first = max(0, length - tokens - rule.window + 1) // rule.block_size * rule.block_size
    places = torch.arange(first, length, device=query.device)
    slots = table[places // rule.block_size].long() * rule.block_size + places % rule.block_size
    keys = cache.keys[slots].to(query.dtype).transpose(0, 1)
    values = cache.values[slots].to(query.dtype).transpose(0, 1)
    parts = []
    for start in range(0, tokens, _QUERIES_AT_ONCE):
        part = query[start : start + _QUERIES_AT_ONCE]
        positions = torch.arange(length - tokens + start, length - tokens + start + len(part), device=query.device)
        seen = places[None, :] <= positions[:, None]
        if rule.window is not None:
            seen &= places[None, :] > positions[:, None] - rule.window
        if visible_until is not None:
            until = visible_until[start : start + _QUERIES_AT_ONCE, None]
            seen |= (places[None, :] > positions[:, None]) & (places[None, :] <= until)
        parts.append(_scored(part.transpose(0, 1), keys, values, seen, rule).transpose(0, 1))
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _scored(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, seen: torch.Tensor, rule: AttentionRule
) -> torch.Tensor:
    if rule.softcap is None and rule.sinks is None:
        return scaled_dot_product_attention(
            query[None], keys[None], values[None], attn_mask=seen, scale=rule.scale, enable_gqa=True
        )[0]
    group = query.shape[0] // keys.shape[0]
    scores = query @ keys.repeat_interleave(group, 0).transpose(1, 2) * rule.scale
    if rule.softcap is not None:
        scores = rule.softcap * torch.tanh(scores / rule.softcap)
    scores = scores.masked_fill(~seen, float("-inf"))
    if rule.sinks is not None:
        sinks = rule.sinks.to(scores.dtype)[:, None, None].expand(-1, scores.shape[1], 1)
        weights = torch.cat([scores, sinks], -1).float().softmax(-1)[..., :-1]
    else:
        weights = scores.float().softmax(-1)
    return weights.to(query.dtype) @ values.repeat_interleave(group, 0)

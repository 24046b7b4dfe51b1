"""Paged attention in plain torch: the blocks of requests are gathered for scaled-dot-product attention.

Runs on any device, and is what the CPU uses. Decodes are computed together, padded to the longest of them, but no more
tokens at once than the longest request has: no step of decodes gathers more than a chunk of that request does. Chunks
are computed one by one, and their queries are taken in slices, so that no mask is larger than slice × context.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from brim.engine.attention.protocol import AttentionRule
from brim.engine.device.layout import StepLayout
from brim.engine.kv.tensors import LayerCache

_QUERIES_AT_ONCE = 128
_TOKENS_AT_ONCE = 4096  # of decodes, padding included


@dataclass(frozen=True, slots=True, eq=False)
class _Decodes:
    """Decodes that are computed together."""

    rows: slice | torch.Tensor  # of the step
    longest: int
    even: bool  # all are equally long


@dataclass(frozen=True, slots=True, eq=False)
class _Gathered:
    """Which tokens of the pool some decodes attend to."""

    slots: torch.Tensor  # int64 [decodes × tokens]
    seen: torch.Tensor | None  # bool [decodes, 1, 1, tokens]; None: all of them are


class ReferenceAttention:
    """The backend without kernels of its own."""

    def __init__(self, max_length: int = _TOKENS_AT_ONCE) -> None:
        self._tokens_at_once = min(max_length, _TOKENS_AT_ONCE)

    def prepare(self, layout: StepLayout) -> None:
        """Read lengths back once: on a GPU, each read is a synchronisation."""
        lengths = layout.decode_lengths.tolist()
        layout.shared[_Decodes] = tuple(_together(lengths, self._tokens_at_once, layout.decode_lengths.device))

    def store(self, cache: LayerCache, key: torch.Tensor, value: torch.Tensor, write_slots: torch.Tensor) -> None:
        cache.keys[write_slots] = _stored(key, cache.keys.dtype)
        if not cache.value_in_key:
            cache.values[write_slots] = _stored(value, cache.values.dtype)

    def attend(
        self, query: torch.Tensor, cache: LayerCache, table: torch.Tensor, layout: StepLayout, rule: AttentionRule
    ) -> torch.Tensor:
        together: tuple[_Decodes, ...] = layout.shared[_Decodes]
        if len(together) == 1 and not layout.chunks:
            return _attended(query, cache, _shared(together[0], table, layout, rule), rule)
        output = query.new_empty((*query.shape[:2], cache.values.shape[-1]))
        for decodes in together:
            gathered = (_shared if len(together) == 1 else _gathered)(decodes, table, layout, rule)
            output[decodes.rows] = _attended(query[decodes.rows], cache, gathered, rule)
        for chunk in layout.chunks:
            here = slice(chunk.start, chunk.start + chunk.length)
            until = layout.visible_until
            if until is not None:
                until = until[chunk.start - layout.decodes : chunk.start - layout.decodes + chunk.length]
            output[here] = _one(query[here], cache, table[chunk.slot], chunk.context + chunk.length, until, rule)
        return output


def _together(lengths: list[int], tokens_at_once: int, device: torch.device) -> Iterator[_Decodes]:
    """All decodes at once, if they are short; or else some of similar length at a time."""
    if not lengths:
        return
    longest = max(lengths)
    if longest * len(lengths) <= tokens_at_once:
        yield _Decodes(slice(0, len(lengths)), longest, min(lengths) == longest)
        return
    rows = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    while rows:
        longest = lengths[rows[0]]
        count = max(1, tokens_at_once // longest)
        some, rows = rows[:count], rows[count:]
        picked = torch.tensor(some, dtype=torch.int64, device=device)
        yield _Decodes(picked, longest, lengths[some[-1]] == longest)


def _shared(decodes: _Decodes, table: torch.Tensor, layout: StepLayout, rule: AttentionRule) -> _Gathered:
    """The same for all layers with this table and window: computed once, where it is for all decodes of a step."""
    key = (id(table), rule.window)
    found: _Gathered | None = layout.shared.get(key)
    if found is None:
        found = layout.shared[key] = _gathered(decodes, table, layout, rule)
    return found


def _gathered(decodes: _Decodes, table: torch.Tensor, layout: StepLayout, rule: AttentionRule) -> _Gathered:
    """The tokens of each decode, or of its window; where one has fewer than others, its last one again, unseen."""
    width = decodes.longest if rule.window is None else min(decodes.longest, rule.window)
    lengths = layout.decode_lengths[decodes.rows].long()[:, None]
    places = torch.arange(width, device=table.device)[None]
    if width < decodes.longest:
        places = places + (lengths - width).clamp_(min=0)
    seen = None if decodes.even else places < lengths
    places = places.minimum(lengths - 1)
    blocks = table[layout.decode_slots[decodes.rows][:, None], places // rule.block_size].long()
    slots = blocks.mul_(rule.block_size).add_(places % rule.block_size)
    return _Gathered(slots.view(-1), None if seen is None else seen[:, None, None])


def _attended(query: torch.Tensor, cache: LayerCache, gathered: _Gathered, rule: AttentionRule) -> torch.Tensor:
    """One query of each request: [decodes, heads, dim]. Heads that share keys are computed like tokens that do."""
    count, heads, _ = query.shape
    kv_heads = cache.keys.shape[1]
    grouped = query.reshape(count, kv_heads, heads // kv_heads, -1)
    keys = cache.keys.index_select(0, gathered.slots).to(query.dtype)
    keys = keys.view(count, -1, *keys.shape[1:]).transpose(1, 2)
    if cache.value_in_key:
        values = keys[..., : cache.values.shape[-1]]
    else:
        values = cache.values.index_select(0, gathered.slots).to(query.dtype)
        values = values.view(count, -1, *values.shape[1:]).transpose(1, 2)
    sinks = None if rule.sinks is None else rule.sinks.view(kv_heads, -1, 1)
    return _scored(grouped, keys, values, gathered.seen, sinks, rule).flatten(1, 2)


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
        sinks = None if rule.sinks is None else rule.sinks[:, None, None]
        parts.append(
            _scored(part.transpose(0, 1)[None], keys[None], values[None], seen, sinks, rule)[0].transpose(0, 1)
        )
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _scored(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    seen: torch.Tensor | None,
    sinks: torch.Tensor | None,
    rule: AttentionRule,
) -> torch.Tensor:
    """[requests, heads, tokens, dim] in and out; `sinks` are by head and, where they differ, by token."""
    if rule.softcap is None and sinks is None:
        return scaled_dot_product_attention(
            query, keys, values, attn_mask=seen, scale=rule.scale, enable_gqa=query.shape[1] != keys.shape[1]
        )
    group = query.shape[1] // keys.shape[1]
    if group > 1:
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scores = query @ keys.transpose(2, 3) * rule.scale
    if rule.softcap is not None:
        scores = rule.softcap * torch.tanh(scores / rule.softcap)
    if seen is not None:
        scores = scores.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        added = sinks.to(scores.dtype).expand(*scores.shape[:3], 1)
        weights = torch.cat([scores, added], -1).float().softmax(-1)[..., :-1]
    else:
        weights = scores.float().softmax(-1)
    return weights.to(query.dtype) @ values

"""What each attention layer stores per token, as records.

Layers with the same window share block tables: a `LayerGroup`. A layer may reuse the keys and values of an earlier
one (`lender`); it then stores none of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from brim.units import ceil_div


@dataclass(frozen=True, slots=True)
class LayerGeometry:
    """The cache of one attention layer, as found by running its code."""

    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    lender: int | None = None  # the number of the layer whose keys and values this one reads
    query_heads: int = 0
    value_in_key: bool = False  # the value is the first part of the key, and not kept a second time

    @property
    def elements_per_token(self) -> int:
        if self.lender is not None:
            return 0
        return self.kv_heads * (self.key_dim + (0 if self.value_in_key else self.value_dim))


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers with the same window, which share block tables."""

    window: int | None
    layers: tuple[int, ...]
    elements_per_token: int

    def first_block_needed(self, position: int, block_size: int) -> int:
        """The first block that a query at this position attends to."""
        if self.window is None:
            return 0
        return max(0, position - self.window + 1) // block_size

    def blocks_seen(self, block_size: int) -> int | None:
        """How many of the blocks before it the first token of a block attends to, at most; None: all of them."""
        return None if self.window is None else ceil_div(self.window - 1, block_size)


def group_layers(layers: tuple[LayerGeometry, ...]) -> tuple[LayerGroup, ...]:
    """Layers by window: full attention first, then the windows from the widest."""
    windows = {layer.window for layer in layers}
    ordered = sorted(windows, key=lambda window: (window is not None, -(window or 0)))
    return tuple(_group(layers, window) for window in ordered)


def _group(layers: tuple[LayerGeometry, ...], window: int | None) -> LayerGroup:
    members = tuple(number for number, layer in enumerate(layers) if layer.window == window)
    return LayerGroup(window, members, sum(layers[number].elements_per_token for number in members))


@dataclass(frozen=True, slots=True)
class KvShape:
    """How large the pool of each group is, for a number of KV tokens."""

    kv_tokens: int
    block_size: int
    blocks: tuple[int, ...]  # by group, without the scratch block

    def bytes(self, groups: tuple[LayerGroup, ...], element_bytes: int) -> int:
        """All keys and values, the scratch block of each group included."""
        return sum(
            (count + 1) * self.block_size * group.elements_per_token * element_bytes
            for count, group in zip(self.blocks, groups, strict=True)
        )


def pool_shape(
    groups: tuple[LayerGroup, ...],
    kv_tokens: int,
    block_size: int,
    max_batch: int,
    max_batch_tokens: int,
    cached_from: int | None = None,
) -> KvShape:
    """Blocks of each group: full attention stores every token, windows only what running requests hold.

    `cached_from` is the most tokens that running requests can hold: those beyond it are prefix cache, with blocks in
    every group. A prefix is reused only while the window before its end is cached, and every computed token passes
    through the windows' pools: a smaller pool would have evicted it before the full group.
    None: no prefix caching, and windows need no more than running requests hold.
    """
    cached = 0 if cached_from is None else max(0, kv_tokens - cached_from)
    blocks = []
    for group in groups:
        tokens = kv_tokens
        if group.window is not None:
            kept = max_batch * (group.window + block_size)  # every request's window, which may begin inside a block
            step = max_batch_tokens + max_batch * block_size  # and the tokens of the step that is being computed
            tokens = min(kv_tokens - cached, kept + step) + cached
        blocks.append(ceil_div(tokens, block_size))
    return KvShape(kv_tokens, block_size, tuple(blocks))

"""vLLM's KV pool: bytes to blocks, blocks to tokens, and what a request takes of them.

In: a spec, the KV type, and how many ranks share it. Out: a `Pool`. A block has one size for all layers, and layers of
different kinds (full, each window, recurrent) share the pool in groups of equally many layers, padded where they are
fewer, each with block tables of its own: a request takes blocks in every group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from brim.model.kv import KvFootprint, KvKind
from brim.model.weights import on_rank
from brim.planning.vllm.kernels import BLOCK_TOKENS, STEPS_IN_FLIGHT
from brim.planning.vllm.run import VllmRun
from brim.records.model import Dtype, KvCache, LayerSpec, ModelSpec
from brim.units import ceil_div, round_up

_CLOSE = 1.5  # kinds whose numbers of layers differ by less are padded to the larger number


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Layers that are paged alike: bytes of a page, the tokens it holds, and the window they see."""

    name: str
    layers: int
    page_bytes: int
    block_tokens: int
    window: int | None
    recurrent: bool


@dataclass(frozen=True, slots=True)
class Pool:
    """How KV is paged: bytes of a block over all the layers that share it."""

    kinds: tuple[LayerKind, ...]
    layers_per_group: int
    block_bytes: int
    block_tokens: int

    def blocks(self, kv_bytes: int) -> int:
        return max(0, kv_bytes) // self.block_bytes if self.block_bytes else 0

    def tokens(self, kv_bytes: int) -> int:
        """Blocks times the tokens of a block, although a request takes a block in every group."""
        return self.blocks(kv_bytes) * self.block_tokens

    def request_tokens(self, kv_bytes: int, run: VllmRun) -> int:
        """Tokens of requests of the longest context: what vLLM's log says."""
        return self.blocks(kv_bytes) * run.max_len // max(1, self.blocks_of_request(run) - 1)

    def blocks_of_request(self, run: VllmRun) -> int:
        """What a request of the longest context takes, over all groups; and the block that nobody gets."""
        return 1 + sum(self.groups(kind) * _blocks_of_kind(kind, run) for kind in self.kinds)

    def groups(self, kind: LayerKind) -> int:
        return ceil_div(kind.layers, self.layers_per_group)


def _blocks_of_kind(kind: LayerKind, run: VllmRun) -> int:
    if kind.recurrent:
        return 1
    if kind.window is None:
        return ceil_div(run.max_len, kind.block_tokens)
    kept = min(run.max_len, kind.window - 1 + STEPS_IN_FLIGHT * run.batch_tokens)
    return ceil_div(kept, kind.block_tokens) + 1


def in_groups(footprint: KvFootprint, spec: ModelSpec, ranks: int, in_flight_tokens: int) -> KvFootprint:
    """What a request takes of the pool, where layers of several kinds share it; as it was where there is one kind."""
    pool = kv_pool(spec, footprint.dtype, ranks)
    if len(pool.kinds) == 1 or any(kind.kind == "image" for kind in footprint.kinds):
        return footprint
    paged = [kind for kind in pool.kinds if not kind.recurrent]
    states = sum(pool.groups(kind) for kind in pool.kinds if kind.recurrent)
    return replace(
        footprint,
        kinds=tuple(_paged(kind, pool, in_flight_tokens) for kind in paged),
        state_bytes_per_request=states * pool.block_bytes,
    )


def _paged(kind: LayerKind, pool: Pool, in_flight_tokens: int) -> KvKind:
    """A block more than the window and the tokens in flight: neither begins where a block does."""
    window = kind.window
    if window is not None:
        window = round_up(window - 1 + in_flight_tokens, kind.block_tokens) + kind.block_tokens
    return KvKind(kind.name, kind.layers, pool.groups(kind) * pool.block_bytes, window, kind.block_tokens)


def kv_pool(spec: ModelSpec, kv_dtype: Dtype, ranks: int) -> Pool:
    """The pool of a model. Layers that keep the same tokens are one group, whatever their widths."""
    found = _kinds(spec, kv_dtype, ranks)
    windows = {kind.window for kind in found}
    if len(windows) <= 1 and not any(kind.recurrent for kind in found):
        return _one_group(found)
    largest = max(kind.page_bytes for kind in found)
    kinds = tuple(_enlarged(kind, largest) for kind in found)
    counts = [kind.layers for kind in kinds]
    group = max(counts) if max(counts) < min(counts) * _CLOSE else min(counts)
    tokens = min((kind.block_tokens for kind in kinds if not kind.recurrent), default=BLOCK_TOKENS)
    return Pool(kinds, group, group * largest, tokens)


def _one_group(found: tuple[LayerKind, ...]) -> Pool:
    """All layers with one block table, an indexer's beside those it serves: as if they were one wide layer."""
    page = sum(kind.layers * kind.page_bytes for kind in found)
    return Pool(tuple(replace(kind, layers=1, page_bytes=page) for kind in found[:1]), 1, page, BLOCK_TOKENS)


def _enlarged(kind: LayerKind, page_bytes: int) -> LayerKind:
    """A smaller page becomes a block of more tokens where that is a whole number, and is padded otherwise."""
    larger = 1 if kind.recurrent or page_bytes % kind.page_bytes else page_bytes // kind.page_bytes
    return replace(kind, page_bytes=page_bytes, block_tokens=kind.block_tokens * larger)


def _kinds(spec: ModelSpec, kv_dtype: Dtype, ranks: int) -> tuple[LayerKind, ...]:
    """Layers by window and width. Attention beside recurrent layers has blocks as large as a state."""
    counts: dict[tuple[int, int | None], int] = {}
    names: dict[tuple[int, int | None], str] = {}
    state_layers, state = 0, 0
    for layer, count in spec.layer_groups:
        for cache in layer.kv:
            key = (_token_bytes(cache, kv_dtype, ranks), cache.window)
            counts[key] = counts.get(key, 0) + count
            names.setdefault(key, cache.kind)
        if layer.state:
            state_layers += count
            state = max(state, _state_bytes(spec, layer, ranks))
    block = BLOCK_TOKENS
    if state and counts:
        block = round_up(ceil_div(state, max(size for size, _ in counts)), BLOCK_TOKENS)
    kinds = [
        LayerKind(names[size, window], count, size * block, block, window, recurrent=False)
        for (size, window), count in counts.items()
    ]
    if state_layers:
        page = max((kind.page_bytes for kind in kinds), default=state)
        kinds.append(LayerKind("recurrent", state_layers, page, block, None, recurrent=True))
    return tuple(kinds)


def _token_bytes(cache: KvCache, kv_dtype: Dtype, ranks: int) -> int:
    """Bytes a token takes in one layer."""
    elements = on_rank(cache.heads, cache.heads, ranks) * cache.elements_per_head
    return max(1, elements * kv_dtype.bytes // cache.stride)


def _state_bytes(spec: ModelSpec, layer: LayerSpec, ranks: int) -> int:
    return sum(on_rank(state.elements, state.units, ranks) * (state.dtype or spec.dtype).bytes for state in layer.state)

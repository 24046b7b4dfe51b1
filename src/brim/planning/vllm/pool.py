"""vLLM's KV pool: bytes to blocks, and blocks to tokens.

In: a spec and a run. Out: a `Pool`. A block has one size for all layers, and layers of different kinds (full, each
window, recurrent) share the pool in groups of equally many layers, each with block tables of its own. Tokens are
counted as vLLM counts them: blocks times the tokens of a block, although a request takes a block in every group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from brim.model.weights import on_rank
from brim.planning.vllm.kernels import BLOCK_TOKENS
from brim.planning.vllm.run import Run
from brim.records.model import KvCache, LayerSpec, ModelSpec
from brim.units import ceil_div, round_up

_CLOSE = 1.5  # kinds whose numbers of layers differ by less are padded to the larger number


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Layers that are paged alike: bytes of a page, the tokens it holds, and the window they see."""

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
        """What vLLM reports as tokens: blocks times the tokens of a block."""
        return self.blocks(kv_bytes) * self.block_tokens

    def blocks_of_request(self, run: Run) -> int:
        """What a request of the longest context takes, over all groups; and the block that nobody gets."""
        return 1 + sum(ceil_div(kind.layers, self.layers_per_group) * _blocks_of_kind(kind, run) for kind in self.kinds)


def _blocks_of_kind(kind: LayerKind, run: Run) -> int:
    if kind.recurrent:
        return 2  # the running state, and a copy at a block's boundary
    if kind.window is None:
        return ceil_div(run.max_len, kind.block_tokens)
    kept = min(run.max_len, kind.window - 1 + run.batch_tokens)
    return ceil_div(kept, kind.block_tokens) + 1


def kv_pool(spec: ModelSpec, run: Run) -> Pool:
    """The pool of a model. Layers that keep the same tokens are one group, whatever their widths."""
    found = _kinds(spec, run)
    windows = {kind.window for kind in found}
    if len(windows) <= 1 and not any(kind.recurrent for kind in found):
        return _one_group(found)
    largest = max(kind.page_bytes for kind in found)
    kinds = tuple(_enlarged(kind, largest) for kind in found)
    counts = [kind.layers for kind in kinds]
    group = max(counts) if max(counts) < min(counts) * _CLOSE else min(counts)
    tokens = min(kind.block_tokens for kind in kinds if not kind.recurrent)
    return Pool(kinds, group, group * largest, tokens)


def _one_group(found: tuple[LayerKind, ...]) -> Pool:
    """All layers with one block table, an indexer's beside those it serves: as if they were one wide layer."""
    page = sum(kind.layers * kind.page_bytes for kind in found)
    return Pool(tuple(replace(kind, layers=1, page_bytes=page) for kind in found[:1]), 1, page, BLOCK_TOKENS)


def _enlarged(kind: LayerKind, page_bytes: int) -> LayerKind:
    """A smaller page becomes a block of more tokens where that is a whole number, and is padded otherwise."""
    larger = 1 if kind.recurrent or page_bytes % kind.page_bytes else page_bytes // kind.page_bytes
    return LayerKind(kind.layers, page_bytes, kind.block_tokens * larger, kind.window, kind.recurrent)


def _kinds(spec: ModelSpec, run: Run) -> tuple[LayerKind, ...]:
    """Layers by window and width. Attention beside recurrent layers has blocks as large as a state."""
    counts: dict[tuple[int, int | None], int] = {}
    state_layers, state = 0, 0
    for layer, count in spec.layer_groups:
        for cache in layer.kv:
            key = (_token_bytes(cache, run), cache.window)
            counts[key] = counts.get(key, 0) + count
        if layer.state:
            state_layers += count
            state = max(state, _state_bytes(spec, layer, run))
    block = BLOCK_TOKENS
    if state and counts:
        block = round_up(ceil_div(state, max(size for size, _ in counts)), BLOCK_TOKENS)
    kinds = [LayerKind(count, size * block, block, window, recurrent=False) for (size, window), count in counts.items()]
    if state_layers:
        kinds.append(
            LayerKind(state_layers, max((kind.page_bytes for kind in kinds), default=state), block, None, True)
        )
    return tuple(kinds)


def _token_bytes(cache: KvCache, run: Run) -> int:
    """Bytes a token takes in one layer."""
    elements = on_rank(cache.heads, cache.heads, run.ranks) * cache.elements_per_head
    return max(1, elements * run.kv_dtype.bytes // cache.stride)


def _state_bytes(spec: ModelSpec, layer: LayerSpec, run: Run) -> int:
    return sum(
        on_rank(state.elements, state.units, run.ranks) * (state.dtype or spec.dtype).bytes for state in layer.state
    )

"""What attention holds in a step of vLLM: its tensors, and partial outputs where a kernel splits the context.

In: a layer's attention, and a run. Out: bytes. FlashAttention 3 splits the context of short queries over all
multiprocessors, and keeps an output in fp32 for every part: for many short chunks of prompts behind long contexts this
is the largest thing in a step, and vLLM's profile skips attention. How many parts there are at most is decided before
lengths are known, for one long request, by how well they fill the device.

Checked on Hopper; other kernels (FlashAttention 2 and 4, FlashInfer) split decodes only, so this is their upper bound.
Does not know kernels of MLA, which has a moment of its own (`profile`).
"""

from __future__ import annotations

from functools import cache

from brim.model.weights import on_rank
from brim.planning.vllm.kernels import ELEMENT_BYTES, FP32_BYTES, MULTIPROCESSORS
from brim.planning.vllm.profile import hidden_bytes
from brim.planning.vllm.run import VllmRun
from brim.records.model import Attention, ModelSpec
from brim.units import ceil_div

_TILE_ROWS = 128  # queries of one KV head that a program multiplies at once
_TILE_KEYS, _TILE_KEYS_WIDE = 128, 64  # keys that it reads at a time, by the width of a head
_WIDE_HEAD = 128
_MOST_SPLITS = 128
_FULL_ENOUGH = 0.8  # share of the multiprocessors that are busy without splitting
_SHORT_CONTEXT_TILES = 4  # below which nothing is split
_NEARLY_BEST = 0.85  # the fewest splits that fill the device so well, as a share of the best


def attention_moment(spec: ModelSpec, run: VllmRun) -> int:
    """The most that any layer with attention holds while it attends."""
    found = {layer.mixer for layer, _ in spec.layer_groups if isinstance(layer.mixer, Attention)}
    return max((_tensors(spec, run, mixer) + _scratch(run, mixer) for mixer in found), default=0)


def _tensors(spec: ModelSpec, run: VllmRun, mixer: Attention) -> int:
    """The residual; queries, keys and values as projected; queries and keys as rotated; the output."""
    heads = on_rank(mixer.heads, mixer.heads, run.ranks)
    kv_heads = on_rank(mixer.kv_heads, mixer.kv_heads, run.ranks)
    queries = heads * mixer.head_dim
    projected = queries * (2 if mixer.gated else 1) + kv_heads * (mixer.head_dim + mixer.value_dim)
    rotated = queries + kv_heads * mixer.head_dim
    width = projected + rotated + heads * mixer.value_dim
    return hidden_bytes(spec, run) + run.batch_tokens * width * ELEMENT_BYTES


def _scratch(run: VllmRun, mixer: Attention) -> int:
    """Partial outputs and their log-sums in fp32, in the worst of all steps that the limits allow.

    By the length of its chunks: the longer they are, the fewer splits, and the more tokens the requests have together.
    """
    heads = on_rank(mixer.heads, mixer.heads, run.ranks)
    kv_heads = max(1, on_rank(mixer.kv_heads, mixer.kv_heads, run.ranks))
    context = run.max_len if mixer.window is None else min(run.max_len, mixer.window + _TILE_ROWS)
    keys = _TILE_KEYS if mixer.head_dim <= _WIDE_HEAD else _TILE_KEYS_WIDE
    split_tokens, tiles = 0, 1
    while (splits := most_splits(kv_heads * tiles, ceil_div(context, keys))) > 1:
        chunk = max(1, tiles * _TILE_ROWS // max(1, heads // kv_heads))  # the longest of so many tiles
        split_tokens = max(split_tokens, splits * min(run.batch_tokens, run.max_seqs * chunk))
        tiles += 1
    return split_tokens * heads * (mixer.value_dim + 1) * FP32_BYTES


@cache
def most_splits(tiles: int, context_tiles: int) -> int:
    """Parts of the context, for one request of so many tiles of queries: the fewest that nearly fill the device."""
    if tiles >= _FULL_ENOUGH * MULTIPROCESSORS or context_tiles <= _SHORT_CONTEXT_TILES:
        return 1
    filled = [
        (tiles * splits / MULTIPROCESSORS) / ceil_div(tiles * splits, MULTIPROCESSORS)
        for splits in range(1, min(_MOST_SPLITS, MULTIPROCESSORS, context_tiles) + 1)
    ]
    best = max(filled)
    return next(splits for splits, share in enumerate(filled, 1) if share >= _NEARLY_BEST * best)

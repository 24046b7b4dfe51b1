# ruff: noqa: N803 - compile-time arguments of kernels are written in capitals, as Triton's users know them
"""New keys and values into their slots of the paged cache, in one launch.

In: `key [tokens, kv_heads, key_dim]` and `value [tokens, kv_heads, value_dim]` as they leave the projection (any stride
between tokens and heads), and a slot for each token. Out: the slots are written; a negative slot is a token without
one (padding of a captured graph) and is left out. A float8 cache takes what fits into ±448 and clips the rest. Where
values are parts of keys there is no value to write.

Knows nothing of requests, tables or blocks.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

FLOAT8_MAX = tl.constexpr(448.0)  # float8_e4m3fn has no infinity: a larger value would become NaN
ELEMENTS_A_STEP = 4096  # of a token, moved at once: 32 for each of 128 threads, four 16-byte accesses in bf16


@triton.jit
def _store_token(
    source,
    cache,
    source_head_stride,
    cache_head_stride,
    HEADS: tl.constexpr,
    HEADS_A_STEP: tl.constexpr,
    DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    FLOAT8: tl.constexpr,
):
    """All heads of one token, from `source` to `cache`, both at the token's first element."""
    dims = tl.arange(0, PADDED_DIM)
    for first_head in tl.static_range(0, HEADS, HEADS_A_STEP):
        heads = first_head + tl.arange(0, HEADS_A_STEP)
        inside = (heads[:, None] < HEADS) & (dims[None, :] < DIM)
        moved = tl.load(source + heads[:, None] * source_head_stride + dims[None, :], mask=inside, other=0.0)
        if FLOAT8:
            moved = tl.minimum(tl.maximum(moved.to(tl.float32), -FLOAT8_MAX), FLOAT8_MAX)
        target = cache + heads[:, None] * cache_head_stride + dims[None, :]
        tl.store(target, moved.to(cache.dtype.element_ty), mask=inside)


@triton.jit
def _store_kernel(
    key,
    value,
    key_cache,
    value_cache,
    write_slots,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    key_slot_stride,
    key_cache_head_stride,
    value_slot_stride,
    value_cache_head_stride,
    HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    KEY_PADDED: tl.constexpr,
    KEY_HEADS_A_STEP: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    VALUE_HEADS_A_STEP: tl.constexpr,
    HAS_VALUE: tl.constexpr,
    FLOAT8: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(write_slots + token).to(tl.int64)  # 64 bits: a cache may hold more than 2**31 elements
    if slot < 0:
        return
    _store_token(
        key + token * key_token_stride,
        key_cache + slot * key_slot_stride,
        key_head_stride,
        key_cache_head_stride,
        HEADS,
        KEY_HEADS_A_STEP,
        KEY_DIM,
        KEY_PADDED,
        FLOAT8,
    )
    if HAS_VALUE:
        _store_token(
            value + token * value_token_stride,
            value_cache + slot * value_slot_stride,
            value_head_stride,
            value_cache_head_stride,
            HEADS,
            VALUE_HEADS_A_STEP,
            VALUE_DIM,
            VALUE_PADDED,
            FLOAT8,
        )


def store_kv(
    key: torch.Tensor,
    value: torch.Tensor | None,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor | None,
    write_slots: torch.Tensor,
    *,
    warps: int = 4,
) -> None:
    """Write the key and value of each token into its slot; tokens with a negative slot are left out.

    Neither value nor value cache: the values are parts of the keys.
    """
    tokens, heads, key_dim = key.shape
    assert (value is None) == (value_cache is None)
    has_value = value is not None
    if value is None or value_cache is None:
        value, value_cache = key, key_cache  # placeholders, not used
    value_dim = value.shape[2]
    assert value.shape[:2] == key.shape[:2]
    assert key_cache.shape[1:] == (heads, key_dim)
    assert value_cache.shape[1:] == (heads, value_dim)
    assert key_cache.dtype == value_cache.dtype
    assert write_slots.shape == (tokens,)
    assert key.stride(2) == value.stride(2) == key_cache.stride(2) == value_cache.stride(2) == 1
    if not tokens:
        return
    key_padded, value_padded = triton.next_power_of_2(key_dim), triton.next_power_of_2(value_dim)
    padded_heads = triton.next_power_of_2(heads)
    _store_kernel[(tokens,)](
        key,
        value,
        key_cache,
        value_cache,
        write_slots,
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        key_cache.stride(0),
        key_cache.stride(1),
        value_cache.stride(0),
        value_cache.stride(1),
        HEADS=heads,
        KEY_DIM=key_dim,
        KEY_PADDED=key_padded,
        KEY_HEADS_A_STEP=min(padded_heads, max(1, ELEMENTS_A_STEP // key_padded)),
        VALUE_DIM=value_dim,
        VALUE_PADDED=value_padded,
        VALUE_HEADS_A_STEP=min(padded_heads, max(1, ELEMENTS_A_STEP // value_padded)),
        HAS_VALUE=has_value,
        FLOAT8=key_cache.dtype == torch.float8_e4m3fn,
        num_warps=warps,
    )

# ruff: noqa: N803 - compile-time names of kernels are written in capitals, as Triton's users know them
"""Attention of one new token per request over its paged keys and values.

In: a query for each request, the pool of slots, the table that says which blocks a request holds, and the lengths. Out:
`[requests, heads, value_dim]` in the query's type. All that changes between steps is read from tensors in the kernel,
so a captured CUDA graph stays valid while lengths and tables change.

The work is bound by memory, and laid out for that: the query heads of a KV head share each load of its keys and values;
a long request is cut into parts that run side by side, whose results a second kernel joins in fp32.

Slots outside a request's visible positions are never read, and neither are their table entries. What has just been
computed must be in the cache already (`store`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from brim.engine.attention.kernels.rows import LOG2_E, MINUS_INFINITY, capped, first_state, load_rows, store_rows
from brim.engine.attention.kernels.splits import MAX_SPLITS, DecodeScratch, ScratchSize, choose_shortest_part
from brim.engine.attention.kernels.tiles import TileConfig, decode_config, split_dim


@triton.jit(
    do_not_specialize=["table_stride", "window", "splits", "shortest_part"],
    do_not_specialize_on_alignment=["rows", "kv_lens"],  # views, anywhere in a tensor
)
def _decode_kernel(
    out,
    partials,
    stats,
    query,
    key_cache,
    value_cache,
    table,
    rows,
    kv_lens,
    sinks,
    query_stride,
    query_head_stride,
    key_slot_stride,
    key_head_stride,
    value_slot_stride,
    value_head_stride,
    out_stride,
    out_head_stride,
    table_stride,
    scale,
    softcap,
    window,
    splits,
    shortest_part,
    GROUP: tl.constexpr,
    GROUP_TILES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    IN_PARTS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    KEY_FIRST: tl.constexpr,
    KEY_REST: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_FIRST: tl.constexpr,
    VALUE_REST: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    # KV heads are the fastest dimension of the grid: the heads of a slot lie side by side in memory, and programs that
    # run at the same time then read neighbouring addresses.
    kv_head = tl.program_id(0) // GROUP_TILES
    request = tl.program_id(1)
    part = tl.program_id(2)
    members = (tl.program_id(0) % GROUP_TILES) * BLOCK_M + tl.arange(0, BLOCK_M)
    in_group = members < GROUP
    heads = kv_head * GROUP + members

    # Positions begin..kv_len are visible, in whole tiles; a request has as many parts as are worth it, of equal length.
    kv_len = tl.load(kv_lens + request)
    begin = 0
    if HAS_WINDOW:
        begin = tl.maximum(kv_len - window, 0)
    first_tile = begin // BLOCK_N
    tiles = tl.cdiv(kv_len, BLOCK_N) - first_tile
    parts = tl.minimum(tl.maximum((kv_len - begin) // shortest_part, 1), splits)
    turn = tl.minimum(part, parts)  # parts beyond the last are empty: they begin and end at its end
    part_begin = (first_tile + tiles * turn // parts) * BLOCK_N
    part_end = (first_tile + tiles * tl.minimum(part + 1, parts) // parts) * BLOCK_N

    query_offsets = request.to(tl.int64) * query_stride + heads.to(tl.int64) * query_head_stride
    query_first = load_rows(query, query_offsets, in_group, KEY_DIM, 0, KEY_FIRST, True)
    if KEY_REST > 0:
        query_rest = load_rows(query, query_offsets, in_group, KEY_DIM, KEY_FIRST, KEY_REST, True)
    key_base = key_cache + kv_head * key_head_stride
    value_base = value_cache + kv_head * value_head_stride
    table_row = table + tl.load(rows + request).to(tl.int64) * table_stride

    # Scores stay in the units of q·k (or of the cap) and `exponent` takes them to powers of two: one multiply-add each.
    exponent = scale * LOG2_E
    if HAS_SOFTCAP:
        exponent = LOG2_E * 1.0
    row_max, row_sum = first_state(sinks, heads, in_group, exponent, HAS_SINKS, BLOCK_M)
    if IN_PARTS and HAS_SINKS:  # the sink counts once
        row_max = tl.where(part == 0, row_max, MINUS_INFINITY)
        row_sum = tl.where(part == 0, row_sum, 0.0)
    out_first = tl.zeros([BLOCK_M, VALUE_FIRST], tl.float32)
    if VALUE_REST > 0:
        out_rest = tl.zeros([BLOCK_M, VALUE_REST], tl.float32)

    # A tile's table entries are loaded one tile ahead: keys then never wait for them, and all stages of the pipeline
    # are left to keys and values.
    ahead = part_begin + tl.arange(0, BLOCK_N)
    blocks = tl.load(table_row + ahead // BLOCK_SIZE, mask=(ahead >= begin) & (ahead < kv_len), other=0)
    for start in range(part_begin, part_end, BLOCK_N):
        positions = start + tl.arange(0, BLOCK_N)
        visible = (positions >= begin) & (positions < kv_len)
        slots = blocks.to(tl.int64) * BLOCK_SIZE + positions % BLOCK_SIZE
        ahead = positions + BLOCK_N
        blocks = tl.load(table_row + ahead // BLOCK_SIZE, mask=ahead < tl.minimum(kv_len, part_end), other=0)

        key_offsets = slots * key_slot_stride
        keys = load_rows(key_base, key_offsets, visible, KEY_DIM, 0, KEY_FIRST, True)
        products = tl.dot(query_first, tl.trans(keys).to(query_first.dtype), input_precision=PRECISION)
        if KEY_REST > 0:
            keys = load_rows(key_base, key_offsets, visible, KEY_DIM, KEY_FIRST, KEY_REST, True)
            products = tl.dot(query_rest, tl.trans(keys).to(query_first.dtype), products, input_precision=PRECISION)
        if HAS_SOFTCAP:
            products = capped(products, scale, softcap)
        products = tl.where(visible[None, :], products, MINUS_INFINITY)

        # Every tile has a visible position, so the new maximum is finite.
        new_max = tl.maximum(row_max, tl.max(products, 1))
        faded = tl.exp2((row_max - new_max) * exponent)
        weights = tl.exp2(products * exponent - (new_max * exponent)[:, None])
        row_sum = row_sum * faded + tl.sum(weights, 1)
        row_max = new_max

        value_offsets = slots * value_slot_stride
        weights = weights.to(query_first.dtype)
        values = load_rows(value_base, value_offsets, visible, VALUE_DIM, 0, VALUE_FIRST, True)
        out_first = tl.dot(weights, values.to(query_first.dtype), out_first * faded[:, None], input_precision=PRECISION)
        if VALUE_REST > 0:
            values = load_rows(value_base, value_offsets, visible, VALUE_DIM, VALUE_FIRST, VALUE_REST, True)
            out_rest = tl.dot(
                weights, values.to(query_first.dtype), out_rest * faded[:, None], input_precision=PRECISION
            )

    total = tl.where(row_sum > 0, row_sum, 1.0)[:, None]  # a request without positions gives zeros
    if IN_PARTS:
        # A part without positions leaves its sum only; the joining kernel then does not read the rest.
        indices = (request.to(tl.int64) * (tl.num_programs(0) // GROUP_TILES) * GROUP + heads) * splits + part
        tl.store(stats + indices * 2, row_max * exponent, mask=in_group)
        tl.store(stats + indices * 2 + 1, row_sum, mask=in_group)
        target, offsets, kept = partials, indices * VALUE_DIM, in_group & (row_sum > 0)
    else:
        target, offsets, kept = out, request.to(tl.int64) * out_stride + heads * out_head_stride, in_group
    store_rows(target, offsets, kept, out_first / total, VALUE_DIM, 0, VALUE_FIRST)
    if VALUE_REST > 0:
        store_rows(target, offsets, kept, out_rest / total, VALUE_DIM, VALUE_FIRST, VALUE_REST)


@triton.jit
def _join_kernel(
    out,
    partials,
    stats,
    out_stride,
    out_head_stride,
    SPLITS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """The parts of one head of one request, weighted by their share of the softmax's sum."""
    head = tl.program_id(0)
    request = tl.program_id(1).to(tl.int64)
    dims = tl.program_id(2) * BLOCK_D + tl.arange(0, BLOCK_D)
    indices = (request * tl.num_programs(0) + head) * SPLITS + tl.arange(0, SPLITS)
    part_max = tl.load(stats + indices * 2)
    part_sum = tl.load(stats + indices * 2 + 1)
    written = part_sum > 0
    overall = tl.max(tl.where(written, part_max, MINUS_INFINITY), 0)
    share = tl.where(written, part_sum * tl.exp2(tl.where(written, part_max - overall, 0.0)), 0.0)
    total = tl.sum(share, 0)
    parts = tl.load(
        partials + indices[:, None] * VALUE_DIM + dims[None, :],
        mask=written[:, None] & (dims < VALUE_DIM)[None, :],
        other=0.0,
    )
    joined = tl.sum(parts * share[:, None], 0) / tl.where(total > 0, total, 1.0)
    target = out + request * out_stride + head * out_head_stride + dims
    tl.store(target, joined.to(out.dtype.element_ty), mask=dims < VALUE_DIM)


def decode(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    table: torch.Tensor,
    rows: torch.Tensor,
    kv_lens: torch.Tensor,
    *,
    block_size: int,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    splits: int = 1,
    scratch: DecodeScratch | None = None,
    out: torch.Tensor | None = None,
    config: TileConfig | None = None,
    shortest_part: int | None = None,
) -> torch.Tensor:
    """[requests, heads, value_dim]: each query at its request's last position attends to all that it may see.

    `splits` is the most parts a request is cut into; a request shorter than two parts of `shortest_part` positions
    stays whole. With `splits` above 1 and no `scratch`, one is allocated. A length of 0 gives zeros.
    """
    batch, heads, key_dim = query.shape
    kv_heads, value_dim = value_cache.shape[1:]
    group = heads // kv_heads
    assert heads == group * kv_heads
    assert key_cache.shape[1:] == (kv_heads, key_dim)
    assert rows.shape == kv_lens.shape == (batch,)
    assert query.stride(2) == key_cache.stride(2) == value_cache.stride(2) == table.stride(1) == 1
    assert block_size & (block_size - 1) == 0
    assert 1 <= splits <= MAX_SPLITS
    assert splits & (splits - 1) == 0
    if out is None:
        out = torch.empty((batch, heads, value_dim), dtype=query.dtype, device=query.device)
    if not batch:
        return out
    if config is None:
        config = decode_config(key_dim, value_dim, group, query.dtype, key_cache.dtype)
    if shortest_part is None:
        shortest_part = choose_shortest_part(batch, kv_heads, _multiprocessors(query.device))
    if splits > 1:
        size = ScratchSize.of_call(batch, heads, value_dim, splits)
        scratch = scratch or DecodeScratch.allocate(size, query.device)
        assert scratch.holds(size), "the scratch was allocated for less"
    else:
        scratch = None
    key_split, value_split = split_dim(key_dim), split_dim(value_dim)
    group_tiles = triton.cdiv(group, config.block_m)
    _decode_kernel[(kv_heads * group_tiles, batch, splits)](
        out,
        scratch.partials if scratch else None,
        scratch.stats if scratch else None,
        query,
        key_cache,
        value_cache,
        table,
        rows,
        kv_lens,
        sinks,
        query.stride(0),
        query.stride(1),
        key_cache.stride(0),
        key_cache.stride(1),
        value_cache.stride(0),
        value_cache.stride(1),
        out.stride(0),
        out.stride(1),
        table.stride(0),
        scale,
        softcap or 0.0,
        window or 0,
        splits,
        shortest_part,
        GROUP=group,
        GROUP_TILES=group_tiles,
        BLOCK_SIZE=block_size,
        HAS_WINDOW=window is not None,
        HAS_SOFTCAP=softcap is not None,
        HAS_SINKS=sinks is not None,
        IN_PARTS=splits > 1,
        KEY_DIM=key_dim,
        KEY_FIRST=key_split.first,
        KEY_REST=key_split.rest,
        VALUE_DIM=value_dim,
        VALUE_FIRST=value_split.first,
        VALUE_REST=value_split.rest,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        num_warps=config.warps,
        num_stages=config.stages,
        maxnreg=config.max_registers,
    )
    if scratch is not None:
        block_d = min(128, triton.next_power_of_2(value_dim))
        _join_kernel[(heads, batch, triton.cdiv(value_dim, block_d))](
            out,
            scratch.partials,
            scratch.stats,
            out.stride(0),
            out.stride(1),
            SPLITS=splits,
            VALUE_DIM=value_dim,
            BLOCK_D=block_d,
            num_warps=4 if splits >= 16 else 1,
        )
    return out


def _multiprocessors(device: torch.device) -> int:
    """Of the device; 1 in Triton's interpreter, which has none."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1

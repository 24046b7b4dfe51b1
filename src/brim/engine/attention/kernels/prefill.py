# ruff: noqa: N803, N806 - compile-time names of kernels are written in capitals, as Triton's users know them
"""Attention of chunks of prompts over paged keys and values.

In: the tokens of several requests packed in one row, each request's being the last positions of what its table holds,
with their keys and values in the cache already (`store`). Out: `[tokens, heads, value_dim]` in the query's type.
A query sees its own position and those before it, within the window; inside a span that is seen as a whole (an image)
it sees ahead as far as `visible_until` says.

The rows of a tile are tokens × query heads of one KV head, so a short chunk fills a tile as well as a long one, and
little of it lies across the diagonal. Only tiles that hold an end of what some row sees are masked.

Slots that no query of a tile sees are not read, and neither are their table entries.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from brim.engine.attention.kernels.rows import LOG2_E, MINUS_INFINITY, capped, first_state, load_rows, store_rows
from brim.engine.attention.kernels.tiles import TileConfig, prefill_config, split_dim

REQUESTS_A_LOOK = tl.constexpr(128)  # starts of requests a program reads at once to find its own


@triton.jit
def _find_request(q_starts, requests, tile, TILE_TOKENS: tl.constexpr):
    """The request a tile is in, and which of its tiles it is (perhaps one past its last).

    Request s owns the tiles from `q_starts[s] // TILE_TOKENS + s` on: always room enough, at most one tile too many,
    and nothing to be counted on the host.
    """
    request = -1
    for look in range(0, requests, REQUESTS_A_LOOK):
        candidates = look + tl.arange(0, REQUESTS_A_LOOK)
        first_tiles = tl.load(q_starts + candidates, mask=candidates < requests, other=0) // TILE_TOKENS + candidates
        request += tl.sum(((first_tiles <= tile) & (candidates < requests)).to(tl.int32), 0)
    return request, tile - tl.load(q_starts + request) // TILE_TOKENS - request


@triton.jit
def _attend(
    out_first,
    out_rest,
    row_max,
    row_sum,
    query_first,
    query_rest,
    key_base,
    value_base,
    table_row,
    key_slot_stride,
    value_slot_stride,
    begin,
    end,
    lowest,
    highest,
    sees_from,
    sees_to,
    scale,
    softcap,
    exponent,
    MASKED: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KEY_DIM: tl.constexpr,
    KEY_FIRST: tl.constexpr,
    KEY_REST: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_FIRST: tl.constexpr,
    VALUE_REST: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Go on with the softmax over the tiles of positions begin..end.

    MASKED: some row does not see some of these positions; those outside lowest..highest no row sees.
    """
    # A tile's table entries are loaded one tile ahead, as in decoding.
    ahead = begin + tl.arange(0, BLOCK_N)
    blocks = tl.load(table_row + ahead // BLOCK_SIZE, mask=(ahead >= lowest) & (ahead < highest), other=0)
    for start in range(begin, end, BLOCK_N):
        positions = start + tl.arange(0, BLOCK_N)
        live = (positions >= lowest) & (positions < highest)
        slots = blocks.to(tl.int64) * BLOCK_SIZE + positions % BLOCK_SIZE
        ahead = positions + BLOCK_N
        blocks = tl.load(table_row + ahead // BLOCK_SIZE, mask=(ahead >= lowest) & (ahead < highest), other=0)

        key_offsets = slots * key_slot_stride
        keys = load_rows(key_base, key_offsets, live, KEY_DIM, 0, KEY_FIRST, MASKED)
        products = tl.dot(query_first, tl.trans(keys).to(query_first.dtype), input_precision=PRECISION)
        if KEY_REST > 0:
            keys = load_rows(key_base, key_offsets, live, KEY_DIM, KEY_FIRST, KEY_REST, MASKED)
            products = tl.dot(query_rest, tl.trans(keys).to(query_first.dtype), products, input_precision=PRECISION)
        if HAS_SOFTCAP:
            products = capped(products, scale, softcap)
        if MASKED:
            seen = positions[None, :] < sees_to[:, None]
            if HAS_WINDOW:
                seen &= positions[None, :] >= sees_from[:, None]
            products = tl.where(seen, products, MINUS_INFINITY)

        new_max = tl.maximum(row_max, tl.max(products, 1))
        subtracted = new_max * exponent
        if MASKED:  # a row that has seen nothing yet: infinity less infinity is not a number
            subtracted = tl.where(new_max == MINUS_INFINITY, 0.0, subtracted)
        faded = tl.exp2(row_max * exponent - subtracted)
        weights = tl.exp2(products * exponent - subtracted[:, None])
        row_sum = row_sum * faded + tl.sum(weights, 1)
        row_max = new_max

        value_offsets = slots * value_slot_stride
        weights = weights.to(query_first.dtype)
        values = load_rows(value_base, value_offsets, live, VALUE_DIM, 0, VALUE_FIRST, MASKED)
        out_first = tl.dot(weights, values.to(query_first.dtype), out_first * faded[:, None], input_precision=PRECISION)
        if VALUE_REST > 0:
            values = load_rows(value_base, value_offsets, live, VALUE_DIM, VALUE_FIRST, VALUE_REST, MASKED)
            out_rest = tl.dot(
                weights, values.to(query_first.dtype), out_rest * faded[:, None], input_precision=PRECISION
            )
    return out_first, out_rest, row_max, row_sum


@triton.jit(
    do_not_specialize=["requests", "table_stride", "window"],
    do_not_specialize_on_alignment=["rows", "q_starts", "kv_lens", "visible_until"],  # views, anywhere in a tensor
)
def _prefill_kernel(
    out,
    query,
    key_cache,
    value_cache,
    table,
    rows,
    q_starts,
    kv_lens,
    sinks,
    visible_until,
    requests,
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
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    TILE_HEADS: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_SPANS: tl.constexpr,
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
    # Heads are the fastest part of the grid, as in decoding; then the tiles of each request, longest first, so that
    # the last programs to run are short.
    GROUP_TILES: tl.constexpr = (GROUP + TILE_HEADS - 1) // TILE_HEADS
    head_tile = tl.program_id(0) % (KV_HEADS * GROUP_TILES)
    request, tile = _find_request(q_starts, requests, tl.program_id(0) // (KV_HEADS * GROUP_TILES), TILE_TOKENS)
    q_start = tl.load(q_starts + request)
    q_len = tl.load(q_starts + request + 1) - q_start
    tiles = tl.cdiv(q_len, TILE_TOKENS)
    if tile >= tiles:
        return
    first_token = (tiles - 1 - tile) * TILE_TOKENS
    kv_len = tl.load(kv_lens + request)
    context = kv_len - q_len
    table_row = table + tl.load(rows + request).to(tl.int64) * table_stride

    # A row is a token and a query head of the KV head.
    kv_head = head_tile // GROUP_TILES
    row = tl.arange(0, BLOCK_M)
    token = first_token + row // TILE_HEADS
    member = (head_tile % GROUP_TILES) * TILE_HEADS + row % TILE_HEADS
    kept = (token < q_len) & (member < GROUP) & (row < TILE_TOKENS * TILE_HEADS)
    head = kv_head * GROUP + member
    query_offsets = (q_start + token).to(tl.int64) * query_stride + head.to(tl.int64) * query_head_stride
    query_first = load_rows(query, query_offsets, kept, KEY_DIM, 0, KEY_FIRST, True)
    query_rest = query_first
    if KEY_REST > 0:
        query_rest = load_rows(query, query_offsets, kept, KEY_DIM, KEY_FIRST, KEY_REST, True)

    # What each row sees: sees_from..sees_to. Rows that are not kept see what the last token does, at no cost.
    last_token = tl.minimum(first_token + TILE_TOKENS, q_len) - 1
    position = context + tl.minimum(token, last_token)
    sees_to = position + 1
    all_see_to = context + first_token + 1
    highest = context + last_token + 1
    if HAS_SPANS:
        until = tl.load(visible_until + q_start + tl.minimum(token, last_token))
        sees_to = tl.minimum(tl.maximum(sees_to, until + 1), kv_len)
        all_see_to = tl.min(sees_to, 0)
        highest = tl.max(sees_to, 0)
    sees_from = position * 0
    all_see_from = 0
    lowest = 0
    if HAS_WINDOW:
        sees_from = tl.maximum(position - window + 1, 0)
        all_see_from = tl.maximum(context + last_token - window + 1, 0)
        lowest = tl.maximum(context + first_token - window + 1, 0)

    # In whole tiles: some rows see begin..clear_from, all rows see clear_from..clear_to, some see clear_to..highest.
    begin = lowest // BLOCK_N * BLOCK_N
    clear_from = tl.cdiv(all_see_from, BLOCK_N) * BLOCK_N
    clear_to = tl.maximum(all_see_to // BLOCK_N * BLOCK_N, clear_from)

    exponent = scale * LOG2_E
    if HAS_SOFTCAP:
        exponent = LOG2_E * 1.0
    row_max, row_sum = first_state(sinks, head, kept, exponent, HAS_SINKS, BLOCK_M)
    out_first = tl.zeros([BLOCK_M, VALUE_FIRST], tl.float32)
    out_rest = row_sum  # a placeholder, not used
    if VALUE_REST > 0:
        out_rest = tl.zeros([BLOCK_M, VALUE_REST], tl.float32)
    key_base = key_cache + kv_head * key_head_stride
    value_base = value_cache + kv_head * value_head_stride
    for phase in tl.static_range(0 if HAS_WINDOW else 1, 3):
        out_first, out_rest, row_max, row_sum = _attend(
            out_first,
            out_rest,
            row_max,
            row_sum,
            query_first,
            query_rest,
            key_base,
            value_base,
            table_row,
            key_slot_stride,
            value_slot_stride,
            begin if phase == 0 else clear_from if phase == 1 else clear_to,
            tl.minimum(clear_from, highest) if phase == 0 else clear_to if phase == 1 else highest,
            lowest,
            highest,
            sees_from,
            sees_to,
            scale,
            softcap,
            exponent,
            phase != 1,
            HAS_WINDOW,
            HAS_SOFTCAP,
            BLOCK_SIZE,
            KEY_DIM,
            KEY_FIRST,
            KEY_REST,
            VALUE_DIM,
            VALUE_FIRST,
            VALUE_REST,
            PRECISION,
            BLOCK_N,
        )

    total = tl.where(row_sum > 0, row_sum, 1.0)[:, None]
    out_offsets = (q_start + token).to(tl.int64) * out_stride + head * out_head_stride
    store_rows(out, out_offsets, kept, out_first / total, VALUE_DIM, 0, VALUE_FIRST)
    if VALUE_REST > 0:
        store_rows(out, out_offsets, kept, out_rest / total, VALUE_DIM, VALUE_FIRST, VALUE_REST)


def prefill(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    table: torch.Tensor,
    rows: torch.Tensor,
    q_starts: torch.Tensor,
    kv_lens: torch.Tensor,
    *,
    max_q: int,
    block_size: int,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    visible_until: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    config: TileConfig | None = None,
) -> torch.Tensor:
    """[tokens, heads, value_dim]: the tokens of each request attend to what they may see of it.

    `max_q` (the longest chunk) only picks the tiles. Tokens past the last start, if any, are left as they are.
    """
    tokens, heads, key_dim = query.shape
    kv_heads, value_dim = value_cache.shape[1:]
    group = heads // kv_heads
    requests = rows.shape[0]
    assert heads == group * kv_heads
    assert key_cache.shape[1:] == (kv_heads, key_dim)
    assert q_starts.shape == (requests + 1,)
    assert kv_lens.shape == (requests,)
    assert query.stride(2) == key_cache.stride(2) == value_cache.stride(2) == table.stride(1) == 1
    assert block_size & (block_size - 1) == 0
    assert visible_until is None or visible_until.shape == (tokens,)
    if out is None:
        out = torch.empty((tokens, heads, value_dim), dtype=query.dtype, device=query.device)
    if not tokens or not requests:
        return out
    if config is None:
        config = prefill_config(key_dim, value_dim, max_q * group, query.dtype)
    key_split, value_split = split_dim(key_dim), split_dim(value_dim)
    tile_heads = min(group, config.block_m)
    tile_tokens = config.block_m // tile_heads
    head_tiles = kv_heads * triton.cdiv(group, tile_heads)
    _prefill_kernel[((tokens // tile_tokens + requests) * head_tiles,)](
        out,
        query,
        key_cache,
        value_cache,
        table,
        rows,
        q_starts,
        kv_lens,
        sinks,
        visible_until,
        requests,
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
        KV_HEADS=kv_heads,
        GROUP=group,
        TILE_HEADS=tile_heads,
        TILE_TOKENS=tile_tokens,
        BLOCK_SIZE=block_size,
        HAS_WINDOW=window is not None,
        HAS_SOFTCAP=softcap is not None,
        HAS_SINKS=sinks is not None,
        HAS_SPANS=visible_until is not None,
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
    return out

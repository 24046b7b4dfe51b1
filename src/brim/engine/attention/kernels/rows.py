# ruff: noqa: N803 - compile-time names of kernels are written in capitals, as Triton's users know them
"""What the kernels of decoding and of prompts share: rows loaded and stored, the soft-cap, and where a softmax starts.

A head dimension comes in two widths, a power of two and a rest (`tiles.split_dim`): a call moves one of them.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
MINUS_INFINITY = tl.constexpr(float("-inf"))


@triton.jit
def load_rows(base, offsets, kept, DIM: tl.constexpr, START: tl.constexpr, WIDTH: tl.constexpr, MASKED: tl.constexpr):
    """[rows, WIDTH] from `base`: elements START.. of rows that begin at `offsets`; zeros where a row is not kept."""
    dims = START + tl.arange(0, WIDTH)
    pointers = base + offsets[:, None] + dims[None, :]
    if START + WIDTH > DIM:
        if MASKED:
            loaded = tl.load(pointers, mask=kept[:, None] & (dims < DIM)[None, :], other=0.0)
        else:
            loaded = tl.load(pointers, mask=(dims < DIM)[None, :], other=0.0)
    elif MASKED:
        loaded = tl.load(pointers, mask=kept[:, None], other=0.0)
    else:
        loaded = tl.load(pointers)
    return loaded


@triton.jit
def store_rows(base, offsets, kept, rows, DIM: tl.constexpr, START: tl.constexpr, WIDTH: tl.constexpr):
    """The reverse of `load_rows`, in the type of `base`."""
    dims = START + tl.arange(0, WIDTH)
    mask = kept[:, None] & (dims < DIM)[None, :]
    tl.store(base + offsets[:, None] + dims[None, :], rows.to(base.dtype.element_ty), mask=mask)


@triton.jit
def capped(products, scale, softcap):
    """softcap * tanh(products * scale / softcap); tanh by way of exp2, which the hardware has."""
    doubled = products * (scale / softcap * 2 * LOG2_E)
    return softcap - 2 * softcap / (tl.exp2(doubled) + 1)


@triton.jit
def first_state(sinks, heads, kept, exponent, HAS_SINKS: tl.constexpr, BLOCK_M: tl.constexpr):
    """Maximum and sum of a softmax before any key: empty, or a sink that counts in the sum and has no value."""
    if HAS_SINKS:
        sink = tl.load(sinks + heads, mask=kept, other=0.0).to(tl.float32)
        row_max = sink * (LOG2_E / exponent)
        row_sum = tl.full([BLOCK_M], 1.0, tl.float32)
    else:
        row_max = tl.full([BLOCK_M], MINUS_INFINITY, tl.float32)
        row_sum = tl.zeros([BLOCK_M], tl.float32)
    return row_max, row_sum

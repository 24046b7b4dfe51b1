# ruff: noqa: N803 - compile-time names of kernels are written in capitals, as Triton's users know them
"""Scores of a piece of products in one kernel, that reads it once: maximum, sum of exponentials, rank, the largest.

In: float32 products [rows, columns] of hidden states with a part of the vocabulary. Out: the tensors of `Running`,
brought up to date in place. A program has a row, and nothing is joined afterwards. The matmul itself is left to cuBLAS:
its products are still in the device's cache when they are read here.

The largest logits are found by taking the maximum of a tile out, again and again, while it is above the least that is
kept. Once the first tiles have gone by, that is seldom.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from brim.engine.run.scoring.running import RunningScores
from brim.engine.weights.head import LogitsHead

LOG2_E = tl.constexpr(1.4426950408889634)
_BLOCK = 2048  # columns of a tile
_DOT_BLOCK = 1024
_SLOTS = (8, 32)  # room for the largest: few variants, so that few are compiled


@triton.jit
def _finished(products, bias, ids, inside, scale, cap, HAS_BIAS: tl.constexpr, HAS_CAP: tl.constexpr):
    """Logits from products, as `Head.finish_` makes them; tanh by way of exp2, which the hardware has."""
    if HAS_BIAS:
        products += tl.load(bias + ids, mask=inside, other=0.0).to(tl.float32)
    products *= scale
    if HAS_CAP:
        products = cap - 2 * cap / (tl.exp2(products * (2 * LOG2_E / cap)) + 1)
    return products


@triton.jit(
    do_not_specialize=["columns", "first", "kept"],
    do_not_specialize_on_alignment=["targets"],  # a view, anywhere in a tensor
)
def _take_kernel(
    pieces,
    bias,
    targets,
    reference,
    chosen,
    maximum,
    total,
    above,
    top_logits,
    top_tokens,
    stride,
    columns,
    first,
    kept,
    scale,
    cap,
    HAS_BIAS: tl.constexpr,
    HAS_CAP: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    base = pieces + row * stride
    target = tl.load(targets + row)
    limit = tl.load(reference + row)
    row_max = tl.load(maximum + row)
    row_sum = tl.load(total + row)
    larger = tl.load(above + row)
    slots = tl.arange(0, SLOTS)
    used = slots < kept
    values = tl.load(top_logits + row * kept + slots, mask=used, other=float("inf"))
    tokens = tl.load(top_tokens + row * kept + slots, mask=used, other=0)
    least = tl.min(values, 0)

    for start in range(0, columns, BLOCK):
        places = start + tl.arange(0, BLOCK)
        inside = places < columns
        ids = first + places
        products = tl.load(base + places, mask=inside, other=0.0)
        logits = _finished(products, bias, ids, inside, scale, cap, HAS_BIAS, HAS_CAP)
        logits = tl.where(inside, logits, float("-inf"))

        best = tl.max(logits, 0)
        new_max = tl.maximum(row_max, best)
        faded = tl.exp2((row_max - new_max) * LOG2_E)
        row_sum = row_sum * faded + tl.sum(tl.exp2((logits - new_max) * LOG2_E), 0)
        row_max = new_max
        larger += tl.sum(((logits > limit) & (ids != target)).to(tl.int32), 0)

        while best > least:
            place = tl.min(tl.where(logits == best, places, columns), 0)
            worst = tl.min(tl.where(values == least, slots, SLOTS), 0)
            values = tl.where(slots == worst, best, values)
            tokens = tl.where(slots == worst, first + place, tokens)
            least = tl.min(values, 0)
            logits = tl.where(places == place, float("-inf"), logits)
            best = tl.max(logits, 0)

    tl.store(maximum + row, row_max)
    tl.store(total + row, row_sum)
    tl.store(above + row, larger)
    tl.store(top_logits + row * kept + slots, values, mask=used)
    tl.store(top_tokens + row * kept + slots, tokens, mask=used)
    if (target >= first) & (target < first + columns):
        product = tl.load(base + (target - first))
        tl.store(chosen + row, _finished(product, bias, target, True, scale, cap, HAS_BIAS, HAS_CAP))


@triton.jit(do_not_specialize=["width"], do_not_specialize_on_alignment=["targets"])
def _reference_kernel(
    out,
    rows,
    weight,
    bias,
    targets,
    row_stride,
    weight_stride,
    width,
    scale,
    cap,
    HAS_BIAS: tl.constexpr,
    HAS_CAP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The logit of one token for each row: a product of two vectors, summed in float32."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    sums = tl.zeros([BLOCK], tl.float32)
    for start in range(0, width, BLOCK):
        places = start + tl.arange(0, BLOCK)
        inside = places < width
        given = tl.load(rows + row * row_stride + places, mask=inside, other=0.0).to(tl.float32)
        weights = tl.load(weight + target * weight_stride + places, mask=inside, other=0.0).to(tl.float32)
        sums += given * weights
    product = tl.sum(sums, 0)
    tl.store(out + row, _finished(product, bias, target, True, scale, cap, HAS_BIAS, HAS_CAP))


class TritonReduction:
    """Pieces reduced by these kernels."""

    element_bytes = 4  # products alone

    def reference(self, rows: torch.Tensor, targets: torch.Tensor, head: LogitsHead, memory: int) -> torch.Tensor:
        found = torch.empty(len(rows), dtype=torch.float32, device=rows.device)
        if len(rows):
            _reference_kernel[(len(rows),)](
                found,
                rows,
                head.weight,
                head.weight if head.bias is None else head.bias,
                targets,
                rows.stride(0),
                head.weight.stride(0),
                head.width,
                head.scale,
                1.0 if head.cap is None else head.cap,
                HAS_BIAS=head.bias is not None,
                HAS_CAP=head.cap is not None,
                BLOCK=_DOT_BLOCK,
            )
        return found

    def take(self, piece: torch.Tensor, first: int, head: LogitsHead, running: RunningScores) -> None:
        count = running.top_logits.shape[1]
        _take_kernel[(len(piece),)](
            piece,
            head.weight if head.bias is None else head.bias,
            running.targets,
            running.reference,
            running.chosen,
            running.maximum,
            running.total,
            running.above,
            running.top_logits,
            running.top_tokens,
            piece.stride(0),
            piece.shape[1],
            first,
            count,
            head.scale,
            1.0 if head.cap is None else head.cap,
            HAS_BIAS=head.bias is not None,
            HAS_CAP=head.cap is not None,
            SLOTS=next(slots for slots in _SLOTS if count <= slots),
            BLOCK=_BLOCK,
            num_warps=4,
        )

"""How many parts decode splits a request into (split-K), and the scratch for the results of the parts.

In: the shapes of a model's layers and the batch sizes that can occur. Out: `SplitTable`, which has for each of them
the splits and the size of the scratch, so the two cannot disagree. Plain Python and torch, without Triton, so it can be
tested without a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from brim.engine.attention.kernels.tiles import MOST_TILE_HEADS, power_of_two_below
from brim.units import MIB, ceil_div

MAX_SPLITS = 64
RESIDENT_PROGRAMS = 4  # an SM should have, so that one loads while another computes
SHORTEST_PART = 128  # positions; below it a part costs more to start than it saves
FULL_SHORTEST_PART = 512  # the same when the batch fills the device without splits
LONGEST_PART = 8192  # positions; one long request should not take much longer than all others
LARGEST_SCRATCH_BYTES = 256 * MIB
FP32_BYTES = 4


class DecodeShape(NamedTuple):
    """What a layer's splits depend on, besides the batch. A tuple: created and looked up by every layer of a step."""

    heads: int
    kv_heads: int
    value_dim: int
    window: int | None


@dataclass(frozen=True, slots=True)
class DecodeParts:
    """How the requests of a call are cut."""

    splits: int  # the most parts of a request; a power of two
    shortest_part: int  # positions; a request shorter than two of these stays whole


@dataclass(frozen=True, slots=True)
class ScratchSize:
    """Elements of fp32 that the parts of a call leave behind."""

    partials: int  # outputs of parts
    stats: int  # their maxima and sums

    @classmethod
    def of_call(cls, batch: int, heads: int, value_dim: int, splits: int) -> ScratchSize:
        """A request that is not cut leaves nothing."""
        rows = batch * heads * splits if splits > 1 else 0
        return cls(partials=rows * value_dim, stats=rows * 2)


@dataclass(frozen=True, slots=True)
class SplitTable:
    """How the requests of every layer are cut, for every batch size that can occur."""

    by_batch: Mapping[int, Mapping[DecodeShape, DecodeParts]]

    @classmethod
    def of(
        cls, shapes: Iterable[DecodeShape], batches: Iterable[int], max_length: int, multiprocessors: int
    ) -> SplitTable:
        different = set(shapes)
        return cls(
            {
                batch: {
                    shape: DecodeParts(
                        splits_within(shape, batch, max_length, multiprocessors),
                        choose_shortest_part(batch, shape.kv_heads, multiprocessors),
                    )
                    for shape in different
                }
                for batch in batches
            }
        )

    @property
    def scratch(self) -> ScratchSize:
        """What the largest call of the table needs; layers run one after the other and share it."""
        sizes = [
            ScratchSize.of_call(batch, shape.heads, shape.value_dim, parts.splits)
            for batch, layers in self.by_batch.items()
            for shape, parts in layers.items()
        ]
        return ScratchSize(
            partials=max((size.partials for size in sizes), default=0),
            stats=max((size.stats for size in sizes), default=0),
        )


@dataclass(frozen=True, slots=True)
class DecodeScratch:
    """Where the parts of a request leave their results: flat, so that layers of different shapes share it."""

    partials: torch.Tensor
    stats: torch.Tensor

    @classmethod
    def allocate(cls, size: ScratchSize, device: torch.device | str) -> DecodeScratch:
        return cls(
            partials=torch.empty(size.partials, dtype=torch.float32, device=device),
            stats=torch.empty(size.stats, dtype=torch.float32, device=device),
        )

    def holds(self, size: ScratchSize) -> bool:
        return size.partials <= self.partials.numel() and size.stats <= self.stats.numel()


def splits_within(shape: DecodeShape, batch: int, max_length: int, multiprocessors: int) -> int:
    """Parts that requests are split into: as many as keep the device busy, within the limit of the scratch."""
    context = max_length if shape.window is None else min(shape.window, max_length)
    tiles = ceil_div(shape.heads // shape.kv_heads, MOST_TILE_HEADS)  # of heads that share keys
    splits = choose_splits(batch, shape.kv_heads * tiles, context, multiprocessors)
    while splits > 1 and batch * shape.heads * splits * shape.value_dim * FP32_BYTES > LARGEST_SCRATCH_BYTES:
        splits //= 2
    return splits


def choose_splits(batch: int, kv_heads: int, max_context: int, multiprocessors: int) -> int:
    """Parts to split each request into: enough to fill the device, and no part of `max_context` too long."""
    to_fill = RESIDENT_PROGRAMS * multiprocessors // max(1, batch * kv_heads)
    to_even = max_context // LONGEST_PART
    useful = max_context // SHORTEST_PART
    return power_of_two_below(min(max(to_fill, to_even), useful, MAX_SPLITS))


def choose_shortest_part(batch: int, kv_heads: int, multiprocessors: int) -> int:
    """Positions below which a part is not worth starting: more where the batch keeps the device busy without splits."""
    crowded = batch * kv_heads >= 2 * multiprocessors
    return FULL_SHORTEST_PART if crowded else SHORTEST_PART

"""The shapes of the kernels' work: tiles by head dimension, group and type, as records.

Plain Python, without Triton or a device. Remarks about registers and shared memory are for an H100 or H200.
The functions are cached: every layer of every step calls them with the same few arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache

import torch

TILE_BYTES = 32 * 1024  # of keys and values in a tile; with two in flight in each of three programs, an SM's memory
MOST_TILE_HEADS = 64  # query heads that one program of the decode kernel takes


@dataclass(frozen=True, slots=True)
class TileConfig:
    """The shape of a kernel's work: query rows and positions in a tile, warps, and depth of the load pipeline.

    Positions should be fewer than threads (32 × warps): Triton then loads table entries where they are used, and
    otherwise passes them through shared memory in every tile.
    """

    block_m: int
    block_n: int
    warps: int
    stages: int
    max_registers: int | None = None  # of a thread; fewer let more programs share an SM


@dataclass(frozen=True, slots=True)
class SplitDim:
    """A head dimension as a power of two and a rest: 192 is 128 + 64, so nothing is padded to 256."""

    whole: int
    first: int
    rest: int  # a power of two, or 0

    @property
    def padded(self) -> int:
        return self.first + self.rest


@cache
def split_dim(dim: int) -> SplitDim:
    """Cut a head dimension for `tl.dot`, whose sides are powers of two of at least 16."""
    assert dim >= 16, f"head dimension {dim} is below 16"
    first = 1 << (dim.bit_length() - 1)
    rest = dim - first
    return SplitDim(dim, first, max(16, power_of_two_above(rest)) if rest else 0)


def power_of_two_below(number: int) -> int:
    """The largest power of two that is not above the number; 1 for anything smaller."""
    return 1 << (max(1, number).bit_length() - 1)


def power_of_two_above(number: int) -> int:
    """The smallest power of two that is not below the number; 1 for anything smaller."""
    return 1 << (max(1, number) - 1).bit_length()


@cache
def decode_config(key_dim: int, value_dim: int, group: int, dtype: torch.dtype, cache_dtype: torch.dtype) -> TileConfig:
    """Tiles for decoding. Rows below 16 are padding, which tensor cores need."""
    position_bytes = (key_dim + value_dim) * cache_dtype.itemsize
    if dtype == torch.float32:  # multiplied without tensor cores, so a tile's products are unrolled: keep them few
        return TileConfig(16, 16 if key_dim + value_dim > 256 else 32, warps=4, stages=2)
    if max(key_dim, value_dim) > 256:  # a row of output is 2 KiB of registers: more threads to hold them
        return TileConfig(16 if group <= 16 else MOST_TILE_HEADS, 32, warps=8, stages=2)
    block_m = min(MOST_TILE_HEADS, max(16, power_of_two_above(group)))
    block_n = min(64, max(16, power_of_two_below(TILE_BYTES // position_bytes)))
    return TileConfig(block_m, block_n, warps=4, stages=3 if 2 * block_n * position_bytes > TILE_BYTES else 4)


@lru_cache
def prefill_config(key_dim: int, value_dim: int, rows: int, dtype: torch.dtype) -> TileConfig:
    """Tiles for prompts; `rows` is the longest chunk's tokens times the query heads of a KV head.

    The limit is registers: the output of a tile takes block_m × value_dim of the 64 Ki of an SM.
    """
    both, widest = key_dim + value_dim, max(key_dim, value_dim)
    if dtype == torch.float32:  # multiplied without tensor cores, and only used in tests: small tiles compile fast
        return TileConfig(16, 32 if both <= 256 else 16, warps=4, stages=1)
    if rows <= 16:  # a token or two, as when drafts are verified: almost a decode
        return TileConfig(16, 64 if both <= 256 else 32, warps=8 if widest > 256 else 4, stages=2)
    if widest > 256:
        return TileConfig(64, 32, warps=8, stages=2)
    if rows <= 64:
        return TileConfig(64, 64 if both <= 256 else 32, warps=4, stages=2)
    if both > 320:
        return TileConfig(128, 32, warps=8, stages=3)
    return TileConfig(128, 64, warps=8, stages=3 if both <= 256 else 2)

"""Into how many parts decoding cuts a request (split-K), and the scratch in which the parts leave their results.

Plain Python and torch: knows nothing of Triton, so all of it can be tried without a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from brim.engine.attention.kernels.tiles import power_of_two_below

MAX_SPLITS = 64
RESIDENT_PROGRAMS = 4  # an SM should have, so that one loads while another computes
SHORTEST_PART = 128  # positions; below it a part's start-up costs more than it hides
FULL_SHORTEST_PART = 512  # the same when the requests alone fill the device
LONGEST_PART = 8192  # positions; a lone long request should not outlast all others by much


def choose_splits(batch: int, kv_heads: int, max_context: int, multiprocessors: int) -> int:
    """Parts to cut each request into: enough to fill the device, and no part of `max_context` overly long."""
    to_fill = RESIDENT_PROGRAMS * multiprocessors // max(1, batch * kv_heads)
    to_even = max_context // LONGEST_PART
    useful = max_context // SHORTEST_PART
    return power_of_two_below(min(max(to_fill, to_even), useful, MAX_SPLITS))


def choose_shortest_part(batch: int, kv_heads: int, multiprocessors: int) -> int:
    """Positions below which a part is not worth starting: more where the requests alone keep the device busy."""
    crowded = batch * kv_heads >= 2 * multiprocessors
    return FULL_SHORTEST_PART if crowded else SHORTEST_PART


def scratch_bytes(max_batch: int, heads: int, value_dim: int, splits: int) -> int:
    """What `DecodeScratch.allocate` takes."""
    if splits == 1:
        return 0
    rows = max_batch * heads * splits
    return (
        rows
        * (value_dim + 2)  # a partial output, its maximum and its sum
        * 4  # fp32
    )


@dataclass(frozen=True, slots=True)
class DecodeScratch:
    """Where the parts of a request leave their results: flat, so that layers of different shapes share it."""

    partials: torch.Tensor
    stats: torch.Tensor

    @classmethod
    def allocate(
        cls, max_batch: int, heads: int, value_dim: int, splits: int, device: torch.device | str
    ) -> DecodeScratch:
        rows = 0 if splits == 1 else max_batch * heads * splits
        return cls(
            partials=torch.empty(rows * value_dim, dtype=torch.float32, device=device),
            stats=torch.empty(rows * 2, dtype=torch.float32, device=device),
        )

    def slice(self, batch: int, heads: int, value_dim: int, splits: int) -> DecodeScratch:
        """The part that a call of this shape uses."""
        rows = batch * heads * splits
        assert rows * value_dim <= self.partials.numel(), "the scratch was allocated for less"
        assert rows * 2 <= self.stats.numel(), "the scratch was allocated for less"
        return DecodeScratch(self.partials[: rows * value_dim], self.stats[: rows * 2])

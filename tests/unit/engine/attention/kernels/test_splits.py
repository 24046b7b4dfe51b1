"""Into how many parts decoding cuts requests, and what the parts leave behind."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from brim.engine.attention.kernels.splits import (
    FULL_SHORTEST_PART,
    MAX_SPLITS,
    SHORTEST_PART,
    DecodeScratch,
    choose_shortest_part,
    choose_splits,
    scratch_bytes,
)


@pytest.mark.parametrize(
    ("batch", "kv_heads", "max_context", "expected"),
    [
        (128, 8, 4096, 1),  # requests alone fill the device
        (32, 8, 4096, 2),
        (1, 8, 65536, 64),
        (1, 8, 1024, 8),  # no part below 128 positions
        (1, 8, 1, 1),
        (512, 8, 32768, 4),  # a lone request of 32768 should not outlast the others
        (1, 1, 1 << 20, MAX_SPLITS),
    ],
)
def test_splits_fill_the_device(batch: int, kv_heads: int, max_context: int, expected: int) -> None:
    assert choose_splits(batch, kv_heads, max_context, multiprocessors=132) == expected


@pytest.mark.parametrize("splits", [1, 2, 64])
def test_scratch_takes_what_is_said(splits: int) -> None:
    scratch = DecodeScratch.allocate(4, 8, 96, splits, "cpu")
    assert scratch.partials.nbytes + scratch.stats.nbytes == scratch_bytes(4, 8, 96, splits)


def test_scratch_is_sliced_for_a_smaller_call() -> None:
    part = DecodeScratch.allocate(4, 8, 96, 16, "cpu").slice(2, 8, 64, 4)
    assert (part.partials.numel(), part.stats.numel()) == (2 * 8 * 4 * 64, 2 * 8 * 4 * 2)
    with pytest.raises(AssertionError, match="allocated for less"):
        part.slice(4, 8, 96, 16)


def test_parts_are_longer_where_requests_alone_fill_the_device() -> None:
    assert [choose_shortest_part(batch, 8, multiprocessors=132) for batch in (1, 32, 33, 512)] == [
        SHORTEST_PART,
        SHORTEST_PART,
        FULL_SHORTEST_PART,
        FULL_SHORTEST_PART,
    ]

"""How many parts decode splits requests into, and the scratch of the parts."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from brim.engine.attention.backends import BackendSizes  # noqa: E402
from brim.engine.attention.kernels.splits import (  # noqa: E402
    FP32_BYTES,
    FULL_SHORTEST_PART,
    LARGEST_SCRATCH_BYTES,
    MAX_SPLITS,
    SHORTEST_PART,
    DecodeParts,
    DecodeScratch,
    DecodeShape,
    ScratchSize,
    SplitTable,
    choose_shortest_part,
    choose_splits,
)
from brim.engine.run.graphs import batch_sizes  # noqa: E402


@pytest.mark.parametrize(
    ("batch", "kv_heads", "max_context", "expected"),
    [
        (128, 8, 4096, 1),  # the batch fills the device
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


def test_scratch_holds_what_it_was_allocated_for_and_no_more() -> None:
    scratch = DecodeScratch.allocate(ScratchSize.of_call(4, 8, 96, 16), "cpu")
    assert (scratch.partials.numel(), scratch.stats.numel()) == (4 * 8 * 16 * 96, 4 * 8 * 16 * 2)
    assert scratch.holds(ScratchSize.of_call(4, 8, 96, 16))
    assert scratch.holds(ScratchSize.of_call(2, 8, 64, 4))
    assert not scratch.holds(ScratchSize.of_call(5, 8, 96, 16))
    assert not scratch.holds(ScratchSize.of_call(8, 8, 16, 16))  # fewer outputs, more sums


def test_requests_that_are_not_cut_need_no_scratch() -> None:
    assert ScratchSize.of_call(512, 32, 128, 1) == ScratchSize(0, 0)
    table = SplitTable.of([DecodeShape(32, 8, 128, None)], [512], 4096, multiprocessors=132)
    assert table == SplitTable({512: {DecodeShape(32, 8, 128, None): DecodeParts(1, FULL_SHORTEST_PART)}})
    assert table.scratch == ScratchSize(0, 0)


def test_parts_are_longer_where_the_batch_fills_the_device() -> None:
    assert [choose_shortest_part(batch, 8, multiprocessors=132) for batch in (1, 32, 33, 512)] == [
        SHORTEST_PART,
        SHORTEST_PART,
        FULL_SHORTEST_PART,
        FULL_SHORTEST_PART,
    ]


SHAPES = {
    "llama-8b": [DecodeShape(32, 8, 128, None)],
    "one KV head, 71 queries": [DecodeShape(71, 1, 64, None)],
    "latent": [DecodeShape(128, 1, 512, None)],
    "windows and wide heads": [DecodeShape(16, 4, 256, 1024), DecodeShape(16, 2, 512, None)],
    "sinks": [DecodeShape(64, 8, 64, 128), DecodeShape(64, 8, 64, None)],
}


@pytest.mark.parametrize("max_length", [1024, 8192, 160_000])
@pytest.mark.parametrize("name", SHAPES)
def test_every_captured_and_every_mixed_step_finds_its_scratch(name: str, max_length: int) -> None:
    """The sizes that graphs are captured for, and any smaller batch beside a chunk of a prompt."""
    shapes = SHAPES[name]
    for max_batch in range(1, 65):
        sizes = BackendSizes((), max_batch, max_length, torch.device("meta"))
        table = SplitTable.of(shapes, sizes.decode_batches, max_length, multiprocessors=132)
        scratch = DecodeScratch.allocate(table.scratch, "meta")
        for batch in {*batch_sizes(max_batch), *range(1, max_batch + 1)}:
            for shape in shapes:
                splits = table.by_batch[batch][shape].splits
                needed = ScratchSize.of_call(batch, shape.heads, shape.value_dim, splits)
                assert scratch.holds(needed), (max_batch, batch)


@pytest.mark.parametrize("max_batch", [1, 64, 4096])
@pytest.mark.parametrize("name", SHAPES)
def test_the_scratch_stays_small_whatever_the_model(name: str, max_batch: int) -> None:
    scratch = SplitTable.of(SHAPES[name], range(1, max_batch + 1), 1 << 20, multiprocessors=132).scratch
    assert 0 < scratch.partials * FP32_BYTES <= LARGEST_SCRATCH_BYTES
    assert scratch.stats * FP32_BYTES <= LARGEST_SCRATCH_BYTES / 8

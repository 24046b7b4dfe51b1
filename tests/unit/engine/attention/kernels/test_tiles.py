"""The tiles of the kernels: head dimensions cut for tensor cores, and what an SM can hold."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from brim.engine.attention.kernels.tiles import (  # noqa: E402
    SplitDim,
    TileConfig,
    decode_config,
    power_of_two_above,
    power_of_two_below,
    prefill_config,
    split_dim,
)


def test_powers_of_two_around_a_number() -> None:
    around = {number: (power_of_two_below(number), power_of_two_above(number)) for number in (0, 1, 2, 3, 8, 9, 71)}
    assert around == {0: (1, 1), 1: (1, 1), 2: (2, 2), 3: (2, 4), 8: (8, 8), 9: (8, 16), 71: (64, 128)}


@pytest.mark.parametrize(
    ("dim", "expected"),
    [
        (64, (64, 0)),
        (80, (64, 16)),
        (96, (64, 32)),
        (112, (64, 64)),
        (128, (128, 0)),
        (192, (128, 64)),
        (576, (512, 64)),
    ],
)
def test_a_dimension_is_a_power_of_two_and_a_rest(dim: int, expected: tuple[int, int]) -> None:
    assert split_dim(dim) == SplitDim(dim, *expected)


@pytest.mark.parametrize(
    "dims", [(64, 64), (80, 80), (96, 96), (128, 128), (192, 128), (256, 256), (512, 512), (576, 512)]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float32])
def test_tiles_fit_shared_memory_and_the_table(dims: tuple[int, int], dtype: torch.dtype) -> None:
    """227 KiB for queries and all stages; fewer positions than threads (see `TileConfig`)."""
    query_type = torch.bfloat16 if dtype.itemsize == 1 else dtype
    configs: list[TileConfig] = [decode_config(*dims, group, query_type, dtype) for group in (1, 4, 71)]
    configs += [prefill_config(*dims, rows, query_type) for rows in (4, 64, 4096)]
    for config in configs:
        stages = config.stages * config.block_n * sum(dims) * dtype.itemsize
        queries = config.block_m * dims[0] * query_type.itemsize
        assert stages + queries <= 227 * 1024, config
        assert config.block_n < 32 * config.warps, config

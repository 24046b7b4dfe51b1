"""The Triton kernels beside attention in float64, on tiny sizes in Triton's interpreter, which needs no GPU.

Skipped where Triton is not installed. The comparisons themselves are those of tests/gpu/check_attention.py; they run in
a process of their own, since the interpreter is chosen when Triton is imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
torch = pytest.importorskip("torch")

from brim.engine.attention.triton_decode import (  # noqa: E402
    MAX_SPLITS,
    DecodeScratch,
    SplitDim,
    TileConfig,
    choose_splits,
    decode_config,
    scratch_bytes,
    split_dim,
)
from brim.engine.attention.triton_prefill import prefill_config  # noqa: E402

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("kernel", ["store", "decode", "prefill"])
def test_agrees_with_float64(kernel: str, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    done = subprocess.run(
        [sys.executable, ROOT / "tests/gpu/check_attention.py", "--tiny", "--only", kernel, "--out", out],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert out.exists(), done.stdout + done.stderr
    checked = json.loads(out.read_text())["checked"]
    assert checked
    assert [row for row in checked if not row["ok"]] == []
    assert done.returncode == 0


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

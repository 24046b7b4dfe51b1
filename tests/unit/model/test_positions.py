"""Tables of positions, as a real engine held them after loading."""

from __future__ import annotations

from typing import Any

import pytest

from brim.model.config import read_config
from brim.model.source import load_config, load_model


@pytest.mark.parametrize(
    ("model", "table_bytes"),  # buffers of vLLM 0.26 on an H200, less a few scalars
    [
        ("llama-3.1-8b", 131072 * 128 * 2),
        ("gemma-3-1b", 2 * 32768 * 256 * 2),  # sliding and full layers
        ("gemma-3-27b", (131072 + 8 * 131072) * 128 * 2),  # full layers: stretched by eight
        ("deepseek-v2-lite", 163840 * 64 * 2),  # the rotated part of a head
        ("qwen2.5-vl-7b", 4 * 128000 * 128 * 2),  # positions on three axes
        ("nemotron-nano-12b-v2", 0),  # no rotary embedding
    ],
)
def test_tables_are_as_an_engine_held_them(model: str, table_bytes: int) -> None:
    assert load_model(model).position_table_bytes == table_bytes


@pytest.mark.parametrize(
    ("scaling", "rows"),
    [
        (None, 131072),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 131072),
        ({"type": "linear", "factor": 4}, 4 * 131072),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        ({"type": "longrope", "original_max_position_embeddings": 4096}, 131072 + 4096),
        ({"type": "linear", "factor": float("inf")}, 131072),
        ({"type": "linear", "factor": "eight"}, 131072),
        (["linear", 8], 131072),
    ],
)
def test_scaling_decides_how_many_positions_a_table_has(scaling: Any, rows: int) -> None:
    config = {**load_config("llama-3.1-8b")[1], "rope_scaling": scaling}
    assert read_config(config, name="scaled").position_table_bytes == rows * 128 * 2

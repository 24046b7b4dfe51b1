"""Bytes of formats that their configs determine, against the layouts the tools write."""

from __future__ import annotations

from typing import Any

import pytest

from brim.errors import InputError
from brim.model.config import read_config
from brim.model.weights import weight_bytes
from tests.unit.model.test_config import LLAMA

HIDDEN, INNER, KV, LAYERS, VOCAB = 4096, 14336, 1024, 32, 128256
MATRICES = [(HIDDEN, HIDDEN), (KV, HIDDEN), (KV, HIDDEN), (HIDDEN, HIDDEN), (INNER, HIDDEN), (INNER, HIDDEN)]
MATRICES.append((HIDDEN, INNER))  # the down projection comes last
INSIDE = sum(rows * columns for rows, columns in MATRICES)
NORMS = (2 * LAYERS + 1) * HIDDEN * 2
TABLE = VOCAB * HIDDEN


def total(**fields: Any) -> int:
    return weight_bytes(read_config({**LLAMA, "quantization_config": fields}, name="x")).total_bytes


def grouped(bits: float, group: int, per_group: float) -> int:
    """All matrices of the layers in groups, embeddings and head in bf16."""
    return int(LAYERS * INSIDE * (bits / 8 + per_group / group)) + 2 * TABLE * 2 + NORMS


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True}, grouped(4, 128, 2.5)),
        ({"quant_method": "intel/auto-round", "bits": 2, "group_size": 64}, grouped(2, 64, 2.25)),
        ({"quant_method": "torchao", "quant_type": "int4_weight_only"}, grouped(4, 128, 4)),
        (
            {
                "quant_method": "torchao",
                "quant_type": {"default": {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 32}}},
            },
            grouped(4, 32, 4),
        ),
        (
            {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64, "axis": 1}}},
            grouped(4, 64, 4),
        ),
        ({"quant_method": "exl2", "bits": 4.25, "head_bits": 6}, int(grouped(4.25, 1, 0) - TABLE * 2 + TABLE * 6 / 8)),
        ({"quant_method": "exl3", "bits": 3.0, "head_bits": 6}, int(grouped(3, 1, 0) - TABLE * 2 + TABLE * 6 / 8)),
        ({"quant_method": "bitnet"}, grouped(2, 1, 0) + LAYERS * len(MATRICES) * 2),
    ],
)
def test_a_format_for_all_layers(fields: dict[str, Any], expected: int) -> None:
    assert total(**fields) == expected


def test_aqlm_has_codes_codebooks_and_a_scale_for_each_row() -> None:
    found = total(quant_method="aqlm", in_group_size=8, out_group_size=1, num_codebooks=1, nbits_per_codebook=16)
    books = LAYERS * len(MATRICES) * 2**16 * 8 * 2
    rows = LAYERS * sum(rows for rows, _ in MATRICES) * 2
    assert found == LAYERS * INSIDE // 8 * 2 + books + rows + 2 * TABLE * 2 + NORMS


def test_gptq_with_other_formats_for_some_modules() -> None:
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    down, rows, columns = LAYERS * HIDDEN * INNER, HIDDEN, INNER
    four = down // 2 + down // 128 * 2 + down // 128 // 2 + LAYERS * columns * 4
    eight = down + down // 128 * 2 + down // 128 + LAYERS * columns * 4
    wider = total(**gptq, dynamic={r"+:.*\.down_proj": {"bits": 8}})
    plain = total(**gptq, dynamic={r"-:.*\.down_proj": {}})
    assert rows * columns * LAYERS == down
    assert wider - total(**gptq) == eight - four
    assert plain - total(**gptq) == 2 * down - four
    assert total(**gptq, dynamic={}) == total(**gptq)


def test_modules_that_auto_round_leaves_alone() -> None:
    fields = {"quant_method": "auto-round", "bits": 4, "group_size": 128}
    left = total(**fields, extra_config={"model.layers.0.mlp.down_proj": {"bits": 16, "data_type": "float"}})
    matrix = HIDDEN * INNER
    assert left - total(**fields) == matrix * 2 - (matrix // 2 + matrix // 128 * 5 // 2)


@pytest.mark.parametrize("place", ["quantization", "quantization_config"])
def test_mlx_quantises_embeddings_too(place: str) -> None:
    fields = {"group_size": 64, "bits": 4}
    elements = LAYERS * INSIDE + 2 * TABLE
    spec = read_config({**LLAMA, place: fields}, name="x")
    assert weight_bytes(spec).total_bytes == elements // 2 + elements // 64 * 4 + NORMS
    own = {**fields, "model.embed_tokens": {"bits": 8, "group_size": 64}, "lm_head": False}
    found = weight_bytes(read_config({**LLAMA, place: own}, name="x")).total_bytes
    assert found - weight_bytes(spec).total_bytes == TABLE // 2 + (TABLE * 2 - TABLE // 2 - TABLE // 64 * 4)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"quant_method": "torchao", "quant_type": "uintx_weight_only"}, "quant_type"),
        ({"quant_method": "hqq", "quant_config": {"self_attn.q_proj": {}}}, "quant_config"),
        ({"quant_method": "aqlm", "nbits_per_codebook": 12}, "nbits_per_codebook"),
        ({"quant_method": "auto-round", "bits": 4, "data_type": "mx_fp"}, "data_type"),
        ({"quant_method": "auto-round", "bits": 5}, "bits"),
        ({"quant_method": "exl2", "head_bits": 6}, "bits"),
        ({"bits": 7, "group_size": 64}, "bits"),
        ({"bits": 4, "group_size": 64, "mode": "nf4"}, "mode"),
    ],
)
def test_what_is_not_understood_is_named(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=rf"quantization_config\.(\w+\.)*{named}'"):
        total(**fields)

"""How quantised matrices are stored: the formats by name, and the bytes of a matrix in one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from brim.model.quantisers.ggml_types import BY_NAME
from brim.model.quantisers.gguf_mixes import MIXES
from brim.records.model import WeightFormat
from brim.units import ceil_div

FP8_TENSOR = WeightFormat("fp8", bits=8, matrix_bytes=8)  # a weight scale and an input scale, fp32 each
FP8_CHANNEL = WeightFormat("fp8-channel", bits=8, scale_bytes=2, rows_per_scale=1)
FP8_BLOCK = WeightFormat("fp8-block128", bits=8, scale_bytes=4, rows_per_scale=128, columns_per_scale=128)
INT8_CHANNEL = WeightFormat("int8", bits=8, scale_bytes=2, rows_per_scale=1)
NVFP4 = WeightFormat("nvfp4", bits=4, scale_bytes=1, rows_per_scale=1, columns_per_scale=16, matrix_bytes=8)
MXFP4 = WeightFormat("mxfp4", bits=4, scale_bytes=1, rows_per_scale=1, columns_per_scale=32)
MXFP6 = WeightFormat("mxfp6", bits=6, scale_bytes=1, rows_per_scale=1, columns_per_scale=32)
MXFP8 = WeightFormat("mxfp8", bits=8, scale_bytes=1, rows_per_scale=1, columns_per_scale=32)

# Whole files as llama.cpp's quantiser writes them; a type of most matrices, and rules for the others (`gguf_mixes`).
GGUF_FORMATS: Mapping[str, WeightFormat] = {
    mix: replace(BY_NAME[most].format, name=mix, gguf_mix=mix) for mix, most in MIXES.items()
}

# What `--weights` takes, besides the plain types.
NAMED_FORMATS: Mapping[str, WeightFormat] = {
    "fp8": FP8_CHANNEL,
    "fp8-tensor": FP8_TENSOR,
    "fp8-block": FP8_BLOCK,
    "int8": INT8_CHANNEL,
    "awq": WeightFormat("awq-int4", 4, scale_bytes=2, rows_per_scale=1, columns_per_scale=128, zero_bits=4),
    "gptq": WeightFormat(
        "gptq-int4", 4, scale_bytes=2, rows_per_scale=1, columns_per_scale=128, zero_bits=4, column_bytes=4
    ),
    "int4": WeightFormat("int4", 4, scale_bytes=2, rows_per_scale=1, columns_per_scale=128, zero_bits=4),
    "nvfp4": NVFP4,
    "mxfp4": MXFP4,
    **GGUF_FORMATS,
}


def fp8_blocks(rows: int, columns: int) -> WeightFormat:
    """FP8 with an fp32 scale for every block of so many rows and columns."""
    name = f"fp8-block{rows}" if rows == columns else f"fp8-block{rows}x{columns}"
    return WeightFormat(name, 8, scale_bytes=4, rows_per_scale=rows, columns_per_scale=columns)


def matrix_bytes(stored: WeightFormat, rows: int, columns: int) -> int:
    """The bytes of a rows × columns matrix in a format: elements, scales, zero points, and what comes once."""
    row_groups = ceil_div(rows, stored.rows_per_scale) if stored.rows_per_scale else 1
    column_groups = ceil_div(columns, stored.columns_per_scale) if stored.columns_per_scale else 1
    groups = row_groups * column_groups if stored.scale_bytes else 0
    nested = ceil_div(groups, stored.scales_per_scale) if stored.scales_per_scale else 0
    return (
        ceil_div(rows * columns * stored.bits, 8)  # the elements
        + groups * stored.scale_bytes  # a scale for each block
        + nested * 4  # an fp32 scale for so many of those scales
        + ceil_div(groups * stored.zero_bits, 8)  # a zero point for each block
        + columns * stored.column_bytes  # the order of the columns (GPTQ)
        + rows * stored.row_bytes  # a scale for each row (AQLM)
        + stored.matrix_bytes  # global and input scales
    )

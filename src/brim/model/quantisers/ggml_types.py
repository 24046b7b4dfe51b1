"""The types of tensors in GGUF files, by the number that a file has for them: one table for files and for plans.

A type stores blocks of so many values in so many bytes. Numbers that are missing were taken out of the format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from brim.records.model import WeightFormat


@dataclass(frozen=True, slots=True)
class GgmlType:
    """How the values of a tensor are stored."""

    name: str
    block: int  # values
    block_bytes: int

    @property
    def format(self) -> WeightFormat:
        """The same as a weight format: whole bits for a value, and the rest of a block as its scale."""
        bits = self.block_bytes * 8 // self.block
        return WeightFormat(
            self.name,
            bits,
            scale_bytes=self.block_bytes - self.block * bits // 8,
            rows_per_scale=1,
            columns_per_scale=self.block,
        )


GGML_TYPES: Mapping[int, GgmlType] = {
    0: GgmlType("f32", 1, 4),
    1: GgmlType("f16", 1, 2),
    2: GgmlType("q4_0", 32, 18),
    3: GgmlType("q4_1", 32, 20),
    6: GgmlType("q5_0", 32, 22),
    7: GgmlType("q5_1", 32, 24),
    8: GgmlType("q8_0", 32, 34),
    9: GgmlType("q8_1", 32, 40),
    10: GgmlType("q2_k", 256, 84),
    11: GgmlType("q3_k", 256, 110),
    12: GgmlType("q4_k", 256, 144),
    13: GgmlType("q5_k", 256, 176),
    14: GgmlType("q6_k", 256, 210),
    15: GgmlType("q8_k", 256, 292),
    16: GgmlType("iq2_xxs", 256, 66),
    17: GgmlType("iq2_xs", 256, 74),
    18: GgmlType("iq3_xxs", 256, 98),
    19: GgmlType("iq1_s", 256, 50),
    20: GgmlType("iq4_nl", 32, 18),
    21: GgmlType("iq3_s", 256, 110),
    22: GgmlType("iq2_s", 256, 82),
    23: GgmlType("iq4_xs", 256, 136),
    24: GgmlType("i8", 1, 1),
    25: GgmlType("i16", 1, 2),
    26: GgmlType("i32", 1, 4),
    27: GgmlType("i64", 1, 8),
    28: GgmlType("f64", 1, 8),
    29: GgmlType("iq1_m", 256, 56),
    30: GgmlType("bf16", 1, 2),
    34: GgmlType("tq1_0", 256, 54),
    35: GgmlType("tq2_0", 256, 66),
    39: GgmlType("mxfp4", 32, 17),
    40: GgmlType("nvfp4", 64, 36),
    41: GgmlType("q1_0", 128, 18),
    42: GgmlType("q2_0", 64, 18),
}

BY_NAME: Mapping[str, GgmlType] = {one.name: one for one in GGML_TYPES.values()}

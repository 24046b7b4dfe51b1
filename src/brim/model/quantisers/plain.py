"""Methods that store all linear modules alike: fp8, AWQ, GPTQ, bitsandbytes, and gpt-oss's MXFP4."""

from __future__ import annotations

from brim.errors import InvalidConfig
from brim.model.fields import ConfigFields
from brim.model.quantisers.common import excluded_modules, unsupported
from brim.model.quantisers.weight_formats import FP8_CHANNEL, FP8_TENSOR, MXFP4, fp8_blocks
from brim.model.quantisers.weight_only import gptq_dynamic
from brim.records.model import Quantisation, WeightFormat

# AutoAWQ's layouts that take the bytes of the format; the others pad.
_AWQ_VERSIONS = ("gemm", "exllama", "ipex", "marlin")
_BLOCK = 64  # elements of a bitsandbytes block


def fp8(fields: ConfigFields) -> Quantisation:
    excluded = excluded_modules(fields, "modules_to_not_convert", "ignored_layers")
    return Quantisation("fp8", fp8_format(fields), ("lm_head", *excluded), towers=True)


def fp8_format(fields: ConfigFields) -> WeightFormat:
    block = fields.integers("weight_block_size")
    if not block:
        return FP8_TENSOR
    if len(block) != 2 or min(block) < 1:
        raise InvalidConfig(fields.where("weight_block_size"), "must be two positive numbers, rows and columns")
    return fp8_blocks(*block)


def fbgemm_fp8(fields: ConfigFields) -> Quantisation:
    return Quantisation("fbgemm_fp8", FP8_CHANNEL, ("lm_head", *excluded_modules(fields, "modules_to_not_convert")))


def mxfp4(fields: ConfigFields) -> Quantisation:
    """gpt-oss: the experts are MXFP4, everything else is listed as unquantised."""
    return Quantisation(
        "mxfp4", None, excluded_modules(fields, "modules_to_not_convert"), (("*.experts.*", MXFP4),), towers=False
    )


def awq(fields: ConfigFields) -> Quantisation:
    version = fields.text("version", "gemm").lower()
    if version not in _AWQ_VERSIONS:
        raise unsupported(fields, "version", f"AWQ's layout {version[:40]!r}")
    stored = _grouped(fields, "awq", order=False, zeros=fields.boolean("zero_point", True))
    return Quantisation("awq", stored, ("lm_head", *excluded_modules(fields, "modules_to_not_convert")))


def gptq(fields: ConfigFields) -> Quantisation:
    overrides, plain = gptq_dynamic(fields)
    stored = _grouped(fields, "gptq", order=True, zeros=True)
    excluded = (*excluded_modules(fields, "modules_to_not_convert"), *plain)
    excluded = excluded if fields.boolean("lm_head", False) else ("lm_head", *excluded)
    return Quantisation("gptq", stored, excluded, overrides)


def _grouped(fields: ConfigFields, name: str, *, order: bool, zeros: bool) -> WeightFormat:
    bits = fields.integer("bits", "w_bit", default=4, minimum=1, maximum=32)
    if bits not in (2, 3, 4, 8):
        raise unsupported(fields, fields.first(("bits", "w_bit")), f"{name} with {bits}-bit weights")
    group = fields.integer("group_size", "q_group_size", default=128, minimum=-1)
    return WeightFormat(
        f"{name}-int{bits}",
        bits,
        scale_bytes=2,
        rows_per_scale=1,
        columns_per_scale=max(group, 0),
        zero_bits=bits if zeros else 0,
        column_bytes=4 if order else 0,
    )


def bitsandbytes(fields: ConfigFields) -> Quantisation:
    """Blocks of 64 elements with a scale each (4-bit), or a scale for each row (8-bit)."""
    stored = _bnb_4bit(fields) if fields.boolean("load_in_4bit", False) else _bnb_8bit(fields)
    skipped = excluded_modules(fields, "llm_int8_skip_modules")
    return Quantisation("bitsandbytes", stored, skipped or ("lm_head",), towers=True)


def _bnb_4bit(fields: ConfigFields) -> WeightFormat:
    kind = fields.text("bnb_4bit_quant_type", "fp4").lower()
    if kind not in ("nf4", "fp4"):
        raise unsupported(fields, "bnb_4bit_quant_type", f"bitsandbytes type {kind[:40]!r}")
    values = 16 * 4  # the sixteen values that four bits stand for
    if not fields.boolean("bnb_4bit_use_double_quant", False):
        return WeightFormat(f"bnb-{kind}", 4, 4, rows_per_scale=1, columns_per_scale=_BLOCK, matrix_bytes=values)
    return WeightFormat(
        f"bnb-{kind}-double",
        4,
        scale_bytes=1,
        rows_per_scale=1,
        columns_per_scale=_BLOCK,
        scales_per_scale=256,
        matrix_bytes=values + 256 * 4 + 4,  # and the values of the scales, and their offset
    )


def _bnb_8bit(fields: ConfigFields) -> WeightFormat:
    if not fields.boolean("load_in_8bit", False):
        raise InvalidConfig(fields.where("load_in_4bit"), "and load_in_8bit are both missing or false")
    return WeightFormat("bnb-int8", 8, scale_bytes=4, rows_per_scale=1)

"""Quantised weights: the formats, and which modules a config says are stored in which.

In: `quantization_config` and, where there is one, `hf_quant_config.json`. Out: a `Quantisation`, or None for plain
weights. Unknown methods are refused by name: a wrong guess here is off by a factor of four.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from brim.errors import UnsupportedModel
from brim.model.fields import Fields
from brim.records.model import Dtype, Quantisation, WeightFormat
from brim.units import ceil_div

FP8_TENSOR = WeightFormat("fp8", bits=8, matrix_bytes=8)  # a weight scale and an input scale, fp32 each
FP8_CHANNEL = WeightFormat("fp8-channel", bits=8, scale_bytes=2, rows_per_scale=1)
FP8_BLOCK = WeightFormat("fp8-block128", bits=8, scale_bytes=4, rows_per_scale=128, columns_per_scale=128)
INT8_CHANNEL = WeightFormat("int8", bits=8, scale_bytes=2, rows_per_scale=1)
NVFP4 = WeightFormat("nvfp4", bits=4, scale_bytes=1, rows_per_scale=1, columns_per_scale=16, matrix_bytes=8)
MXFP4 = WeightFormat("mxfp4", bits=4, scale_bytes=1, rows_per_scale=1, columns_per_scale=32)
MXFP8 = WeightFormat("mxfp8", bits=8, scale_bytes=1, rows_per_scale=1, columns_per_scale=32)

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
    "q8_0": WeightFormat("q8_0", 8, scale_bytes=2, rows_per_scale=1, columns_per_scale=32),
    "q4_0": WeightFormat("q4_0", 4, scale_bytes=2, rows_per_scale=1, columns_per_scale=32),
}

_MODELOPT = {
    "FP8": FP8_TENSOR,
    "FP8_PER_CHANNEL_PER_TOKEN": FP8_CHANNEL,
    "FP8_PB_WO": FP8_BLOCK,
    "NVFP4": NVFP4,
    "NVFP4_AWQ": NVFP4,
    "W4A16_NVFP4": NVFP4,
    "W4A8_NVFP4_FP8": NVFP4,
    "MXFP4": MXFP4,
    "MXFP8": MXFP8,
    "W4A16_AWQ": NAMED_FORMATS["awq"],
    "W4A8_AWQ": NAMED_FORMATS["awq"],
    "INT8_SQ": INT8_CHANNEL,
    "W8A8_SQ_PER_CHANNEL": INT8_CHANNEL,
}
_KV_DTYPES = {"FP8": Dtype.FP8, "NVFP4": Dtype.FP8, "INT8": Dtype.INT8}


def matrix_bytes(stored: WeightFormat, rows: int, columns: int) -> int:
    """The bytes of a rows × columns matrix in a format: elements, scales, zero points, and what comes once."""
    row_groups = ceil_div(rows, stored.rows_per_scale) if stored.rows_per_scale else 1
    column_groups = ceil_div(columns, stored.columns_per_scale) if stored.columns_per_scale else 1
    groups = row_groups * column_groups if stored.scale_bytes else 0
    return (
        ceil_div(rows * columns * stored.bits, 8)  # the elements
        + groups * stored.scale_bytes  # a scale for each block
        + ceil_div(groups * stored.zero_bits, 8)  # a zero point for each block
        + columns * stored.column_bytes  # the order of the columns (GPTQ)
        + stored.matrix_bytes  # global and input scales
    )


def read_quantisation(fields: Fields, sidecar: Fields, expert_dtype: str = "") -> Quantisation | None:
    """The config's quantisation; that of `hf_quant_config.json` where the config has none or refers to that file.

    `expert_dtype` is DeepSeek V4's field for experts stored in fp4 while the rest is fp8.
    """
    found = _read_method(fields, sidecar)
    if found is not None and expert_dtype == "fp4" and not found.overrides:
        return replace(found, overrides=(("*.experts.*", MXFP4),))
    return found


def _read_method(fields: Fields, sidecar: Fields) -> Quantisation | None:
    inner = sidecar.child("quantization")
    method = fields.text("quant_method").lower()
    algo = (fields.text("quant_algo") or inner.text("quant_algo")).upper()
    if method in ("modelopt", "modelopt_fp4") or (algo and method in ("", "fp8")):
        return _modelopt(fields, inner, algo)
    if not method:
        return None
    readers = {
        "fp8": _fp8,
        "fbgemm_fp8": _fbgemm,
        "awq": _awq,
        "gptq": _gptq,
        "compressed-tensors": _compressed_tensors,
        "mxfp4": _mxfp4,
    }
    if method not in readers:
        raise UnsupportedModel(
            f"config field 'quantization_config.quant_method': {method[:40]!r} is not one of "
            f"{', '.join([*readers, 'modelopt'])}"
        )
    return readers[method](fields)


def _excluded(fields: Fields, *names: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(pattern for name in names for pattern in fields.texts(name)))


def _fp8(fields: Fields) -> Quantisation:
    block = fields.integers("weight_block_size")
    stored = (
        WeightFormat("fp8-block128", 8, scale_bytes=4, rows_per_scale=block[0], columns_per_scale=block[1])
        if len(block) == 2 and min(block) > 0
        else FP8_TENSOR
    )
    excluded = _excluded(fields, "modules_to_not_convert", "ignored_layers")
    return Quantisation("fp8", stored, ("lm_head", *excluded), towers=True)


def _fbgemm(fields: Fields) -> Quantisation:
    return Quantisation("fbgemm_fp8", FP8_CHANNEL, ("lm_head", *_excluded(fields, "modules_to_not_convert")))


def _bits(fields: Fields, allowed: tuple[int, ...]) -> int:
    bits = fields.integer("bits", "w_bit", default=4, minimum=1, maximum=32)
    if bits not in allowed:
        raise UnsupportedModel(f"config field '{fields.where('bits')}': {bits}-bit weights are not supported")
    return bits


def _grouped(fields: Fields, name: str, *, order: bool, zeros: bool) -> WeightFormat:
    bits = _bits(fields, (2, 3, 4, 8))
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


def _awq(fields: Fields) -> Quantisation:
    stored = _grouped(fields, "awq", order=False, zeros=fields.boolean("zero_point", True))
    return Quantisation("awq", stored, ("lm_head", *_excluded(fields, "modules_to_not_convert")))


def _gptq(fields: Fields) -> Quantisation:
    stored = _grouped(fields, "gptq", order=True, zeros=True)
    excluded = _excluded(fields, "modules_to_not_convert")
    return Quantisation("gptq", stored, excluded if fields.boolean("lm_head", False) else ("lm_head", *excluded))


def _mxfp4(fields: Fields) -> Quantisation:
    """gpt-oss: the experts are MXFP4, everything else is listed as unquantised."""
    return Quantisation(
        "mxfp4", None, _excluded(fields, "modules_to_not_convert"), (("*.experts.*", MXFP4),), towers=False
    )


def _compressed_tensors(fields: Fields) -> Quantisation:
    groups = fields.child("config_groups")
    overrides: list[tuple[str, WeightFormat]] = []
    default: WeightFormat | None = None
    for name in groups:
        group = groups.child(name)
        stored = _compressed_format(group.child("weights"), group.text("format") or fields.text("format"))
        for target in group.texts("targets") or ("Linear",):
            if target == "Linear":
                default = stored
            else:
                overrides.append((target, stored))
    scheme = fields.raw("kv_cache_scheme")
    return Quantisation(
        "compressed-tensors",
        default,
        _excluded(fields, "ignore"),
        tuple(overrides),
        towers=True,
        kv_dtype=Dtype.FP8 if isinstance(scheme, dict) and scheme.get("num_bits") == 8 else None,
    )


def _compressed_format(weights: Fields, packing: str) -> WeightFormat:
    bits = weights.integer("num_bits", default=8, maximum=32)
    strategy = weights.text("strategy", "channel" if bits == 8 else "group")
    group = weights.integer("group_size", default=0, minimum=-1)
    floating = weights.text("type", "int") == "float"
    if floating and bits == 4:
        return MXFP4 if "mx" in packing or group == 32 else NVFP4
    if floating and bits == 8:
        if strategy == "block":
            return FP8_BLOCK
        return FP8_TENSOR if strategy == "tensor" else FP8_CHANNEL
    if not floating and bits in (2, 4, 8):
        return WeightFormat(
            f"int{bits}",
            bits,
            scale_bytes=2,
            rows_per_scale=1,
            columns_per_scale=max(group, 0),
            zero_bits=0 if weights.boolean("symmetric", True) else bits,
            matrix_bytes=16 if bits < 8 else 0,
        )
    raise UnsupportedModel(
        f"config field '{weights.where('num_bits')}': {bits}-bit {'float' if floating else 'integer'} weights "
        "are not supported"
    )


def _modelopt(fields: Fields, sidecar: Fields, algo: str) -> Quantisation:
    layers = sidecar.child("quantized_layers") if "quantized_layers" in sidecar else fields.child("quantized_layers")
    overrides = _modelopt_layers(layers)
    base = _fp8(fields).default if fields.text("quant_method") == "fp8" and "weight_block_size" in fields else None
    default = base if algo == "MIXED_PRECISION" else _modelopt_format(algo, "quant_algo")
    kv = (sidecar.text("kv_cache_quant_algo") or _text_or_empty(fields, "kv_cache_quant_algo")).upper()
    excluded = (*_excluded(sidecar, "exclude_modules"), *_excluded(fields, "ignore", "exclude_modules"))
    return Quantisation(
        "modelopt",
        default,
        excluded if excluded and not base else ("lm_head", "head"),
        overrides,
        towers=bool(excluded),
        kv_dtype=_KV_DTYPES.get(kv),
    )


def _text_or_empty(fields: Fields, name: str) -> str:
    value = fields.raw(name)
    return value if isinstance(value, str) else ""


def _modelopt_format(algo: str, where: str) -> WeightFormat:
    if algo not in _MODELOPT:
        raise UnsupportedModel(
            f"config field '{where}': quantisation {algo[:40]!r} is not one of {', '.join(_MODELOPT)}"
        )
    return _MODELOPT[algo]


def _modelopt_layers(layers: Fields) -> tuple[tuple[str, WeightFormat], ...]:
    """Per-module formats. Experts are listed one by one in some files: one entry speaks for all of a layer's."""
    found: dict[str, WeightFormat] = {}
    for name in layers:
        pattern = re.sub(r"\.experts\.\d+\.", ".experts.", name)
        if pattern not in found:
            found[pattern] = _modelopt_format(layers.child(name).text("quant_algo").upper(), layers.where(name[:60]))
    return tuple(found.items())

"""compressed-tensors (llm-compressor): groups of modules, each with a scheme of its own."""

from __future__ import annotations

from brim.errors import InvalidConfig
from brim.model.fields import ConfigFields
from brim.model.quantisers.common import excluded_modules, read_kv_scheme, unsupported
from brim.model.quantisers.weight_formats import FP8_BLOCK, FP8_CHANNEL, FP8_TENSOR, MXFP4, MXFP8, NVFP4, fp8_blocks
from brim.records.model import Quantisation, WeightFormat

_UNCOMPRESSED = ("", "dense")
_STORES_COLUMN_ORDER = ("group", "dynamic")


def compressed_tensors(fields: ConfigFields) -> Quantisation:
    _refuse_sparsity(fields)
    groups = fields.child("config_groups")
    overrides: list[tuple[str, WeightFormat]] = []
    default: WeightFormat | None = None
    for name in groups:
        group = groups.child(name)
        if "weights" not in group:
            continue  # a group that only quantises activations
        stored = _stored_format(group.child("weights"), group.text("format") or fields.text("format"))
        for target in group.texts("targets") or ("Linear",):
            if target == "Linear":
                default = stored
            else:
                overrides.append((target, stored))
    return Quantisation(
        "compressed-tensors",
        default,
        excluded_modules(fields, "ignore"),
        tuple(overrides),
        towers=True,
        kv_dtype=read_kv_scheme(fields),
    )


def _refuse_sparsity(fields: ConfigFields) -> None:
    sparsity = fields.child("sparsity_config")
    if sparsity.text("format") not in _UNCOMPRESSED:
        raise unsupported(sparsity, "format", f"sparse weights ({sparsity.text('format')[:40]})")
    if "24" in fields.text("format"):
        raise unsupported(fields, "format", f"sparse weights ({fields.text('format')[:40]})")


def _stored_format(weights: ConfigFields, packing: str) -> WeightFormat:
    bits = weights.integer("num_bits", default=8, maximum=32)
    kind = weights.text("type", "int")
    if kind == "float" and bits == 4:
        return _float4(weights, packing)
    if kind == "float" and bits == 8:
        return _float8(weights)
    if kind == "int" and bits in (2, 4, 8):
        return _integer(weights, bits)
    raise unsupported(weights, "num_bits", f"{bits}-bit {kind[:20]} weights")


def _float4(weights: ConfigFields, packing: str) -> WeightFormat:
    group = weights.integer("group_size", default=32 if "mx" in packing else 16, minimum=-1)
    if group not in (16, 32):
        raise unsupported(weights, "group_size", f"4-bit float weights in groups of {group}")
    return NVFP4 if group == 16 else MXFP4


def _float8(weights: ConfigFields) -> WeightFormat:
    strategy = weights.text("strategy", "channel")
    if strategy == "block":
        block = weights.integers("block_structure")
        if block and (len(block) != 2 or min(block) < 1):
            raise InvalidConfig(weights.where("block_structure"), "must be two positive numbers, rows and columns")
        return fp8_blocks(*block) if block else FP8_BLOCK
    if strategy == "group" and weights.integer("group_size", default=0, minimum=-1) == 32:
        return MXFP8
    known = {"tensor": FP8_TENSOR, "channel": FP8_CHANNEL}
    if strategy not in known:
        raise unsupported(weights, "strategy", f"fp8 by {strategy[:40]!r}")
    return known[strategy]


def _integer(weights: ConfigFields, bits: int) -> WeightFormat:
    group = weights.integer("group_size", default=0, minimum=-1)
    strategy = weights.text("strategy", "group" if group > 0 else "channel")
    if strategy not in ("tensor", "channel", "group"):
        raise unsupported(weights, "strategy", f"int{bits} by {strategy[:40]!r}")
    if strategy == "group" and group < 1:
        raise InvalidConfig(weights.where("group_size"), "missing, and the strategy is by group")
    return WeightFormat(
        f"int{bits}",
        bits,
        scale_bytes=2,
        rows_per_scale=0 if strategy == "tensor" else 1,
        columns_per_scale=group if strategy == "group" else 0,
        zero_bits=0 if weights.boolean("symmetric", True) else bits,
        matrix_bytes=16 if bits < 8 else 0,  # the shape before packing
        column_bytes=4 if weights.raw("actorder") in _STORES_COLUMN_ORDER else 0,
    )

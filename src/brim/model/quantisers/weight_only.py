"""Formats of weights alone, each by its own tool: auto-round, torchao, HQQ, AQLM, BitNet, ExLlama.

What a config of these says decides the bytes: bits, groups, and what is kept for a group. What it says otherwise is
refused by name.
"""

from __future__ import annotations

from dataclasses import replace

from brim.errors import InvalidConfig
from brim.model.fields import ConfigFields
from brim.model.quantisers.common import excluded_modules, unsupported
from brim.model.quantisers.weight_formats import INT8_CHANNEL
from brim.records.model import Quantisation, WeightFormat

_UNQUANTISED_BITS = 16
_FP8_ROW = WeightFormat("fp8-channel", 8, scale_bytes=4, rows_per_scale=1)


def auto_round(fields: ConfigFields) -> Quantisation:
    """Intel's AutoRound: scales and packed zeros for every group; some modules in formats of their own."""
    if fields.text("data_type", "int") != "int":
        raise unsupported(fields, "data_type", f"auto-round with {fields.text('data_type')[:20]!r} weights")
    overrides, plain = [], ["lm_head"]
    extra = fields.child("extra_config")
    for name in extra:
        own = extra.child(name)
        if own.integer("bits", default=4) >= _UNQUANTISED_BITS:
            plain.append(name)
        else:
            overrides.append((name, _grouped(own.behind(**_usual(fields)), "auto-round")))
    stored = _grouped(fields, "auto-round")
    return Quantisation(
        "auto-round", stored, (*plain, *excluded_modules(fields, "modules_to_not_convert")), tuple(overrides)
    )


def _usual(fields: ConfigFields) -> dict[str, int]:
    return {
        "bits": fields.integer("bits", default=4),
        "group_size": fields.integer("group_size", default=128, minimum=-1),
    }


def _grouped(fields: ConfigFields, name: str) -> WeightFormat:
    bits = fields.integer("bits", default=4, maximum=32)
    if bits not in (2, 3, 4, 8):
        raise unsupported(fields, "bits", f"{name} with {bits}-bit weights")
    group = fields.integer("group_size", default=128, minimum=-1)
    return WeightFormat(f"{name}-int{bits}", bits, 2, rows_per_scale=1, columns_per_scale=max(group, 0), zero_bits=bits)


def gptq_dynamic(fields: ConfigFields) -> tuple[tuple[tuple[str, WeightFormat], ...], tuple[str, ...]]:
    """(overrides, left alone) of GPTQModel's `dynamic`: expressions that a module's name begins with."""
    overrides, plain = [], []
    for pattern in fields.child("dynamic"):
        expression = f"re:{pattern.removeprefix('+:').removeprefix('-:')}"
        if pattern.startswith("-:"):
            plain.append(expression)
        else:
            own = fields.child("dynamic").child(pattern).behind(**_usual(fields))
            overrides.append((expression, replace(_grouped(own, "gptq"), column_bytes=4)))
    return tuple(overrides), tuple(plain)


def torchao(fields: ConfigFields) -> Quantisation:
    """PyTorch's own: a config class by name, or an older name with arguments."""
    excluded = ("lm_head", *excluded_modules(fields, "modules_to_not_convert"))
    kind, arguments = _torchao_kind(fields)
    plain = kind.lower().replace("_", "").removesuffix("config")
    if plain in ("int8weightonly", "int8dynamicactivationint8weight"):
        return Quantisation("torchao", INT8_CHANNEL, excluded, towers=True)
    if plain in ("float8weightonly", "float8dynamicactivationfloat8weight"):
        return Quantisation("torchao", _FP8_ROW, excluded, towers=True)
    if plain == "int4weightonly":
        group = arguments.integer("group_size", default=128)
        stored = WeightFormat("torchao-int4", 4, scale_bytes=4, rows_per_scale=1, columns_per_scale=group)
        return Quantisation("torchao", stored, excluded, towers=True)
    raise unsupported(fields, "quant_type", f"torchao's {kind[:40]!r}")


def _torchao_kind(fields: ConfigFields) -> tuple[str, ConfigFields]:
    if isinstance(fields.raw("quant_type"), str):
        return fields.text("quant_type"), fields.child("quant_type_kwargs")
    default = fields.child("quant_type").child("default")
    return default.text("_type"), default.child("_data")


def hqq(fields: ConfigFields) -> Quantisation:
    """HQQ: a scale and a zero in 16 bits for every group."""
    params = fields.child("quant_config")
    own = params.child("weight_quant_params")
    if "nbits" not in own:
        raise unsupported(fields, "quant_config", "HQQ with a format for each kind of layer")
    for name in ("scale_quant_params", "zero_quant_params"):
        if name in params:
            raise unsupported(params, name, "HQQ with quantised scales")
    bits, group = own.integer("nbits", maximum=8), own.integer("group_size", default=64, minimum=-1)
    if bits not in (1, 2, 3, 4, 8):
        raise unsupported(own, "nbits", f"HQQ with {bits}-bit weights")
    stored = WeightFormat(f"hqq-int{bits}", bits, 4, rows_per_scale=1, columns_per_scale=max(group, 0))
    return Quantisation("hqq", stored, excluded_modules(fields, "skip_modules") or ("lm_head",))


def aqlm(fields: ConfigFields) -> Quantisation:
    """AQLM: a code for every group of weights, codebooks for every matrix, a scale for every row."""
    columns, rows = fields.integer("in_group_size", default=8), fields.integer("out_group_size", default=1)
    books, bits = (
        fields.integer("num_codebooks", default=1),
        fields.integer("nbits_per_codebook", default=16, maximum=32),
    )
    if bits not in (8, 16):
        raise unsupported(fields, "nbits_per_codebook", f"AQLM with codes of {bits} bits")
    stored = WeightFormat(
        f"aqlm-{books}x{bits}",
        0,
        scale_bytes=books * bits // 8,
        rows_per_scale=rows,
        columns_per_scale=columns,
        matrix_bytes=books * (1 << bits) * rows * columns * 2,
        row_bytes=2,
    )
    return Quantisation("aqlm", stored, ("lm_head", *excluded_modules(fields, "linear_weights_not_to_quantize")))


def bitnet(fields: ConfigFields) -> Quantisation | None:
    """BitNet: three values in two bits, and a scale for every matrix; weights that are quantised online stay wide."""
    if fields.text("quantization_mode", "offline") == "online":
        return None
    stored = WeightFormat("bitnet", 2, matrix_bytes=2)
    return Quantisation("bitnet", stored, ("lm_head", *excluded_modules(fields, "modules_to_not_convert")))


def exllama(fields: ConfigFields) -> Quantisation:
    """EXL2 and EXL3: an average of bits over all matrices, and another for the head."""
    method = fields.text("quant_method").lower()
    return Quantisation(
        method, _average(fields, "bits", method), (), (("lm_head", _average(fields, "head_bits", method)),)
    )


def _average(fields: ConfigFields, name: str, method: str) -> WeightFormat:
    """So many bits a weight on average, with everything that belongs to it: bytes for 256 weights."""
    bits = fields.ratio(name, default=6.0 if name == "head_bits" else 0.0)
    if not 1 <= bits <= _UNQUANTISED_BITS:
        raise InvalidConfig(fields.where(name), "missing, or outside 1 to 16", "it says how many bits a weight has")
    return WeightFormat(f"{method}-{bits:g}", 0, scale_bytes=round(bits * 32), rows_per_scale=1, columns_per_scale=256)

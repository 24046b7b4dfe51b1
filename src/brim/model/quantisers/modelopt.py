"""NVIDIA's ModelOpt: one algorithm for all modules, or one for each, in config.json or in hf_quant_config.json."""

from __future__ import annotations

import re

from brim.model.fields import ConfigFields
from brim.model.quantisers.common import excluded_modules, read_kv_scheme, unsupported
from brim.model.quantisers.plain import fp8_format
from brim.model.quantisers.weight_formats import (
    FP8_BLOCK,
    FP8_CHANNEL,
    FP8_TENSOR,
    INT8_CHANNEL,
    MXFP4,
    MXFP8,
    NAMED_FORMATS,
    NVFP4,
)
from brim.records.model import Dtype, Quantisation, WeightFormat

_FORMATS = {
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
_KV_DTYPES = {"FP8": Dtype.FP8, "NVFP4": Dtype.FP8, "INT8": Dtype.INT8}  # engines keep an NVFP4 cache in fp8


def modelopt(fields: ConfigFields, sidecar: ConfigFields, algo: str) -> Quantisation:
    """`sidecar` is the "quantization" of hf_quant_config.json; empty where there is none."""
    layers = sidecar.child("quantized_layers") if "quantized_layers" in sidecar else fields.child("quantized_layers")
    base = fp8_format(fields) if fields.text("quant_method") == "fp8" and "weight_block_size" in fields else None
    default = base if algo == "MIXED_PRECISION" else _format(fields, "quant_algo", algo)
    excluded = (*excluded_modules(sidecar, "exclude_modules"), *excluded_modules(fields, "ignore", "exclude_modules"))
    return Quantisation(
        "modelopt",
        default,
        excluded if excluded and not base else ("lm_head", "head"),
        _layers(layers),
        towers=bool(excluded),
        kv_dtype=_kv_dtype(fields, sidecar),
    )


def _kv_dtype(fields: ConfigFields, sidecar: ConfigFields) -> Dtype | None:
    """In whichever of the places that releases of the tool have used."""
    for place, name in ((sidecar, "kv_cache_quant_algo"), (fields, "kv_cache_quant_algo"), (fields, "kv_cache_scheme")):
        value = place.raw(name)
        if isinstance(value, str) and value:
            if value.upper() not in _KV_DTYPES:
                raise unsupported(place, name, f"a KV cache in {value[:40]!r}")
            return _KV_DTYPES[value.upper()]
    return read_kv_scheme(fields)


def _format(fields: ConfigFields, name: str, algo: str) -> WeightFormat:
    if algo not in _FORMATS:
        raise unsupported(fields, name, f"quantisation {algo[:40]!r} (not one of {', '.join(_FORMATS)})")
    return _FORMATS[algo]


def _layers(layers: ConfigFields) -> tuple[tuple[str, WeightFormat], ...]:
    """Per-module formats. Experts are listed one by one in some files: one entry speaks for all of a layer's."""
    found: dict[str, WeightFormat] = {}
    for name in layers:
        pattern = re.sub(r"\.experts\.\d+\.", ".experts.", name)
        if pattern not in found:
            found[pattern] = _format(layers, name[:60], layers.child(name).text("quant_algo").upper())
    return tuple(found.items())

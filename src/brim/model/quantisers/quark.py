"""AMD's Quark: a format for all modules, others for some, and the KV cache as the output of two projections.

`exclude` and the keys of `layer_quant_config` are patterns with `*`. A KV cache is stated in `kv_cache_quant_config`,
or in older files as the output type of the layers that `export.kv_cache_group` lists.
"""

from __future__ import annotations

from collections.abc import Iterator

from brim.model.fields import ConfigFields
from brim.model.quantisers.common import excluded_modules, unsupported
from brim.model.quantisers.weight_formats import MXFP4, MXFP6, MXFP8
from brim.records.model import Dtype, Quantisation, WeightFormat

_MX_ELEMENTS = {
    "fp4": MXFP4,
    "fp4_e2m1": MXFP4,
    "fp6_e2m3": MXFP6,
    "fp6_e3m2": MXFP6,
    "fp8_e4m3": MXFP8,
    "fp8_e5m2": MXFP8,
}
_EIGHT_BITS = {"fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "int8": "int8"}
_KV_DTYPES = {"fp8_e4m3": Dtype.FP8, "fp8_e5m2": Dtype.FP8, "int8": Dtype.INT8}


def quark(fields: ConfigFields) -> Quantisation:
    export = fields.child("export")
    if export.text("weight_format", "real_quantized") != "real_quantized":
        raise unsupported(export, "weight_format", f"{export.text('weight_format')[:40]!r} (weights that stay wide)")
    if fields.raw("layer_type_quant_config"):
        raise unsupported(fields, "layer_type_quant_config", "a format by type of module")
    overrides, plain = [], []
    layers = fields.child("layer_quant_config")
    for pattern in layers:
        stored = _stored_format(layers.child(pattern))
        if stored is None:
            plain.append(pattern)
        else:
            overrides.append((pattern, stored))
    return Quantisation(
        "quark",
        _stored_format(fields.child("global_quant_config")),
        (*excluded_modules(fields, "exclude"), *plain),
        tuple(overrides),
        towers=True,
        kv_dtype=_kv_dtype(fields),
    )


def _stored_format(layer: ConfigFields) -> WeightFormat | None:
    """The format of a layer's weights; None where they are left as they are."""
    if "weight" not in layer:
        return None
    weight = layer.child("weight")
    kind, scheme = weight.text("dtype").lower(), weight.text("qscheme").lower()
    if kind == "mx":  # older files name the element apart
        return _microscaled(weight, "mx_element_dtype")
    if scheme == "per_group" and weight.text("scale_format").lower() == "e8m0":
        return _microscaled(weight, "dtype")
    if kind in _EIGHT_BITS and scheme in ("per_tensor", "per_channel"):
        return _eight_bits(layer, weight, _EIGHT_BITS[kind], by_row=scheme == "per_channel")
    raise unsupported(weight, "dtype", f"Quark's {kind[:20]!r} weights with qscheme {scheme[:20]!r}")


def _microscaled(weight: ConfigFields, name: str) -> WeightFormat:
    element, group = weight.text(name).lower(), weight.integer("group_size", default=32)
    if element not in _MX_ELEMENTS:
        raise unsupported(weight, name, f"Quark's element type {element[:20]!r}")
    if group != 32:
        raise unsupported(weight, "group_size", f"a shared exponent for {group} elements")
    return _MX_ELEMENTS[element]


def _eight_bits(layer: ConfigFields, weight: ConfigFields, name: str, *, by_row: bool) -> WeightFormat:
    """Scales in fp32: of the weights, by row or one, and of the inputs where they are not found while running."""
    if weight.raw("symmetric") is False:
        raise unsupported(weight, "symmetric", "Quark's asymmetric 8-bit weights")
    inputs = layer.child("input_tensors") if isinstance(layer.raw("input_tensors"), dict) else ConfigFields({})
    static = 4 if "dtype" in inputs and not inputs.boolean("is_dynamic", False) else 0
    if by_row:
        return WeightFormat(f"{name}-channel", 8, scale_bytes=4, rows_per_scale=1, matrix_bytes=static)
    return WeightFormat(name, 8, matrix_bytes=4 + static)


def _kv_dtype(fields: ConfigFields) -> Dtype | None:
    for outputs in _kv_outputs(fields):
        kind = outputs.text("dtype").lower()
        if kind not in _KV_DTYPES:
            raise unsupported(outputs, "dtype", f"a KV cache in {kind[:20]!r}")
        return _KV_DTYPES[kind]
    return None


def _kv_outputs(fields: ConfigFields) -> Iterator[ConfigFields]:
    own, layers = fields.child("kv_cache_quant_config"), fields.child("layer_quant_config")
    named = [(own, name) for name in own]
    named += [(layers, name) for name in fields.child("export").texts("kv_cache_group")]
    for place, name in named:
        if name in place and "output_tensors" in place.child(name):
            yield place.child(name).child("output_tensors")

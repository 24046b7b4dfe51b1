"""MLX, for Apple's GPUs: a `quantization` beside the config's fields, with formats of single modules among its own.

Embeddings are quantised too. Each group has a scale and a bias in 16 bits (`affine`), or an exponent (`mxfp4`).
"""

from __future__ import annotations

from brim.model.fields import ConfigFields
from brim.model.quantisers.common import unsupported
from brim.model.quantisers.weight_formats import MXFP4, MXFP8
from brim.records.model import Quantisation, WeightFormat


def is_mlx(fields: ConfigFields) -> bool:
    """MLX states bits and group size, and names no method."""
    return {"bits", "group_size"} <= set(fields) and "quant_method" not in fields


def mlx(fields: ConfigFields) -> Quantisation:
    default = _stored_format(fields)
    overrides, plain = [], []
    for name in fields:
        value = fields.raw(name)
        if value is False:
            plain.append(name)
        elif isinstance(value, dict):
            overrides.append((name, _stored_format(fields.child(name).behind(mode=fields.text("mode", "affine")))))
    return Quantisation("mlx", default, tuple(plain), tuple(overrides), embeddings=True)


def _stored_format(fields: ConfigFields) -> WeightFormat:
    mode, bits = fields.text("mode", "affine"), fields.integer("bits", maximum=32)
    if mode in ("mxfp4", "mxfp8"):
        return MXFP4 if mode == "mxfp4" else MXFP8
    if mode != "affine" or bits not in (2, 3, 4, 5, 6, 8):
        raise unsupported(fields, "mode" if mode != "affine" else "bits", f"MLX's {bits}-bit {mode[:20]!r} weights")
    return WeightFormat(f"mlx-int{bits}", bits, 4, rows_per_scale=1, columns_per_scale=fields.integer("group_size"))

"""What several quantisers read: modules left alone, and the type of the KV cache."""

from __future__ import annotations

from brim.errors import UnsupportedModel
from brim.model.fields import ConfigFields
from brim.records.model import Dtype


def excluded_modules(fields: ConfigFields, *names: str) -> tuple[str, ...]:
    """The patterns under several names, each once."""
    return tuple(dict.fromkeys(pattern for name in names for pattern in fields.texts(name)))


def unsupported(fields: ConfigFields, name: str, what: str) -> UnsupportedModel:
    """A format that Brim does not know the size of."""
    return UnsupportedModel(
        f"config field '{fields.where(name)}': {what} is not supported; plan the original checkpoint with --weights"
    )


def read_kv_scheme(fields: ConfigFields) -> Dtype | None:
    """The type of the KV cache as `kv_cache_scheme` states it; None where it does not."""
    if "kv_cache_scheme" not in fields:
        return None
    scheme = fields.child("kv_cache_scheme")
    bits, kind = scheme.integer("num_bits", default=8, maximum=64), scheme.text("type", "float")
    if bits != 8 or kind not in ("float", "int"):
        raise unsupported(fields, "kv_cache_scheme", f"a KV cache of {bits}-bit {kind[:20]}")
    return Dtype.FP8 if kind == "float" else Dtype.INT8

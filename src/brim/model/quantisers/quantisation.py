"""Quantised weights: which modules a config says are stored in which format.

In: `quantization_config` and, where there is one, `hf_quant_config.json`. Out: a `Quantisation`, or None for plain
weights. Unknown methods are refused by name: a wrong guess here is off by a factor of four.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from brim.errors import InvalidConfig, UnsupportedModel
from brim.model.fields import ConfigFields
from brim.model.quantisers import plain, weight_only
from brim.model.quantisers.compressed_tensors import compressed_tensors
from brim.model.quantisers.mlx import is_mlx, mlx
from brim.model.quantisers.modelopt import modelopt
from brim.model.quantisers.quark import quark
from brim.model.quantisers.weight_formats import MXFP4, NAMED_FORMATS, matrix_bytes
from brim.records.model import Quantisation

__all__ = ["NAMED_FORMATS", "matrix_bytes", "read_quantisation"]

_READERS: Mapping[str, Callable[[ConfigFields], Quantisation | None]] = {
    "aqlm": weight_only.aqlm,
    "auto-round": weight_only.auto_round,
    "awq": plain.awq,
    "bitnet": weight_only.bitnet,
    "bitsandbytes": plain.bitsandbytes,
    "compressed-tensors": compressed_tensors,
    "exl2": weight_only.exllama,
    "exl3": weight_only.exllama,
    "fbgemm_fp8": plain.fbgemm_fp8,
    "fp8": plain.fp8,
    "gptq": plain.gptq,
    "hqq": weight_only.hqq,
    "intel/auto-round": weight_only.auto_round,
    "mxfp4": plain.mxfp4,
    "quark": quark,
    "torchao": weight_only.torchao,
}


def read_quantisation(fields: ConfigFields, sidecar: ConfigFields, expert_dtype: str = "") -> Quantisation | None:
    """The config's quantisation; that of `hf_quant_config.json` where the config has none or refers to that file.

    `expert_dtype` is DeepSeek V4's field for experts stored in fp4 while the rest is fp8.
    """
    found = _read_method(fields, sidecar)
    if found is not None and expert_dtype == "fp4" and not found.overrides:
        return replace(found, overrides=(("*.experts.*", MXFP4),))
    return found


def _read_method(fields: ConfigFields, sidecar: ConfigFields) -> Quantisation | None:
    if is_mlx(fields):
        return mlx(fields)
    inner = sidecar.child("quantization")
    method = fields.text("quant_method").lower() or _unnamed_method(fields)
    algo = (fields.text("quant_algo") or inner.text("quant_algo")).upper()
    if method in ("modelopt", "modelopt_fp4") or (algo and method in ("", "fp8")):
        return modelopt(fields, inner, algo)
    if method in _READERS:
        return _READERS[method](fields)
    if method:
        raise UnsupportedModel(
            f"config field '{fields.where('quant_method')}': {method[:40]!r} is not one of "
            f"{', '.join([*_READERS, 'modelopt'])}; plan the original checkpoint with --weights"
        )
    if any(name in fields for name in fields):
        raise InvalidConfig(fields.where("quant_method"), "missing", "it says how the weights are stored")
    return None


def _unnamed_method(fields: ConfigFields) -> str:
    """The method of a config that does not name it but cannot be of another; "" where that is not so."""
    return "bitsandbytes" if fields.raw("load_in_4bit") or fields.raw("load_in_8bit") else ""

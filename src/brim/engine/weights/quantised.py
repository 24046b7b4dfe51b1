"""Checkpoints in a quantised format, which the engine does not run yet: refused before anything is loaded.

In: what config.json says, and the directory it is in. Out: nothing, or `UnsupportedModel` with the format and the
command of an engine that runs it, with the flags that `brim plan` gives for the GPU of this machine where there is one.
Knows nothing of weights: a format that no file tells of is not noticed.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brim.errors import BrimError, UnsupportedModel
from brim.model.jsonfile import read_object
from brim.model.source import load_model
from brim.planning.devices import find_device
from brim.planning.engines import EngineRules, engine_for
from brim.planning.engines.models import is_quantised
from brim.planning.plan import make_plan
from brim.records.plan import PlanRequest

_SIDECAR = "hf_quant_config.json"


def refuse_quantised(source: str, config: Mapping[str, Any], folder: Path) -> None:
    """Refuse a model whose files say that its weights are quantised."""
    method = _method(config) or _sidecar_method(folder / _SIDECAR)
    if method is None:
        return
    engine = engine_for(method)
    remedy = "run it with transformers itself" if engine is None else f"run it with: {_command(source, engine)}"
    raise UnsupportedModel(
        f"{is_quantised(source, method)}; {remedy} (or unquantised with random weights: --load-format dummy)"
    )


def _method(config: Mapping[str, Any]) -> str | None:
    """The format that a config names, or the config of a model inside it."""
    for name, value in config.items():
        if not isinstance(value, Mapping):
            continue
        if name == "compression_config":
            return "compressed-tensors"
        if name == "quantization_config" and value:
            return _named(value)
        inner = _method(value)
        if inner is not None:
            return inner
    return None


def _named(fields: Mapping[str, Any]) -> str:
    method = fields.get("quant_method")
    if isinstance(method, str) and method:
        return method.lower()
    if fields.get("load_in_4bit") or fields.get("load_in_8bit"):
        return "bitsandbytes"
    return "modelopt" if "quant_algo" in fields else "quantization_config without quant_method"


def _sidecar_method(path: Path) -> str | None:
    """ModelOpt may leave its word to a file beside config.json."""
    fields = read_object(path).get("quantization") if path.is_file() else None
    return "modelopt" if isinstance(fields, dict) and fields.get("quant_algo") else None


def _command(source: str, engine: EngineRules) -> str:
    """As planned for this machine; bare where it has no GPU, or the model is more than Brim can plan or than fits."""
    bare = shlex.join([*engine.launch, source])
    try:
        return make_plan(load_model(source), (find_device("auto"),), PlanRequest(engine=engine.name)).shell or bare
    except BrimError:
        return bare

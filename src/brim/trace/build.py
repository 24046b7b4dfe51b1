"""A `transformers` model from its config, on the meta device: every tensor has its shape and none has memory.

In: the dict of a config.json. Out: a model in evaluation mode. Remote code is never run: a model that needs it cannot
be traced, and that is said. Foreign errors are translated here and nowhere else.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from brim.errors import CannotTrace
from brim.model.fields import LARGEST_CONTEXT, LARGEST_LAYER_COUNT
from brim.trace.attention import FUSED, register_fused

_TABLES = ("IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "SEQ_TO_SEQ_CAUSAL_LM")
_NOT_THE_MODEL_S = ("quantization_config", "auto_map", "torch_dtype", "dtype")


def require_transformers() -> None:
    """Say what to install where the libraries are missing."""
    try:
        import torch  # noqa: F401
        import transformers
    except ImportError as error:
        raise CannotTrace(f"a trace needs {error.name}: pip install 'brim[engine]'") from None
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]


def build_model(config: Mapping[str, Any], dtype: str = "bf16", attention: str = "sdpa") -> tuple[Any, str]:
    """(model, attention it runs with): the class's eager attention where it has no other."""
    require_transformers()
    import torch
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    _check_sizes(config)
    fields = _plain(copy.deepcopy(dict(config)))
    kind = str(fields.pop("model_type", ""))
    cls = getattr(transformers, class_name(kind, config), None)
    if cls is None:
        raise CannotTrace(f"transformers {transformers.__version__} does not have the class of '{kind[:60]}'")
    if attention == FUSED:
        register_fused()
    types = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    before = torch.get_default_dtype()
    try:
        loaded = CONFIG_MAPPING[kind].from_dict(fields)
        with torch.device("meta"):
            torch.set_default_dtype(types[dtype])
            return _instance(cls, loaded, attention)
    except CannotTrace:
        raise
    except Exception as error:
        raise CannotTrace(f"transformers cannot build '{kind[:60]}' from this config: {_first_line(error)}") from error
    finally:
        torch.set_default_dtype(before)


def _instance(cls: Any, config: Any, attention: str) -> tuple[Any, str]:
    try:
        return cls._from_config(config, attn_implementation=attention).eval(), attention
    except ValueError as error:
        if attention == "eager" or "attention" not in str(error).lower():
            raise
        return cls._from_config(config, attn_implementation="eager").eval(), "eager"


def class_name(kind: str, config: Mapping[str, Any]) -> str:
    """The name of the transformers class that runs a model type."""
    from transformers.models.auto import modeling_auto

    for table in _TABLES:
        name = getattr(modeling_auto, f"MODEL_FOR_{table}_MAPPING_NAMES", {}).get(kind)
        if name:
            return name if isinstance(name, str) else str(name[0])
    remote = " (its own repository's code would be needed, and is never run)" if "auto_map" in config else ""
    raise CannotTrace(f"transformers does not know the model type '{kind[:60]}'{remote}; plan it with --no-trace")


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    """A config without what says how it is stored: a trace is of the computation."""
    return {
        name: _plain(value) if isinstance(value, dict) else value
        for name, value in fields.items()
        if name not in _NOT_THE_MODEL_S
    }


def _check_sizes(config: Mapping[str, Any], path: str = "") -> None:
    """Refuse what would build modules without end: a config is somebody's file, and layers are real objects."""
    for name, value in config.items():
        if isinstance(value, dict):
            _check_sizes(value, f"{path}{name}.")
        elif isinstance(value, int) and not isinstance(value, bool):
            counts = any(word in name for word in ("layer", "depth", "num_experts", "n_routed_experts"))
            largest = LARGEST_LAYER_COUNT if counts and "size" not in name else LARGEST_CONTEXT
            if value > largest:
                raise CannotTrace(f"config field '{path}{name}' is larger than {largest}: not traced")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]

"""A `transformers` model from its config, on the meta device: tensors have shapes and no memory.

In: the dict of a config.json. Out: a model in evaluation mode. Remote code is never run: a model that needs it is
refused. Errors of other libraries are translated only here.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from typing import Any

from brim.errors import CannotTrace, InvalidConfig, UnsupportedModel, first_line
from brim.install import install_command
from brim.model.transformers_classes import check_sizes, config_object, find_class, missing_library, named_class
from brim.trace.attention import FUSED, register_fused

MIXED = "mixed"  # sdpa, and eager in a tower that has no other
_NOT_THE_MODEL_S = ("quantization_config", "auto_map", "torch_dtype", "dtype")  # a trace is of the computation


def require_transformers() -> None:
    """Refuse, with what to install, where the libraries are missing."""
    missing = missing_library()
    if missing is not None:
        raise CannotTrace(f"a trace needs {missing}: {install_command('engine')}")
    import transformers

    transformers.logging.set_verbosity(logging.CRITICAL)  # errors are raised too


def build_model(
    config: Mapping[str, Any], dtype: str = "bf16", attention: str = "sdpa", *, by_architecture: bool = False
) -> tuple[Any, str]:
    """(model, attention it runs with): the class's eager attention where it has no other, or its tower's.

    The class is the one that generates text, or `by_architecture` the one that the config names.
    """
    require_transformers()
    import torch

    kind = str(config.get("model_type", ""))
    try:
        check_sizes(config)
        cls = (named_class(kind, config) if by_architecture else None) or find_class(kind, config)
    except (InvalidConfig, UnsupportedModel) as error:
        raise CannotTrace(str(error) if by_architecture else f"{error}; plan it with --no-trace") from None
    if attention == FUSED:
        register_fused()
    types = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    before = torch.get_default_dtype()
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of fields that newer releases spell otherwise
            loaded = config_object(config, _NOT_THE_MODEL_S)
            torch.set_default_dtype(types[dtype])
            return _instance(cls, loaded, attention)
    except CannotTrace:
        raise
    except Exception as error:
        raise CannotTrace(f"transformers cannot build '{kind[:60]}' from this config: {first_line(error)}") from error
    finally:
        torch.set_default_dtype(before)


def _instance(cls: Any, config: Any, attention: str) -> tuple[Any, str]:
    try:
        return cls._from_config(config, attn_implementation=attention).eval(), attention
    except ValueError as error:
        if attention == "eager" or "attention" not in str(error).lower():
            raise
        model = cls._from_config(config, attn_implementation=None).eval()  # of each part its own, as it is loaded
        return model, MIXED if model.config._attn_implementation == "sdpa" else "eager"

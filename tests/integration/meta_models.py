"""Building `transformers` models without memory, for comparing what they are with what a spec says."""

from __future__ import annotations

import copy
from typing import Any


def known_types() -> set[str]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return set(CONFIG_MAPPING_NAMES)


def build_meta(config: dict[str, Any]) -> Any:
    """The model of a config on the meta device: every parameter has its shape and none has memory."""
    import torch
    import transformers
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    transformers.logging.set_verbosity_error()
    fields = copy.deepcopy(config)
    for name in ("quantization_config", "auto_map"):
        fields.pop(name, None)
    kind = fields.pop("model_type")
    tables = ("IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "CAUSAL_LM", "SPEECH_SEQ_2_SEQ")
    names = [getattr(modeling_auto, f"MODEL_FOR_{table}_MAPPING_NAMES", {}).get(kind) for table in tables]
    name = next(found for found in names if found)
    cls = getattr(transformers, name if isinstance(name, str) else name[0])
    loaded = CONFIG_MAPPING[kind].from_dict(fields)
    with torch.device("meta"):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            return cls._from_config(loaded, attn_implementation="eager")
        finally:
            torch.set_default_dtype(before)


def parameter_count(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())

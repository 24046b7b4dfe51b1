"""The `transformers` class and config object of a model, for the trace and the engine.

In: the dict of a config.json. Out: a class and an object of the installed `transformers`. Remote code is never run: a
model that needs it has no class here. `transformers` is imported inside the functions only, and its errors on a bad
config are left to the caller.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any

from brim.errors import InvalidConfig, InvalidRequest, UnsupportedModel
from brim.model.fields import LARGEST_CONTEXT, LARGEST_LAYER_COUNT

_TABLES = ("IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "SEQ_TO_SEQ_CAUSAL_LM")


def missing_library() -> str | None:
    """The name of the library that is not installed, where one is not."""
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        return error.name
    return None


def check_libraries() -> None:
    """What runs a model is an extra, and may not be installed."""
    missing = missing_library()
    if missing is not None:
        raise InvalidRequest(f"running a model needs {missing}: pip install 'brim[engine]'")


def class_name(kind: str, config: Mapping[str, Any]) -> str:
    """The name of the transformers class that runs a model type."""
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    for table in _TABLES:
        name = getattr(modeling_auto, f"MODEL_FOR_{table}_MAPPING_NAMES", {}).get(kind)
        if name:
            return name if isinstance(name, str) else str(name[0])
    if kind in CONFIG_MAPPING:
        raise UnsupportedModel(f"transformers has no class that generates text for the model type '{kind[:60]}'")
    remote = " (its own repository's code would be needed, and is never run)" if "auto_map" in config else ""
    raise UnsupportedModel(f"transformers does not know the model type '{kind[:60]}'{remote}")


def find_class(kind: str, config: Mapping[str, Any]) -> Any:
    """The transformers class that runs a model type."""
    import transformers

    found = getattr(transformers, class_name(kind, config), None)
    if found is None:
        raise UnsupportedModel(f"transformers {transformers.__version__} does not have the class of '{kind[:60]}'")
    return found


def is_encoder(kind: str, config: Any) -> bool:
    """True for a config object of a masked language model, which does not generate text (such as BERT)."""
    from transformers.models.auto import modeling_auto

    return kind in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(config, "is_decoder", False)


def config_object(config: Mapping[str, Any], leave_out: Collection[str] = ()) -> Any:
    """A config as its transformers class holds it, without some fields, wherever in it they are."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    fields = _without(copy.deepcopy(dict(config)), leave_out)
    return CONFIG_MAPPING[str(fields.pop("model_type", ""))].from_dict(fields)


def _without(fields: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {
        name: _without(value, names) if isinstance(value, dict) else value
        for name, value in fields.items()
        if name not in names
    }


def check_sizes(config: Mapping[str, Any], path: str = "") -> None:
    """Refuse a config that would build an absurd number of modules: a config is untrusted input."""
    for name, value in config.items():
        if isinstance(value, dict):
            check_sizes(value, f"{path}{name}.")
        elif isinstance(value, int) and not isinstance(value, bool):
            counts = any(word in name for word in ("layer", "depth", "num_experts", "n_routed_experts"))
            largest = LARGEST_LAYER_COUNT if counts and "size" not in name else LARGEST_CONTEXT
            if value > largest:
                raise InvalidConfig(
                    f"{path}{name}", f"is larger than {largest}", "point to the model's own config.json"
                )

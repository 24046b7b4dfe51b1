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
from brim.install import install_command
from brim.model.fields import LARGEST_CONTEXT, LARGEST_EXPERT_COUNT, LARGEST_LAYER_COUNT

_TABLES = ("IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "SPEECH_SEQ_2_SEQ", "CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM")


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
        raise InvalidRequest(f"running a model needs {missing}: {install_command('engine')}")


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


def named_class(kind: str, config: Mapping[str, Any]) -> Any:
    """The class that a config names in `architectures`, if it is one of its model type's; else None."""
    import transformers

    named = config.get("architectures")
    name = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    found = getattr(transformers, name, None) if name.isidentifier() else None
    own = getattr(getattr(found, "config_class", None), "model_type", None)
    return found if own == kind else None


def is_encoder(kind: str, config: Any) -> bool:
    """True for a config object of a masked language model, which does not generate text (such as BERT)."""
    from transformers.models.auto import modeling_auto

    return kind in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(config, "is_decoder", False)


def config_object(config: Mapping[str, Any], leave_out: Collection[str] = ()) -> Any:
    """A config as its transformers class holds it, without some fields, wherever in it they are."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    fields = _without(_with_infinities(copy.deepcopy(dict(config))), leave_out)
    return CONFIG_MAPPING[str(fields.pop("model_type", ""))].from_dict(fields)


def _with_infinities(value: Any) -> Any:
    """A config's numbers that JSON has none for, which `transformers` writes as objects."""
    if isinstance(value, dict):
        return (
            float(value["__float__"])
            if set(value) == {"__float__"}
            else {k: _with_infinities(v) for k, v in value.items()}
        )
    return [_with_infinities(one) for one in value] if isinstance(value, list) else value


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
            counts = any(word in name for word in ("layer", "depth"))
            largest = LARGEST_LAYER_COUNT if counts and "size" not in name else LARGEST_CONTEXT
            largest = LARGEST_EXPERT_COUNT if "num_experts" in name or "n_routed_experts" in name else largest
            if value > largest:
                raise InvalidConfig(
                    f"{path}{name}", f"is larger than {largest}", "point to the model's own config.json"
                )

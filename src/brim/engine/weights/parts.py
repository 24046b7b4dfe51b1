"""One part of a vision-language model, without the other: its towers for an encoder, or its decoder for an engine.

The parts of a `transformers` model are told apart by their place, and by no name of a family: what its base model has
besides the decoder (`language_model`) are towers and their projectors. In: a class and a config, or a whole model. Out:
the same model with the modules of the other part gone. Their methods stay, and fail only where they would run.

From files, modules are dropped before anything is read. Random weights of towers are drawn first, as a whole model
draws them where its towers are its first modules, so that both have the same numbers; a decoder comes after the towers,
so that for those of an engine the whole model is drawn once.
"""

from __future__ import annotations

import inspect
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from brim.errors import UnsupportedModel

if TYPE_CHECKING:
    import torch
    from torch import nn

_DECODER = "language_model"


class ModelPart(StrEnum):
    """What of a model a process loads."""

    WHOLE = "whole"
    TOWERS = "towers"  # what makes features of images and audio
    DECODER = "decoder"  # what reads them, and text


def decoder_name(model: Any) -> str | None:
    """Where a base model keeps its decoder, beside its towers; None for a model of text.

    Omni models of transformers 5.17 have no base model: towers, decoder and head are all modules of the class itself.
    """
    base = model.base_model
    if getattr(base, _DECODER, None) is not None:
        return _DECODER
    decoder = model.get_decoder() if base is model else None
    return next((name for name, module in base.named_children() if module is decoder), None)


def tower_names(model: Any) -> tuple[str, ...]:
    """The modules of a base model that are neither its decoder nor a head; none for a model of text."""
    decoder = decoder_name(model)
    if decoder is None:
        return ()
    head = model.get_output_embeddings()
    modules = model.base_model.named_children()
    return tuple(name for name, module in modules if name != decoder and module is not head)


def keep_part(model: Any, part: ModelPart) -> Any:
    """The same model, with the modules of the other part gone."""
    names = tower_names(model)
    if part is ModelPart.WHOLE or not names:
        return model
    base = model.base_model
    if part is ModelPart.DECODER:
        for name in names:
            setattr(base, name, None)
        return model
    setattr(base, decoder_name(model) or _DECODER, None)
    kept = {base, *(getattr(base, name) for name in names)}
    for name, module in list(model.named_children()):
        if module not in kept:
            setattr(model, name, None)
    return model


def class_of_part(cls: Any, part: ModelPart) -> Any:
    """A class whose models have one part only, for a loader that makes them before it reads weights."""
    if part is ModelPart.WHOLE:
        return cls

    def make(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        cls.__init__(self, config, *args, **kwargs)
        keep_part(self, part)
        if part is ModelPart.TOWERS:
            self.all_tied_weights_keys = {}  # those of the decoder and its head

    return type(cls.__name__, (cls,), {"__init__": make, "__module__": cls.__module__})


def random_towers(
    cls: Any, config: Any, dtype: Any, attention: str | dict[str, str] | None, place: torch.device
) -> Any:
    """A model of towers alone, its weights drawn on a device; the rest is never made there."""
    import torch

    with torch.device("meta"):
        model = cls._from_config(config, dtype=dtype, attn_implementation=attention)
    names = tower_names(model)
    if not names:
        raise UnsupportedModel(f"'{config.model_type}' has no towers; run it with --encoder inline")
    model = keep_part(model, ModelPart.TOWERS)
    with place:
        for name in names:
            module = getattr(model.base_model, name)
            made = _filled(module, model, place) if _asks_for_more(module) else _drawn(module, config, dtype, attention)
            setattr(model.base_model, name, made)
    return model


def _asks_for_more(module: nn.Module) -> bool:
    """Whether a projector is made of more than the model's config (Gemma 4)."""
    return not hasattr(type(module), "_from_config") and len(inspect.signature(type(module)).parameters) > 1


def _filled(module: nn.Module, model: Any, place: torch.device) -> nn.Module:
    """The module itself on a device, each layer in it drawn as the model's class does."""
    assert not list(module.buffers()), "what a class computes once is not drawn"
    module = module.to_empty(device=place)
    for layer in module.modules():
        model._init_weights(layer)
    return module


def _drawn(module: nn.Module, config: Any, dtype: Any, attention: str | dict[str, str] | None) -> nn.Module:
    """A module like this one, with weights: a tower by its own config, a projector by that of the model."""
    kind: Any = type(module)
    if hasattr(kind, "_from_config"):
        made: nn.Module = kind._from_config(module.config, dtype=dtype, attn_implementation=attention)
        return made
    return kind(config).to(dtype)  # type: ignore[no-any-return]

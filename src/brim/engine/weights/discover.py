"""What a model's attention layers keep, learnt from the model itself: it is run once on two tokens.

In: a loaded model whose attention implementation is Brim's. Out: its attention modules in the order they are called,
and the geometry of each. Models whose attention cannot be paged are refused here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from brim.engine.attention.latent import KeptLatents
from brim.engine.attention.paged import attach, detach
from brim.engine.attention.recorder import GeometryRecorder
from brim.engine.kv.geometry import LayerGeometry
from brim.engine.recurrent.scans.stand_ins import own_scans
from brim.engine.recurrent.states import class_forward, recurrent_mixers
from brim.errors import UnsupportedModel

_TOKENS = 2


@dataclass(frozen=True, slots=True)
class AttentionLayers:
    """The attention modules of a model, in order, and what each keeps."""

    modules: tuple[torch.nn.Module, ...]
    geometry: tuple[LayerGeometry, ...]


@torch.inference_mode()
def discover_layers(text_model: Any, config: Any) -> AttentionLayers:
    """Run two tokens through the model and note what its attention layers ask for."""
    _check_supported(config, text_model.backbone)
    recorder = GeometryRecorder()
    latents = KeptLatents(text_model.backbone)
    for module in text_model.backbone.modules():
        attach(module, recorder)
    try:
        device = next(text_model.backbone.parameters()).device
        tokens = torch.zeros(_TOKENS, dtype=torch.long, device=device)
        with own_scans(class_forward(mixer) for mixer in recurrent_mixers(text_model.backbone)):
            text_model.hidden(tokens, torch.arange(_TOKENS, device=device))
    finally:
        for module in text_model.backbone.modules():
            detach(module)
        latents.undo()
    _check_recorded(recorder, config, text_model.backbone)
    return AttentionLayers(tuple(call[0] for call in recorder.calls), _geometry(recorder, config, text_model.backbone))


def _check_recorded(recorder: GeometryRecorder, config: Any, backbone: torch.nn.Module) -> None:
    """Refuse attention that is not one causal call of each module."""
    kind = getattr(config, "model_type", "this model")
    if not recorder.calls and recurrent_mixers(backbone):
        raise UnsupportedModel(f"'{kind}' has no layer that attends; Brim's engine runs models with one at least")
    if not recorder.calls:
        raise UnsupportedModel(f"the attention of '{kind}' does not go through transformers' attention interface")
    if recorder.terms:
        name, term = recorder.terms[0]
        raise UnsupportedModel(f"{name} gives its attention an {term} of its own, which Brim's engine does not follow")
    seen: set[int] = set()
    for module, *_ in recorder.calls:
        if id(module) in seen:  # DiffLlama's two halves, HRM's loops over its layers
            raise UnsupportedModel(
                f"{type(module).__name__} attends more than once in a forward; Brim's engine keeps one key of a token"
            )
        seen.add(id(module))


def _place(tensor: torch.Tensor) -> tuple[int, int]:
    """Where a tensor lies, also where there is no memory: its storage, and where in it the tensor begins."""
    return tensor.untyped_storage()._cdata, int(tensor.storage_offset())


def _geometry(recorder: GeometryRecorder, config: Any, backbone: torch.nn.Module) -> tuple[LayerGeometry, ...]:
    found: list[LayerGeometry] = []
    owners: dict[tuple[int, int], int] = {}  # where a key tensor lies -> the layer that made it
    for number, (module, heads, key, value, window) in enumerate(recorder.calls):
        lender = owners.setdefault(_place(key), number)
        found.append(
            LayerGeometry(
                kv_heads=key.shape[1],
                key_dim=key.shape[-1],
                value_dim=value.shape[-1],
                window=window if window is not None else _window_of(module, config, backbone),
                lender=lender if lender != number else None,
                query_heads=heads,
                value_in_key=_place(value) == _place(key) and value.stride() == key.stride(),
            )
        )
    return tuple(found)


def _window_of(module: torch.nn.Module, config: Any, backbone: torch.nn.Module) -> int | None:
    """The window of a layer whose code says it through the mask alone."""
    types = getattr(config, "layer_types", None)
    index = getattr(module, "layer_idx", None)
    if types is None:  # one mask for all layers (PhiMoE): there is a window where the class makes such a mask
        windowed = "create_sliding_window_causal_mask" in class_forward(backbone).__code__.co_names
    else:
        windowed = index is not None and index < len(types) and types[index] == "sliding_attention"
    return getattr(config, "sliding_window", None) if windowed else None


def _check_supported(config: Any, backbone: torch.nn.Module) -> None:
    kind = getattr(config, "model_type", "this model")
    if "chunked_attention" in (getattr(config, "layer_types", None) or ()):
        raise UnsupportedModel(f"'{kind}' has layers that attend in chunks, which Brim's engine does not do")
    if any(hasattr(module, "indexer") for module in backbone.modules()):
        raise UnsupportedModel(f"'{kind}' selects keys with an indexer, which Brim's engine does not do")
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModel(f"'{kind}' is an encoder-decoder model; Brim's engine runs decoders")
    for module in backbone.modules():
        if getattr(module, "attn_temperature_tuning", False) and not getattr(module, "use_rope", True):
            # It counts positions from the start of the row, which in a packed row is another request's (Llama 4).
            raise UnsupportedModel(
                f"{type(module).__name__} scales queries by their place in a batch's row (attn_temperature_tuning), "
                "which is not their position in Brim's engine"
            )

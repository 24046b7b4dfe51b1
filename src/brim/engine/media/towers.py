"""The towers of a model, called with one part at a time: pixels or mel frames in, a row for each token out.

The model's class does it (`get_image_features`, `get_audio_features`), as its own forward would; a frame of a video is
an image to it. Qwen2-Audio has no such function: its tower and projector are called here, one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from brim.engine.media.parts import Features, MediaPart


def encode(model: Any, part: MediaPart) -> Features:
    """Run the tower of this part."""
    features = tower_features(model, part.inputs, part.tokens, model.get_input_embeddings().weight.device)
    assert features.rows.shape[0] == part.tokens, "a tower makes as many features as were counted before"
    return features


def tower_features(model: Any, inputs: Mapping[str, torch.Tensor], tokens: int, device: torch.device) -> Features:
    """Run the tower that takes these inputs of the host: of images together, or of one audio of so many tokens."""
    return features_of(model, {name: tensor.to(device, non_blocking=True) for name, tensor in inputs.items()}, tokens)


def features_of(model: Any, sent: dict[str, torch.Tensor], tokens: int) -> Features:
    """The same, with inputs that are on the device; they stay alive until the end of the call."""
    if "input_features" in sent:
        return Features(_audio_rows(model.base_model, sent)[:tokens])
    return _seen(model.base_model, sent)


def hears(model: Any) -> bool:
    """Whether the class has an audio tower that `encode` can call; an engine with encoders leaves it out."""
    base = model.base_model
    return hasattr(base, "audio_tower") and (
        hasattr(base, "get_audio_features") or hasattr(base, "multi_modal_projector")
    )


def _seen(base: Any, inputs: dict[str, torch.Tensor]) -> Features:
    """Features of an image, or of a frame of a video."""
    output = base.get_image_features(**inputs, return_dict=True)
    deep = getattr(output, "deepstack_features", None) or ()
    return Features(_joined(output.pooler_output), tuple(_joined(level) for level in deep))


def _audio_rows(base: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """[tokens, size] of one audio, with rows of padding behind them where the tower makes such."""
    if not hasattr(base, "get_audio_features"):
        return _whisper_rows(base, **inputs)
    output = base.get_audio_features(**inputs, return_dict=True)
    pooled = getattr(output, "pooler_output", None)
    return _joined(output.last_hidden_state if pooled is None else pooled)


def _whisper_rows(base: Any, input_features: torch.Tensor, feature_attention_mask: torch.Tensor) -> torch.Tensor:
    """Qwen2-Audio: half as many positions as mel frames, those of the padding masked."""
    tower = base.audio_tower
    positions = input_features.shape[-1] // 2
    real = (feature_attention_mask.sum(-1, keepdim=True) - 1) // 2 + 1
    visible = torch.arange(positions, device=real.device)[None] < real
    mask = visible[:, None, None].expand(-1, 1, positions, -1)
    hidden = tower(input_features, attention_mask=_for_attention(mask, tower)).last_hidden_state
    return _joined(base.multi_modal_projector(hidden))


def _for_attention(visible: torch.Tensor, tower: Any) -> torch.Tensor:
    """A mask in the form that the tower's attention takes: eager code adds it."""
    if tower.config._attn_implementation != "eager":
        return visible
    dtype = next(tower.parameters()).dtype
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill(~visible, torch.finfo(dtype).min)


def _joined(features: Any) -> torch.Tensor:
    """[tokens, size] of a tensor or of one for each image."""
    rows = features if isinstance(features, torch.Tensor) else torch.cat(tuple(features))
    return rows.reshape(-1, rows.shape[-1])

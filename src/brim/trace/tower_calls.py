"""The call of a vision or audio tower, by what its forward asks for.

Inputs that decide shapes inside a tower (grids, positions, lengths) are real CPU tensors; pixels and audio are on meta.
"""

from __future__ import annotations

from inspect import signature
from math import isqrt
from typing import Any

from brim.errors import CannotTrace
from brim.records.trace import TraceShape

_VISION = ("visual", "vision_tower", "vision_model")
_MEL_BINS = 128

Inputs = dict[str, Any]


def find_tower(model: Any, phase: str) -> Any:
    """The vision or audio tower of a model, wherever its class keeps it."""
    names = _VISION if phase == "vision" else ("audio_tower",)
    places = [model, getattr(model, "model", None), getattr(model, "thinker", None)]
    places += [getattr(place, "model", None) for place in places if place is not None]
    for place in places:
        for name in names:
            tower = getattr(place, name, None) if place is not None else None
            if tower is not None:
                return tower
    raise CannotTrace(f"{type(model).__name__} has no {phase} tower to trace; leave out --phase {phase}")


def is_tiled(model: Any) -> bool:
    """Whether the vision tower takes images of a fixed size, so that sizes count tiles and not patches."""
    asked = signature(find_tower(model, "vision").forward).parameters
    return not {"grid_thw", "pixel_position_ids", "spatial_shapes"} & set(asked)


def vision_inputs(tower: Any, shape: TraceShape) -> Inputs:
    """The arguments of a vision tower: one square image of `tokens` patches, or `batch` tiles."""
    import torch

    config, asked = tower.config, signature(tower.forward).parameters
    dtype = next(tower.parameters()).dtype

    def pixels(*dims: int) -> Any:
        return torch.empty(dims, dtype=dtype, device="meta")

    if "grid_thw" in asked:
        edge = _edge(shape.tokens, _merge_edge(config))
        first = next(name for name in asked if name not in ("self", "grid_thw"))
        return {first: _patches(config, shape.tokens, pixels), "grid_thw": torch.tensor([[1, edge, edge]])}
    if "pixel_position_ids" in asked:
        edge = _edge(shape.tokens, getattr(config, "pooling_kernel_size", 1))
        places = torch.cartesian_prod(torch.arange(edge), torch.arange(edge)).expand(shape.batch, -1, -1)
        width = 3 * config.patch_size**2
        return {"pixel_values": pixels(shape.batch, shape.tokens, width), "pixel_position_ids": places}
    if "spatial_shapes" in asked:
        edge = _edge(shape.tokens, 1)
        return {
            "pixel_values": pixels(shape.batch, shape.tokens, 3 * config.patch_size**2),
            "pixel_attention_mask": torch.ones((shape.batch, shape.tokens), dtype=torch.int32),
            "spatial_shapes": torch.tensor([[edge, edge]] * shape.batch),
        }
    size = getattr(config, "image_size", None)
    if size is None:
        raise CannotTrace(f"{type(tower).__name__} takes neither grids nor a fixed image size: not traced yet")
    height, breadth = (size, size) if isinstance(size, int) else size
    return {"pixel_values": pixels(shape.batch, 3, height, breadth)}


def _patches(config: Any, count: int, pixels: Any) -> Any:
    """Patches as a tower wants them: flat with two frames in each, or as small images."""
    if not hasattr(config, "temporal_patch_size"):
        return pixels(count, 3, config.patch_size, config.patch_size)
    channels = getattr(config, "in_channels", None) or getattr(config, "in_chans", None) or 3
    return pixels(count, channels * config.temporal_patch_size * config.patch_size**2)


def _merge_edge(config: Any) -> int:
    kernel = getattr(config, "merge_kernel_size", None)
    return int(kernel[0]) if kernel else int(getattr(config, "spatial_merge_size", 1))


def _edge(patches: int, multiple: int) -> int:
    edge = isqrt(patches)
    if edge * edge != patches or edge % multiple:
        raise CannotTrace(
            f"tokens {patches} is not a square image of patches taken {multiple} by {multiple}; "
            f"use the square of a multiple of {multiple}"
        )
    return edge


def _mel_bins(config: Any) -> int:
    """Gemma's projection behind its two convolutions counts on as many bins as the first has channels."""
    channels = getattr(config, "subsampling_conv_channels", None)
    return int(getattr(config, "num_mel_bins", None) or (channels[0] if channels else _MEL_BINS))


def audio_inputs(tower: Any, shape: TraceShape) -> Inputs:
    """The arguments of an audio tower: `tokens` mel frames, of which a hundred make a second."""
    import torch

    asked = signature(tower.forward).parameters
    dtype = next(tower.parameters()).dtype
    mels = _mel_bins(tower.config)
    if "feature_lens" in asked:
        lengths = torch.tensor([shape.tokens])
        features = torch.empty((mels, shape.tokens), dtype=dtype, device="meta")
        inputs = {"input_features": features, "feature_lens": lengths}
        return {**inputs, "aftercnn_lens": (lengths - 1) // 2 + 1} if "aftercnn_lens" in asked else inputs
    features = torch.empty((shape.batch, mels, shape.tokens), dtype=dtype, device="meta")
    if "input_features_mask" in asked:
        return {"input_features": features, "input_features_mask": torch.ones((shape.batch, shape.tokens)).long()}
    if "attention_mask" in asked and tower.config.model_type.startswith("gemma"):
        features = features.transpose(1, 2)
        return {"input_features": features, "attention_mask": torch.ones((shape.batch, shape.tokens)).bool()}
    return {"input_features": features}

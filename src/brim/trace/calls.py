"""The call of each phase: inputs of the right shapes, and the part of the model to run.

Token ids live on the meta device. What decides shapes inside a tower (grids, lengths) is real, on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from math import isqrt
from typing import Any

from brim.errors import CannotTrace
from brim.records.trace import Phase, TraceShape
from brim.trace.attention import FUSED, interception
from brim.trace.watch import StorageWatch, watching


@dataclass(frozen=True, slots=True)
class Call:
    """A function to run under the watch, and the tensors that were there before."""

    run: Callable[[], Any]
    inputs: tuple[Any, ...]


def make_call(model: Any, shape: TraceShape) -> Call:
    """The call that a shape describes."""
    if shape.phase is Phase.VISION:
        return _vision(model, shape)
    if shape.phase is Phase.AUDIO:
        return _audio(model, shape)
    return _text(model, shape)


def _text(model: Any, shape: TraceShape) -> Call:
    import torch

    ids = torch.empty((shape.batch, shape.tokens), dtype=torch.long, device="meta")
    # Behind fused attention the KV lives in the engine's own pool: the model neither keeps nor reads a cache.
    caches = shape.attention != FUSED and (shape.keeps_kv or shape.context > 0)
    options: dict[str, Any] = {"use_cache": caches}
    if shape.logit_rows:
        options["logits_to_keep"] = shape.logit_rows
    before: list[Any] = [ids]
    if caches and shape.context:
        cache = _filled_cache(model, shape)
        options["past_key_values"] = cache
        before += [tensor for layer in cache.layers for tensor in (layer.keys, layer.values) if tensor is not None]
        positions = torch.empty((shape.batch, shape.tokens), dtype=torch.long, device="meta")
        options["position_ids"] = positions
        before.append(positions)
    if shape.head_sees_last and shape.logit_rows and "logits_to_keep" not in signature(model.forward).parameters:
        return Call(lambda: _with_cut_head(model, shape.logit_rows, ids, options), tuple(before))
    return Call(lambda: model(input_ids=ids, **options), tuple(before))


def _with_cut_head(model: Any, rows: int, ids: Any, options: dict[str, Any]) -> Any:
    """Run a model whose class computes all logits with a head that is shown the last rows only."""
    head = model.get_output_embeddings()
    hook = head.register_forward_pre_hook(lambda _, inputs: (inputs[0][:, -rows:], *inputs[1:]))
    try:
        return model(input_ids=ids, **options)
    finally:
        hook.remove()


def _filled_cache(model: Any, shape: TraceShape) -> Any:
    """A cache that already holds the context, on the meta device."""
    import torch
    from transformers import DynamicCache

    config = model.config.get_text_config(decoder=True)
    cache = DynamicCache(config=config)
    ids = torch.empty((shape.batch, shape.context), dtype=torch.long, device="meta")
    with torch.no_grad(), watching(StorageWatch(())), interception():
        model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return cache


def _tower(model: Any, names: tuple[str, ...], what: str) -> Any:
    places = [model, getattr(model, "model", None), getattr(model, "thinker", None)]
    places += [getattr(place, "model", None) for place in places if place is not None]
    for place in places:
        for name in names:
            tower = getattr(place, name, None) if place is not None else None
            if tower is not None:
                return tower
    raise CannotTrace(f"{type(model).__name__} has no {what} tower to trace; leave out --phase {what}")


_VISION_NAMES = ("visual", "vision_tower", "vision_model")


def is_tiled(model: Any) -> bool:
    """Whether the vision tower takes images of a fixed size, so that sizes count tiles and not patches."""
    return not hasattr(_tower(model, _VISION_NAMES, "vision").config, "temporal_patch_size")


def _vision(model: Any, shape: TraceShape) -> Call:
    """A tower over patches (`tokens` of them, as one square image), or over `batch` tiles of the tower's own size."""
    import torch

    tower = _tower(model, _VISION_NAMES, "vision")
    config = tower.config
    dtype = next(tower.parameters()).dtype
    if hasattr(config, "temporal_patch_size"):
        edge = isqrt(shape.tokens)
        if edge * edge != shape.tokens or edge % config.spatial_merge_size:
            raise CannotTrace(
                f"tokens {shape.tokens} is not a square image of patches merged {config.spatial_merge_size} by "
                f"{config.spatial_merge_size}; use the square of an even number"
            )
        channels = getattr(config, "in_channels", None) or getattr(config, "in_chans", 3)
        width = channels * config.temporal_patch_size * config.patch_size**2
        patches = torch.empty((shape.tokens, width), dtype=dtype, device="meta")
        grid = torch.tensor([[1, edge, edge]])
        return Call(lambda: tower(patches, grid_thw=grid), (patches, grid))
    size = getattr(config, "image_size", None)
    if size is None:
        raise CannotTrace(f"{type(tower).__name__} takes neither grids nor a fixed image size: not traced yet")
    height, breadth = (size, size) if isinstance(size, int) else size
    pixels = torch.empty((shape.batch, 3, height, breadth), dtype=dtype, device="meta")
    return Call(lambda: tower(pixels), (pixels,))


def _audio(model: Any, shape: TraceShape) -> Call:
    """A tower over `tokens` mel frames."""
    import torch

    tower = _tower(model, ("audio_tower",), "audio")
    config = tower.config
    dtype = next(tower.parameters()).dtype
    mels = getattr(config, "num_mel_bins", 128)
    if hasattr(config, "n_window"):
        features = torch.empty((mels, shape.tokens), dtype=dtype, device="meta")
        lengths = torch.tensor([shape.tokens])
        after = (lengths - 1) // 2 + 1
        return Call(lambda: tower(features, feature_lens=lengths, aftercnn_lens=after), (features, lengths, after))
    features = torch.empty((shape.batch, mels, shape.tokens), dtype=dtype, device="meta")
    return Call(lambda: tower(features), (features,))

"""The call of each phase: inputs of the right shapes, and the part of the model to run.

Token ids live on the meta device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any

from brim.records.trace import Phase, TraceShape
from brim.trace.attention import FUSED, interception
from brim.trace.tower_calls import audio_inputs, find_tower, vision_inputs
from brim.trace.watch import StorageWatch, watching


@dataclass(frozen=True, slots=True)
class TracedCall:
    """A function to run under the watch, and the tensors that were there before."""

    run: Callable[[], Any]
    inputs: tuple[Any, ...]


def make_call(model: Any, shape: TraceShape) -> TracedCall:
    """The call that a shape describes."""
    if shape.phase in (Phase.VISION, Phase.AUDIO):
        tower = find_tower(model, shape.phase)
        made = vision_inputs(tower, shape) if shape.phase is Phase.VISION else audio_inputs(tower, shape)
        return TracedCall(lambda: tower(**made), tuple(made.values()))
    return _text(model, shape)


def _text(model: Any, shape: TraceShape) -> TracedCall:
    import torch

    packed = shape.phase is Phase.PACKED
    size = (1, shape.batch * shape.tokens) if packed else (shape.batch, shape.tokens)
    rows = shape.logit_rows * shape.batch if packed else shape.logit_rows
    ids = torch.empty(size, dtype=torch.long, device="meta")
    # With fused attention the KV is in the engine's pool: the model neither keeps nor reads a cache.
    caches = shape.attention != FUSED and (shape.keeps_kv or shape.context > 0)
    options: dict[str, Any] = {"use_cache": caches}
    if rows:
        options["logits_to_keep"] = rows
    before: list[Any] = [ids]
    if caches and shape.context:
        cache = _filled_cache(model, shape)
        options["past_key_values"] = cache
        before += [tensor for layer in cache.layers for tensor in (layer.keys, layer.values) if tensor is not None]
        positions = torch.empty((shape.batch, shape.tokens), dtype=torch.long, device="meta")
        options["position_ids"] = positions
        before.append(positions)
    if shape.head_sees_last and rows and "logits_to_keep" not in signature(model.forward).parameters:
        return TracedCall(lambda: _with_cut_head(model, rows, ids, options), tuple(before))
    return TracedCall(lambda: model(input_ids=ids, **options), tuple(before))


def _with_cut_head(model: Any, rows: int, ids: Any, options: dict[str, Any]) -> Any:
    """Run a model whose class computes all logits, with a head that gets the last rows only."""
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

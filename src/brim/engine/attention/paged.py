"""Attention over paged keys and values, as `transformers` modules call it.

`register()` registers it under the name `brim` in transformers' public registry, without a mask function, so that
transformers makes no mask. Each attention module of a model is given its `PagedLayer` (`attach`); a module without one
cannot run.

Eagerly, the module's layer is called directly. In compiled code the call goes through a custom operator, so that the
compiler sees one opaque function; an operator takes tensors only, so the layer is then looked up by a number. For
modules that store latents (`latent.py`), queries and outputs are transformed around the call.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

import torch

from brim.engine.attention.latent import absorbed_query, expanded_output, keeps_latent
from brim.engine.attention.protocol import AttentionBackend, AttentionRule
from brim.engine.attention.recorder import GeometryRecorder
from brim.engine.device.layout import StepLayout
from brim.engine.kv.tensors import LayerCache

NAME = "brim"
_ATTRIBUTE = "brim_attention"
_KEY = "brim_attention_key"
_keys = itertools.count()
_layers: WeakValueDictionary[int, PagedLayer] = WeakValueDictionary()  # by number; the model owns the layers


class CurrentStep:
    """The step that is being run; one for all layers of an engine."""

    def __init__(self) -> None:
        self.layout: StepLayout | None = None


class PagedLayer:
    """One attention module's part of the pool."""

    def __init__(
        self,
        cache: LayerCache,
        table: torch.Tensor,
        group: int,
        block_size: int,
        window: int | None,
        lent: bool,
        step: CurrentStep,
        backend: AttentionBackend,
        looks_ahead: bool = True,
    ) -> None:
        self.cache = cache
        self.table = table
        self.group = group
        self.block_size = block_size
        self.window = window
        self.lent = lent  # keys and values are those of another layer, already written
        self.step = step
        self.backend = backend
        self.looks_ahead = looks_ahead  # follows `visible_until`

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        softcap: float | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """[1, heads, tokens, dim] in, [1, tokens, heads, value dim] out."""
        layout = self.step.layout
        assert layout is not None, "attention runs inside a step"
        if not self.looks_ahead and layout.visible_until is not None:
            layout = replace(layout, visible_until=None)
        if not self.lent:
            self.backend.store(
                self.cache, key[0].transpose(0, 1), value[0].transpose(0, 1), layout.write_slots[self.group]
            )
        rule = AttentionRule(scale, self.window, softcap, sinks, self.block_size)
        return self.backend.attend(query[0].transpose(0, 1), self.cache, self.table, layout, rule)[None]


def attach(module: torch.nn.Module, layer: Any) -> None:
    """Give an attention module its layer, for eager and for compiled calls."""
    key = next(_keys)
    _layers[key] = layer
    module.__dict__[_ATTRIBUTE] = layer
    module.__dict__[_KEY] = torch.tensor(key)


def detach(module: torch.nn.Module) -> None:
    module.__dict__.pop(_ATTRIBUTE, None)
    module.__dict__.pop(_KEY, None)


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls for each attention layer. Attention is causal, and `others` are ignored."""
    if not torch.compiler.is_compiling() and isinstance(recorder := getattr(module, _ATTRIBUTE), GeometryRecorder):
        recorder.note_terms(module, {**others, "attention_mask": attention_mask})
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    latent = keeps_latent(module)
    if latent:
        query = absorbed_query(module, query)
    output = _attended(module, query, key, value, scale, softcap, s_aux, sliding_window)
    return expanded_output(module, output) if latent else output, None


def _attended(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
    window: int | None,
) -> torch.Tensor:
    if torch.compiler.is_compiling():
        output: torch.Tensor = _attend_by_key(query, key, value, getattr(module, _KEY), scale, softcap, sinks)
        return output
    layer: PagedLayer | GeometryRecorder = getattr(module, _ATTRIBUTE)
    if isinstance(layer, GeometryRecorder):
        return layer.record(module, query, key, value, window)
    return layer.attend(query, key, value, scale, softcap, sinks)


@torch.library.custom_op("brim::attend", mutates_args=())
def _attend_by_key(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layer: torch.Tensor,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    return _layers[int(layer)].attend(query, key, value, scale, softcap, sinks)


@_attend_by_key.register_fake
def _(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layer: torch.Tensor,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    _, heads, tokens, _ = query.shape
    return query.new_empty((1, tokens, heads, value.shape[-1]))


def register() -> None:
    """Register paged attention with transformers."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, paged_attention)

"""Whose a tensor is: the part of the model that allocated it, and by name the module and operation.

In: paths of modules as `transformers` names them. Parts are recognised by the words in a path, not by model: an unknown
word makes a tensor "other", never wrong by more than its label.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from brim.records.trace import Allocation

_LAYER = re.compile(r"(?:[^.]+\.)+?\d+(?=\.|$)")
_OP_WORDS = {
    "_to_copy": "cast",
    "_grouped_mm": "grouped mm",
    "_softmax": "softmax",
    "_unsafe_view": "view",
    "constant_pad_nd": "pad",
    "native_layer_norm": "layer norm",
    "new_empty": "kernel output",
}
_IMPLIED = frozenset({"mm", "addmm", "embedding"})  # by the name of the module


class ModelComponent(StrEnum):
    """The parts of a model that a step's memory is counted by, from the bottom of the stack to its top."""

    INPUTS = "inputs and masks"
    RESIDUAL = "residual stream"
    CACHE = "KV and states kept"
    NORM = "norms"
    ATTENTION = "attention"
    RECURRENT = "recurrent mixer"
    FEED_FORWARD = "feed-forward"
    EXPERTS = "experts"
    HEAD = "output head"
    OTHER = "other"


_IN_LAYERS = (
    (ModelComponent.EXPERTS, ("expert",)),
    (ModelComponent.RECURRENT, ("linear_attn", "mamba", "mixer", "ssm", "conv", "delta")),
    (ModelComponent.ATTENTION, ("attn", "attention")),
    (ModelComponent.FEED_FORWARD, ("mlp", "feed_forward", "ffn", "fc1", "fc2", "moe", "activation_fn", "router")),
    (ModelComponent.RESIDUAL, ("embed", "per_layer")),
)
_AROUND_LAYERS = (
    (ModelComponent.INPUTS, ("rotary", "rope", "pos_emb", "position")),
    (ModelComponent.HEAD, ("lm_head", "merger", "projector", "score")),
    (ModelComponent.RESIDUAL, ("embed", "wte", "patch", "conv", "per_layer")),
)


@dataclass(frozen=True, slots=True)
class Owner:
    """What an area of a picture stands for."""

    name: str
    part: ModelComponent


def layer_of(module: str) -> str:
    """The path of the layer that a module belongs to; empty outside the layers."""
    found = _LAYER.match(module)
    return found[0] if found else ""


def layer_number(layer: str) -> str:
    return layer.rsplit(".", 1)[-1]


def within(module: str, layer: str) -> str:
    """A module's path inside its layer; empty for the layer itself."""
    return module[len(layer) + 1 :] if layer else module


def op_word(op: str) -> str:
    """ "aten.mul.Tensor" as "mul"."""
    name = op.split(".")[1] if op.count(".") else op
    return _OP_WORDS.get(name, name)


def part_of(made: Allocation, last: int) -> ModelComponent:
    """The part of the model that allocated a tensor; `last` is the step's last operation."""
    layer = layer_of(made.module)
    inside = within(made.module, layer).lower()
    if not inside:
        return ModelComponent.RESIDUAL if layer else ModelComponent.HEAD
    if "norm" in inside.rsplit(".", 1)[-1]:
        return ModelComponent.NORM
    known, unknown = (_IN_LAYERS, ModelComponent.OTHER) if layer else (_AROUND_LAYERS, ModelComponent.INPUTS)
    part = next((part for part, words in known if any(word in inside for word in words)), unknown)
    return (
        ModelComponent.CACHE
        if part in (ModelComponent.ATTENTION, ModelComponent.RECURRENT) and made.is_live_at(last)
        else part
    )


def owner_of(made: Allocation, last: int, layer: str) -> Owner:
    """The owner of a tensor as seen from a layer: its module there, and the operation."""
    part, home = part_of(made, last), layer_of(made.module)
    if part is ModelComponent.CACHE:
        return Owner(str(part), part)
    inside, word = within(made.module, home), op_word(made.op)
    if not inside:
        return Owner("residual" if home and word == "add" else f"{'layer' if home else 'model'} · {word}", part)
    if not home:
        inside = inside.rsplit(".", 1)[-1]
    name = inside if part is ModelComponent.NORM or word in _IMPLIED else f"{inside} · {word}"
    return Owner(name if home in ("", layer) else f"{name} (layer {layer_number(home)})", part)

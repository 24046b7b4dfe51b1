"""The routed experts of a mixture: which tensors they are, and what a rank holds where ranks share them.

With expert parallelism a rank holds whole experts. Without it, an engine that divides experts among the ranks of all
replicas cuts each into so many more columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from brim.errors import InvalidRequest
from brim.records.model import LayerSpec, ModelSpec, Tensor
from brim.units import ceil_div


def is_expert(tensor: Tensor) -> bool:
    """Whether a tensor belongs to routed experts; shared ones are always on."""
    return "experts" in tensor.name.split(".")


def has_experts(spec: ModelSpec) -> bool:
    return any(layer.feed_forward and layer.feed_forward.experts for layer, _ in spec.layer_groups)


def fewest_experts(spec: ModelSpec) -> int:
    """Experts of the layer that has the fewest."""
    parts = (layer.feed_forward for layer, _ in spec.layer_groups)
    return min(part.experts for part in parts if part is not None and part.experts)


def whole_experts(spec: ModelSpec, ranks: int) -> ModelSpec:
    """What the fullest of so many ranks holds with expert parallelism: tensor parallelism divides no expert."""
    return _with_experts(spec, lambda one: replace(one, count=ceil_div(one.count, ranks), units=1))


def cut_experts(spec: ModelSpec, replicas: int) -> ModelSpec:
    """The columns of experts that one replica holds, where all replicas share them."""
    return _with_experts(spec, lambda one: _columns(one, replicas))


def without_experts(layer: LayerSpec) -> LayerSpec:
    """A layer whose routed experts are elsewhere."""
    return replace(layer, tensors=tuple(one for one in layer.tensors if not is_expert(one)))


def only_experts(layer: LayerSpec) -> LayerSpec:
    return LayerSpec(None, None, tuple(one for one in layer.tensors if is_expert(one)))


def check_cut(spec: ModelSpec, ranks: int) -> None:
    """Refuse ranks that do not divide the columns of experts."""
    for layer, _ in spec.layer_groups:
        for tensor in layer.tensors:
            if is_expert(tensor) and tensor.units > 1 and tensor.units % ranks:
                raise InvalidRequest(
                    f"tp × dp is {ranks} and does not divide the {tensor.units} columns of an expert of {spec.name}; "
                    "add --ep, which keeps experts whole, or use other numbers"
                )


def _columns(tensor: Tensor, parts: int) -> Tensor:
    """A tensor with one of so many equal parts of the columns that tensor parallelism divides it by."""
    if tensor.units <= 1:
        return tensor  # what every rank holds whole
    axis = tensor.shape.index(tensor.units) if tensor.shape[-1] != tensor.units else len(tensor.shape) - 1
    shape = tuple(size // parts if at == axis else size for at, size in enumerate(tensor.shape))
    return replace(tensor, shape=shape, units=tensor.units // parts)


def _with_experts(spec: ModelSpec, change: Callable[[Tensor], Tensor]) -> ModelSpec:
    """The model with every tensor of an expert changed. Layers that were one object stay one."""
    changed: dict[int, LayerSpec] = {}
    for layer, _ in spec.layer_groups:
        tensors = tuple(change(one) if is_expert(one) else one for one in layer.tensors)
        changed[id(layer)] = replace(layer, tensors=tensors)
    return replace(spec, layers=tuple(changed[id(layer)] for layer in spec.layers))

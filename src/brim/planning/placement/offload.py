"""Layers and experts in host memory, as llama.cpp places them.

In: a model, how many of its last layers are on the GPUs (the output counts as one), and of how many first layers the
experts are not. Out: a `PlacedPart` for each GPU, and the two specs of what the host holds: weights, and layers that
keep their KV there. Input embeddings are on the host always. While a prompt is computed, matrices of the host are
copied to the GPU one at a time: the largest of them counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from brim.model.weights import weight_bytes
from brim.planning.placement.experts import only_experts, without_experts
from brim.planning.placement.record import PlacedPart, Placement
from brim.planning.placement.stages import EMPTY_LAYER, at_their_places, only_layers, with_head_elsewhere
from brim.records.model import Dtype, LayerSpec, ModelSpec, Tensor, WeightFormat
from brim.units import ceil_div


@dataclass(frozen=True, slots=True)
class HostPart:
    """What the host holds: weights at their places in the model, and the layers whose KV is there."""

    layers: range
    weights: ModelSpec
    keeping: ModelSpec | None  # None: all KV is on the GPUs


def gpu_ranges(layers: int, devices: int, offloaded: int) -> tuple[range, ...]:
    """The layers of each GPU with equal shares of the last `offloaded`, the output counted as the last of them."""
    first = layers + 1 - offloaded
    starts = [min(layers, first + ceil_div(one * offloaded, devices)) for one in range(devices)]
    return tuple(range(start, end) for start, end in pairwise([*starts, layers]))


def device_parts(
    spec: ModelSpec, placement: Placement, devices: int, stored: WeightFormat | None, dtype: Dtype | None
) -> tuple[PlacedPart, ...]:
    """What each GPU holds."""
    offloaded = _offloaded(spec, placement)
    copied = _largest_copied(spec, placement, stored, dtype)
    ranges = gpu_ranges(len(spec.layers), devices, offloaded)
    found = []
    for number, layers in enumerate(ranges):
        first, last = number == 0, number == len(ranges) - 1
        tensors = _output_tensors(spec) if last else ()
        weights = at_their_places(spec, layers, tensors, towers=first)
        stripped = tuple(
            without_experts(layer) if index < placement.cpu_experts else layer
            for index, layer in enumerate(weights.layers)
        )
        alone = replace(only_layers(spec, layers, tensors), towers=spec.towers if first else ())
        found.append(PlacedPart(number, layers, spec, alone, replace(weights, layers=_shared(stripped)), copied))
    return tuple(found)


def host_part(spec: ModelSpec, placement: Placement) -> HostPart:
    """What the host holds of the same model; of a model that is all on GPUs, the input embeddings."""
    below = range(len(spec.layers) + 1 - _offloaded(spec, placement))
    kept = tuple(
        layer if index in below else only_experts(layer) if index < placement.cpu_experts else EMPTY_LAYER
        for index, layer in enumerate(spec.layers)
    )
    has_head = any(tensor.name.endswith("lm_head") for tensor in spec.tensors)
    tables = tuple(tensor for tensor in spec.tensors if "embed" in tensor.name or (not has_head and _is_table(tensor)))
    outer = with_head_elsewhere(spec, tables)
    weights = replace(spec, layers=_shared(kept), tensors=outer, towers=(), files_bytes=None)
    return HostPart(below, weights, only_layers(spec, below, ()) if below else None)


def _offloaded(spec: ModelSpec, placement: Placement) -> int:
    everything = len(spec.layers) + 1
    return everything if placement.gpu_layers is None else min(placement.gpu_layers, everything)


def _shared(layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    """Equal layers made one object, as `ModelSpec.layer_groups` counts them."""
    known: dict[LayerSpec, LayerSpec] = {}
    return tuple(known.setdefault(layer, layer) for layer in layers)


def _output_tensors(spec: ModelSpec) -> tuple[Tensor, ...]:
    """Norm and head; a model without a head of its own has its table there."""
    has_head = any(tensor.name.endswith("lm_head") for tensor in spec.tensors)
    return tuple(tensor for tensor in spec.tensors if not (has_head and "embed" in tensor.name))


def _is_table(tensor: Tensor) -> bool:
    return len(tensor.shape) == 2 and not tensor.linear and tensor.units == 0


def _largest_copied(spec: ModelSpec, placement: Placement, stored: WeightFormat | None, dtype: Dtype | None) -> int:
    """Bytes of the largest matrix on the host, all experts of a layer being one."""
    host = host_part(spec, placement).weights
    matrices = {tensor: layer for layer, _ in host.layer_groups for tensor in layer.tensors if len(tensor.shape) > 1}
    return max((_matrix_bytes(spec, tensor, stored, dtype) for tensor in matrices), default=0)


def _matrix_bytes(spec: ModelSpec, tensor: Tensor, stored: WeightFormat | None, dtype: Dtype | None) -> int:
    one = replace(spec, layers=(LayerSpec(None, None, (tensor,)),), tensors=(), towers=(), files_bytes=None)
    return weight_bytes(one, 1, stored, dtype).total_bytes

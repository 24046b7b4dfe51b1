"""How a model is divided among GPUs: inside its layers, or by layers; and which numbers of GPUs are refused."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from itertools import pairwise

from brim.errors import InvalidRequest
from brim.model.weights import check_tensor_parallel
from brim.records.model import Attention, ModelSpec, Tensor
from brim.units import ceil_div


class Split(StrEnum):
    TENSOR = "tensor"  # every GPU has a share of each layer, with its KV heads
    LAYER = "layer"  # every GPU has whole layers, with all their KV


def check_tensor_split(spec: ModelSpec, ranks: int, engine: str, replicates_kv_heads: bool) -> None:
    """Refuse ranks that do not divide heads and columns; KV heads may be replicated where the engine does that."""
    check_tensor_parallel(spec, ranks)
    for layer, _ in spec.layer_groups:
        if isinstance(layer.mixer, Attention):
            heads = layer.mixer.kv_heads
            if heads % ranks and not (replicates_kv_heads and ranks % heads == 0):
                fitting = [str(n) for n in range(1, heads + 1) if heads % n == 0]
                raise InvalidRequest(
                    f"tp {ranks} does not divide the {heads} KV heads of {spec.name}, which engine {engine} requires; "
                    f"use {', '.join(fitting)}"
                )


def check_layer_split(spec: ModelSpec, ranks: int) -> None:
    """Any number of GPUs that each get a layer."""
    if not 1 <= ranks <= len(spec.layers):
        raise InvalidRequest(f"tp {ranks}: {spec.name} has {len(spec.layers)} layers to divide; use at most so many")


def layers_by_device(layers: int, devices: int) -> tuple[range, ...]:
    """The layers of each device with equal shares, as llama.cpp deals them out: the output counts as one more layer."""
    starts = [min(layers, ceil_div(one * (layers + 1), devices)) for one in range(devices)]
    return tuple(range(start, end) for start, end in pairwise([*starts, layers]))


def device_specs(spec: ModelSpec, devices: int) -> tuple[ModelSpec, ...]:
    """What each device holds of a model that is divided by layers, as specs: price them with one rank and take the
    fullest. Input embeddings stay on the host; the output goes with the last layers, towers with the first."""
    parts = layers_by_device(len(spec.layers), devices)
    last = len(parts) - 1
    return tuple(
        replace(
            spec,
            layers=spec.layers[part.start : part.stop],
            tensors=_output_tensors(spec) if number == last else (),
            towers=spec.towers if number == 0 else (),
            files_bytes=_part_bytes(spec, part, first=number == 0, last=number == last),
        )
        for number, part in enumerate(parts)
    )


def _part_bytes(spec: ModelSpec, part: range, *, first: bool, last: bool) -> int | None:
    """The bytes of a part as they are stored; None where only dimensions are known."""
    stored = spec.stored_parts
    if stored is None:
        return None
    output = stored.output_bytes + stored.shared_bytes if last else 0
    return sum(stored.layer_bytes[part.start : part.stop]) + output + (stored.tower_bytes if first else 0)


def _output_tensors(spec: ModelSpec) -> tuple[Tensor, ...]:
    """Norm and head; a model that has no head of its own has its embeddings there."""
    has_head = any(tensor.name.endswith("lm_head") for tensor in spec.tensors)
    return tuple(tensor for tensor in spec.tensors if not (has_head and "embed" in tensor.name))

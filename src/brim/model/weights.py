"""Weight bytes: exact from safetensors headers where the files are there, else from the dimensions.

In: a spec, how many tensor-parallel ranks share it, and the format to store it in. Out: bytes in all and on the
fullest rank. What a rank holds whole (norms, routers, MLA's down-projections) is counted whole on every rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from brim.errors import InvalidRequest
from brim.model.quantisers.ggml_types import BY_NAME
from brim.model.quantisers.gguf_mixes import Part, Place, matrix_type, part_of
from brim.model.quantisers.module_rules import Rule, RuleBook
from brim.model.quantisers.weight_formats import matrix_bytes
from brim.records.model import Attention, Dtype, LayerSpec, ModelSpec, Quantisation, Tensor, WeightFormat
from brim.units import GIB, ceil_div

_HEADS = ("lm_head", "output_layer")
_EMBEDDINGS = ("embed_tokens", "wte", "embedding", "word_embeddings", "embed_in")
_POSITIONS = ("wpe", "embed_positions")


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """What the weights take: in all, on the fullest rank, and in which format."""

    total_bytes: int
    rank_bytes: int
    exact: bool
    detail: str
    hypothetical: bool = False  # in a format that the model was not published in, as far as Brim knows


def weight_bytes(
    spec: ModelSpec, tensor_parallel: int = 1, stored: WeightFormat | None = None, dtype: Dtype | None = None
) -> WeightBytes:
    """Bytes of all weights. `stored` or `dtype` plan for another format than the model's own."""
    own_format = stored is None and dtype is None
    if stored is not None:
        return _hypothetical(spec, stored, tensor_parallel)
    planned = spec.quantisation.default if own_format and spec.quantisation and spec.is_gguf else None
    if planned is not None and spec.files_bytes is None:
        return _hypothetical(spec, planned, tensor_parallel)
    if planned is not None and planned.gguf_mix:
        total, rank = _gguf_bytes(spec, planned, tensor_parallel)
    elif own_format and spec.quantisation is not None:
        total, rank = _quantised_bytes(spec, spec.quantisation, tensor_parallel)
    else:
        total, rank = _plain_bytes(spec.elements_by_split, dtype or spec.dtype, tensor_parallel)
    name = format_name(spec, stored, dtype)
    if own_format and spec.files_bytes is not None:
        shared = spec.files_bytes * rank // total if total else spec.files_bytes
        return WeightBytes(spec.files_bytes, shared, exact=True, detail=f"{name}, {spec.files_detail}")
    return WeightBytes(
        total, rank, exact=False, detail=f"{name}, {spec.parameters / 1e9:.2f} B parameters by dimensions"
    )


def _hypothetical(spec: ModelSpec, stored: WeightFormat, ranks: int) -> WeightBytes:
    """A format that is asked for: real checkpoints in one leave some modules as they are, and differ in which."""
    words = f"{stored.name}, {spec.parameters / 1e9:.2f} B parameters by dimensions"
    if stored.gguf_mix:
        total, rank = _gguf_bytes(spec, stored, ranks)
        return WeightBytes(total, rank, exact=False, detail=f"{words}, as llama.cpp quantises", hypothetical=True)
    total, rank = _planned_bytes(spec, stored, ranks)
    most, _ = _planned_bytes(spec, stored, ranks, attention_too=False)
    span = f"{total / GIB:,.1f} GiB with all matrices of the layers in it, {most / GIB:,.1f} GiB where attention is not"
    return WeightBytes(total, rank, exact=False, detail=f"{words}; hypothetical: {span}", hypothetical=True)


def _gguf_bytes(spec: ModelSpec, stored: WeightFormat, ranks: int) -> tuple[int, int]:
    """(all, fullest rank) of a file as llama.cpp quantises it: what is no matrix is in fp32, towers are in fp16."""
    total = rank = 0
    for tensor, count, held in _gguf_tensors(spec, stored.gguf_mix):
        size = tensor_bytes(tensor, held, Dtype.FP32)
        total, rank = total + size * count, rank + on_rank(size, tensor.units, ranks) * count
    towers = sum(tensor.elements for tower in spec.towers for tensor in tower.tensors) * Dtype.FP16.bytes
    return total + towers, rank + towers


def _gguf_tensors(spec: ModelSpec, mix: str) -> Iterator[tuple[Tensor, int, WeightFormat | None]]:
    """(tensor, how often, format) of the language model; a format of None is fp32."""
    tied = not any(tensor.name.endswith(_HEADS) for tensor in spec.tensors)
    for tensor in spec.tensors:
        is_head = tensor.name.endswith(_HEADS) or (tied and tensor.name.endswith(_EMBEDDINGS))
        part = Part.HEAD if is_head else Part.EMBEDDINGS
        kept = len(tensor.shape) != 2 or tensor.name.endswith(_POSITIONS)
        yield tensor, 1, None if kept else _gguf_format(mix, part, Place(), tensor)
    experts = max((layer.feed_forward.experts for layer in spec.layers if layer.feed_forward), default=0)
    group = max((_group(layer) for layer in spec.layers), default=1)
    valued = [layer for layer in spec.layers if any(_is_value(tensor, spec) for tensor in layer.tensors)]
    values = 0  # of layers so far
    for index, layer in enumerate(spec.layers):
        for tensor in layer.tensors:
            part = part_of(tensor.name, spec.family)
            inside = Place(index, len(spec.layers), group, experts, tensor.count > 1)
            where = replace(inside, layer=values, layers=len(valued)) if part is Part.VALUE else inside
            yield tensor, 1, _gguf_format(mix, part, where, tensor) if tensor.linear else None
        values += any(_is_value(tensor, spec) for tensor in layer.tensors)


def _is_value(tensor: Tensor, spec: ModelSpec) -> bool:
    return part_of(tensor.name, spec.family) is Part.VALUE


def _group(layer: LayerSpec) -> int:
    return layer.mixer.heads // layer.mixer.kv_heads if isinstance(layer.mixer, Attention) else 1


def _gguf_format(mix: str, part: Part, place: Place, tensor: Tensor) -> WeightFormat:
    return BY_NAME[matrix_type(mix, part, place, tensor.shape[-1])].format


def _plain_bytes(
    elements_by_split: tuple[tuple[int, Dtype | None, int], ...], dtype: Dtype, ranks: int
) -> tuple[int, int]:
    """(all, fullest rank) of tensors that are stored as they are."""
    total = rank = 0
    for units, own, elements in elements_by_split:
        size = elements * (own or dtype).bytes
        total += size
        rank += on_rank(size, units, ranks)
    return total, rank


def _planned_bytes(spec: ModelSpec, stored: WeightFormat, ranks: int, *, attention_too: bool = True) -> tuple[int, int]:
    """(all, fullest rank) with the matrices of the layers in a format, or those outside attention; the rest plain."""
    plain = spec.dtype if spec.dtype.bytes <= Dtype.BF16.bytes else Dtype.BF16
    total, rank = _plain_bytes(spec.elements_outside_matrices, plain, ranks)
    for layer, count in spec.layer_groups:
        for tensor in layer.tensors:
            if tensor.linear:
                held = stored if attention_too or "attn" not in tensor.name else None
                size = tensor_bytes(tensor, held, plain)
                total, rank = total + size * count, rank + on_rank(size, tensor.units, ranks) * count
    return total, rank


def _quantised_bytes(spec: ModelSpec, quantisation: Quantisation, ranks: int) -> tuple[int, int]:
    """(all, fullest rank) with the scales and exclusions of a quantisation."""
    total = rank = 0
    for tensor, count, stored in _stored_tensors(spec, quantisation):
        size = tensor_bytes(tensor, stored, spec.dtype)
        total += size * count
        rank += on_rank(size, tensor.units, ranks) * count
    return total, rank


def format_name(spec: ModelSpec, stored: WeightFormat | None = None, dtype: Dtype | None = None) -> str:
    """The format in words."""
    if stored or dtype:
        return stored.name if stored else str(dtype)
    if spec.quantisation is None:
        return str(spec.dtype)
    names = [spec.quantisation.default.name] if spec.quantisation.default else []
    names += [held.name for _, held in spec.quantisation.overrides]
    return "+".join(dict.fromkeys(names)) or str(spec.dtype)


def on_rank(size: int, units: int, ranks: int) -> int:
    """What the fullest rank holds of something of `size` that tensor parallelism divides into `units` whole parts.

    Units that the ranks do not divide are spread unevenly, and with fewer units than ranks each rank holds one. Of 0
    units: it can be cut anywhere.
    """
    return ceil_div(size, ranks) if units == 0 else ceil_div(size * ceil_div(units, ranks), units)


def check_tensor_parallel(spec: ModelSpec, ranks: int) -> None:
    """Refuse a rank count that the model's heads and widths cannot be divided by."""
    if ranks < 1:
        raise InvalidRequest(f"tp is {ranks}; it must be at least 1")
    if ranks == 1:
        return
    for layer, _ in spec.layer_groups:
        for what, units in _divisible_units(layer.tensors):
            if units % ranks:
                fitting = [str(n) for n in range(2, 65) if units % n == 0][:8]
                raise InvalidRequest(
                    f"tp {ranks} does not divide the {units} {what} of {spec.name}; "
                    f"use 1{', ' if fitting else ''}{', '.join(fitting)}"
                )


def _divisible_units(tensors: tuple[Tensor, ...]) -> Iterator[tuple[str, int]]:
    for tensor in tensors:
        if tensor.name.endswith((".q_proj", ".q_b_proj")) and tensor.units > 1:
            yield "attention heads", tensor.units
        elif tensor.name.endswith("down_proj") and tensor.units > 1:
            yield "MLP columns", tensor.units


def tensor_bytes(tensor: Tensor, stored: WeightFormat | None, dtype: Dtype) -> int:
    """The bytes of a tensor (all `count` of it)."""
    if stored is None:
        return tensor.elements * (tensor.dtype or dtype).bytes
    rows, columns = tensor.shape[0], prod(tensor.shape[1:])
    return matrix_bytes(stored, rows, columns) * tensor.count


def _stored_tensors(spec: ModelSpec, quantisation: Quantisation) -> Iterator[tuple[Tensor, int, WeightFormat | None]]:
    """(tensor, how often, format) over the whole model; a format of None is the plain type."""
    book = RuleBook(quantisation)
    for tensor in spec.tensors:
        table = quantisation.embeddings and len(tensor.shape) == 2
        yield tensor, 1, book.outside(tensor.name) if tensor.linear or table else None
    for index, layer, count in _layers_alike(spec, book):
        for tensor in layer.tensors:
            yield tensor, count, book.in_layer(index, tensor.name) if tensor.linear else None
    for tower in spec.towers:
        for tensor in tower.tensors:
            yield tensor, 1, book.in_tower(tensor.name) if tensor.linear and quantisation.towers else None


def _layers_alike(spec: ModelSpec, book: RuleBook) -> Iterator[tuple[int, LayerSpec, int]]:
    """(index of one, layer, how many) for layers that are equal and have equal rules."""
    groups: dict[tuple[int, tuple[Rule, ...]], list[int]] = {}
    for index, layer in enumerate(spec.layers):
        groups.setdefault((id(layer), book.rules_of_layer(index)), []).append(index)
    for indexes in groups.values():
        yield indexes[0], spec.layers[indexes[0]], len(indexes)

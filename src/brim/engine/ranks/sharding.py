"""A rank's shard of a model, by the tensor-parallel plan of the model's class.

In: a whole model in memory. Out: the same object with this rank's shard of projections, experts and embeddings, and the
collectives that transformers hooks around them. Attention then sees its local heads only.
`from_pretrained` could read only the shard, but needs `accelerate`.

transformers' plans shard keys and values by columns, which cuts through a head where there are fewer KV heads than
ranks. In such a model those projections are sharded here instead: each rank keeps the KV heads its query heads use, so
that one head may be on several ranks.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from brim.errors import InvalidRequest, UnsupportedModel
from brim.units import ceil_div

_KEYS_AND_VALUES = ("k_proj", "v_proj")
_DONE = "brim_split"  # attribute of a model: the number of ranks it is sharded over


@dataclass(frozen=True, slots=True, eq=False)
class _Attention:
    """An attention module whose heads a plan distributes."""

    module: torch.nn.Module
    heads: int
    kv_heads: int


def split_model(model: Any, rank: int, size: int, device: torch.device) -> None:
    """Keep this rank's shard of a model, in place and on this rank's device."""
    done = getattr(model, _DONE, getattr(model, "_tp_size", None))
    if size == 1 or (done == size and hasattr(model, _DONE)):
        model.to(device)
        return
    if done is not None:
        raise InvalidRequest(f"tensor parallelism: the model is already sharded over {done} ranks; give a whole model")
    plan, attentions = _checked_plan(model, size)
    shared = any(attention.kv_heads % size for attention in attentions)
    if shared:
        plan = {name: style for name, style in plan.items() if name.rpartition(".")[2] not in _KEYS_AND_VALUES}
    tied = _is_tied(model)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of rules that no module of this model matches
        try:
            _shard(model, init_device_mesh(device.type, (size,)), plan, tied)
        except ValueError as error:
            raise InvalidRequest(f"tensor parallelism over {size} ranks: {error}") from error
        if shared:
            for attention in attentions:
                _keep_heads(attention, rank, size)
        _use_plain_weights(model)
        _use_plain_lookups(model, rank, size)
        if tied:
            _tie(model)
        model.to(device)
    model.__dict__[_DONE] = size


def local_bytes(model: torch.nn.Module) -> int:
    """Bytes of parameters and buffers that are on this rank, each storage once."""
    tensors = [*model.parameters(), *model.buffers()]
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    return sum({tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in local}.values())


def splits_towers(model: Any, backbone: torch.nn.Module) -> bool:
    """Whether the plan of a model shards anything beside its decoder and its head, an encoder of images for one."""
    decoder = {*backbone.modules(), model.get_output_embeddings(), model.get_input_embeddings()}
    plan = model.tp_plan or {}
    return any(_starred(name) in plan for name, module in model.named_modules() if module not in decoder)


def _starred(name: str) -> str:
    """As plans write it: with stars for the numbers of layers."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def _shard(model: Any, mesh: DeviceMesh, plan: dict[str, str], tied: bool) -> None:
    """By transformers' own styles; from 5.23 on it wants plans without stars, and parameters that are not tied."""
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    asked = inspect.signature(apply_tensor_parallelism).parameters.get("tp_plan")
    if asked is None or asked.default is None:
        model.tp_plan = plan
        apply_tensor_parallelism(model, mesh)  # type: ignore[no-untyped-call]
        return
    if tied:
        head = model.get_output_embeddings()
        head.weight = torch.nn.Parameter(head.weight.detach(), requires_grad=False)
    apply_tensor_parallelism(model, mesh, _by_name(model, plan))  # type: ignore[no-untyped-call]


def _by_name(model: Any, plan: dict[str, str]) -> dict[str, str]:
    """A plan without stars: parameters with the style of their module, and the modules that styles are hooked to."""
    found = {}
    for name, module in model.named_modules():
        style = plan.get(_starred(name))
        for parameter, _ in module.named_parameters(recurse=False):
            whole = f"{name}.{parameter}" if name else parameter
            if (own := plan.get(_starred(whole), style)) is not None:
                found[whole] = own
        if style is not None:
            found[name] = style
    return found


def _checked_plan(model: Any, size: int) -> tuple[dict[str, str], list[_Attention]]:
    """The plan of a model, and the attention modules whose heads it distributes."""
    plan = dict(model.tp_plan or {})
    if not any(".layers.*." in f".{name}" for name in plan):
        raise UnsupportedModel(
            f"tensor parallelism: transformers has no plan for the layers of '{model.config.model_type}'; "
            "run it on one device"
        )
    attentions = list(_attentions(model, plan))
    for attention in attentions:
        heads, kv_heads = attention.heads, attention.kv_heads
        if heads % size or (kv_heads % size and size % kv_heads):
            raise InvalidRequest(
                f"tensor parallelism: {heads} query heads and {kv_heads} KV heads cannot be sharded over {size} ranks; "
                "use a number of ranks that divides the query heads, and that divides the KV heads or is a multiple"
            )
    return plan, attentions


def _attentions(model: Any, plan: dict[str, str]) -> Iterator[_Attention]:
    for name, module in model.named_modules():
        rule = plan.get(_starred(f"{name}.k_proj"))
        if rule == "colwise" and getattr(module, "k_proj", None) is not None:
            width = module.head_dim
            yield _Attention(module, module.q_proj.out_features // width, module.k_proj.out_features // width)


def _keep_heads(attention: _Attention, rank: int, size: int) -> None:
    """Cut whole key and value projections down to the KV heads that this rank's query heads use."""
    first = rank * attention.kv_heads // size
    count = max(1, attention.kv_heads // size)
    for name in _KEYS_AND_VALUES:
        linear = getattr(attention.module, name, None)
        if linear is None:  # the values are the keys
            continue
        if type(linear) is not torch.nn.Linear:
            raise UnsupportedModel(
                f"tensor parallelism: {attention.kv_heads} KV heads over {size} ranks are not supported with "
                f"{type(linear).__name__}; use at most {attention.kv_heads} ranks"
            )
        width = linear.out_features // attention.kv_heads
        rows = slice(first * width, (first + count) * width)
        for key, parameter in linear.named_parameters():
            linear._parameters[key] = torch.nn.Parameter(parameter[rows].clone(), parameter.requires_grad)
        linear.out_features = count * width


def _use_plain_weights(model: torch.nn.Module) -> None:
    """Linear layers keep their shard as a plain tensor.

    The hooks around them take both; a `DTensor` is unwrapped at every call, which costs more than a small matmul.
    """
    for module in model.modules():
        if type(module) is torch.nn.Linear:
            for key, parameter in module.named_parameters():
                if isinstance(parameter, DTensor):
                    module._parameters[key] = torch.nn.Parameter(parameter.to_local(), parameter.requires_grad)


def _use_plain_lookups(model: torch.nn.Module, rank: int, size: int) -> None:
    """Embeddings that are sharded by rows of the vocabulary look up their own rows, and the ranks' results are summed.

    A `DTensor` keeps the mask of a lookup in a cache of torch's until it has been summed. One that fails in between
    would leave it there, and every later lookup would raise.
    """
    for module in model.modules():
        weight: Any = module._parameters.get("weight")
        if isinstance(module, torch.nn.Embedding) and isinstance(weight, DTensor) and weight.placements == (Shard(0),):
            rows = ceil_div(weight.shape[0], size)
            module._parameters["weight"] = torch.nn.Parameter(weight.to_local(), weight.requires_grad)
            module.padding_idx = None  # only gradients depend on it, and it may be a row of another rank
            module.__dict__["forward"] = partial(_look_up, module, rank * rows, weight.device_mesh.get_group())


def _look_up(module: torch.nn.Embedding, first: int, group: Any, ids: torch.Tensor) -> torch.Tensor:
    """Zeros for the rows of other ranks, before the sum."""
    places = ids - first
    elsewhere = (places < 0) | (places >= module.weight.shape[0])
    found = type(module).forward(module, places.masked_fill_(elsewhere, 0))
    found.masked_fill_(elsewhere.unsqueeze(-1), 0)
    dist.all_reduce(found, group=group)
    return found


def _is_tied(model: Any) -> bool:
    output = model.get_output_embeddings()
    return output is not None and output.weight is model.get_input_embeddings().weight


def _tie(model: Any) -> None:
    """Both embeddings were cut by rows of the vocabulary: one storage is enough, as before."""
    source, output = model.get_input_embeddings().weight, model.get_output_embeddings()
    local = source.to_local() if isinstance(source, DTensor) else source
    if local.shape == output.weight.shape:
        output.weight = torch.nn.Parameter(local, source.requires_grad)

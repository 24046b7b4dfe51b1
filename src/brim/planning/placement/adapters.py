"""LoRA adapters as vLLM makes room for them: for each, two narrow matrices beside every linear module.

In: a model (or a device's part of it), adapters and tensor-parallel ranks. Out: bytes on a rank, exact for the modules
named here: every linear module of the layers, routers and routed experts included, and embeddings and head in classes
that list them. Beside a module that is divided by its rows, A is whole on every rank; by its columns, B is. Fully
sharded adapters and those of encoders are not modelled.
"""

from __future__ import annotations

from collections.abc import Iterator

from brim.errors import InvalidRequest
from brim.model.weights import on_rank
from brim.planning.placement.record import Adapters
from brim.records.model import Dtype, ModelSpec, Tensor

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM takes
LARGEST_VOCABULARY = 258_048  # with adapters of the head
_BY_COLUMNS = ("o_proj", "out_proj", "down_proj", "c_proj", "fc2", "wo", "w2", "dense", "dense_4h_to_h")
_ROUTERS = ("gate", "router")
_FUSED = {"qkv_proj": 3, "query_key_value": 3, "gate_up_proj": 2}  # modules that are several for an adapter
_WITH_VOCABULARY = frozenset(  # families whose class in vLLM 0.26 has adapters of embeddings and head
    {
        *("llama", "mistral", "mixtral", "qwen3", "qwen3_moe", "granite", "granitemoe", "granitemoeshared"),
        *("granitemoehybrid", "nemotron", "nemotron_h", "jamba", "exaone", "exaone4", "exaone_moe", "phimoe"),
        *("cohere", "cohere2", "lfm2", "lfm2_moe", "minicpm", "falcon_h1", "solar", "apertus"),
    }
)


def adapter_bytes(spec: ModelSpec, adapters: Adapters, ranks: int) -> int:
    """Bytes of all adapters on a rank."""
    element = Dtype.BF16.bytes if spec.dtype is Dtype.FP32 else spec.dtype.bytes
    inside = sum(
        count * tensor.count * _width(tensor, ranks)
        for layer, count in spec.layer_groups
        for tensor in layer.tensors
        if _is_adapted(tensor)
    )
    outside = sum(sum(tensor.shape) for tensor in _vocabulary(spec))
    return (inside + outside) * adapters.rank * adapters.count * element


def check_adapters(spec: ModelSpec, adapters: Adapters) -> None:
    """Refuse what vLLM refuses."""
    if adapters.rank not in RANKS:
        larger = next((rank for rank in RANKS if rank >= adapters.rank), RANKS[-1])
        known = ", ".join(map(str, RANKS))
        raise InvalidRequest(f"lora-rank is {adapters.rank}, and engine vllm takes {known}; use {larger}")
    if spec.family in _WITH_VOCABULARY and spec.vocab > LARGEST_VOCABULARY:
        raise InvalidRequest(
            f"engine vllm has no LoRA adapters for {spec.name}: its vocabulary of {spec.vocab:,} is larger than "
            f"{LARGEST_VOCABULARY:,}; leave out --loras"
        )


def _is_adapted(tensor: Tensor) -> bool:
    return len(tensor.shape) == 2 and (tensor.linear or tensor.name.rpartition(".")[2] in _ROUTERS)


def _width(tensor: Tensor, ranks: int) -> int:
    """Inputs of A and outputs of B on a rank, of one module."""
    rows, columns = tensor.shape
    name = tensor.name.rpartition(".")[2]
    if tensor.units == 1:
        return columns * _FUSED.get(name, 1) + rows
    if name in _BY_COLUMNS:
        return on_rank(columns, tensor.units, ranks) + rows
    return columns * _FUSED.get(name, 1) + on_rank(rows, tensor.units, ranks)


def _vocabulary(spec: ModelSpec) -> Iterator[Tensor]:
    """Embeddings and head, which every rank holds whole; a tied table is adapted as both."""
    if spec.family not in _WITH_VOCABULARY:
        return
    tables = [tensor for tensor in spec.tensors if len(tensor.shape) == 2 and tensor.units == 0]
    yield from tables
    if len(tables) == 1 and not tables[0].linear and spec.vocab:
        yield tables[0]

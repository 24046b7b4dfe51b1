"""What a model is, as far as memory goes: `ModelSpec` and its parts.

A spec is made by `brim.model` from a config and read by everything behind it. It lists the parameter tensors
(`Tensor`), what each layer keeps between steps (`KvCache`, `StateCache`), and the widths that decide how much a step
takes (`Attention`, `FeedForward`, ...). It knows nothing of devices, engines or requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from math import prod

GGUF = "gguf"  # the method of a quantisation that a GGUF file has


class Dtype(StrEnum):
    """Element types of tensors that are not packed."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    INT8 = "int8"

    @property
    def bytes(self) -> int:
        return _DTYPE_BYTES[self]


_DTYPE_BYTES = {Dtype.FP32: 4, Dtype.BF16: 2, Dtype.FP16: 2, Dtype.FP8: 1, Dtype.INT8: 1}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A parameter tensor, or `count` equal ones.

    `units` says how tensor parallelism may split it: into that many equal parts (heads, columns), 1 for a tensor that
    every rank holds whole, 0 for one that engines pad and split anyhow (the vocabulary).
    `linear` marks the matrices of linear modules, the only ones that quantisation touches.
    `dtype` is set where the model keeps a tensor in a type of its own.
    """

    name: str
    shape: tuple[int, ...]
    units: int = 1
    linear: bool = False
    count: int = 1
    dtype: Dtype | None = None

    @property
    def elements(self) -> int:
        return prod(self.shape) * self.count


@dataclass(frozen=True, slots=True)
class KvCache:
    """Keys and values (or an MLA latent, or index keys) that a layer keeps per token.

    `window` bounds how many of the last tokens are kept; `stride` keeps one entry for that many tokens (compressed
    attention). `heads` are split over ranks, and replicated when there are fewer heads than ranks.
    `expanded_elements` is what an engine stores that keeps per-head keys and values where a latent would do.
    """

    kind: str
    heads: int
    elements_per_head: int
    window: int | None = None
    stride: int = 1
    expanded_elements: int | None = None
    expanded_heads: int | None = None

    @property
    def elements_per_token(self) -> int:
        return self.heads * self.elements_per_head


@dataclass(frozen=True, slots=True)
class StateCache:
    """What a layer keeps per running request whatever its length: convolution and recurrent state.

    A `dtype` of None follows the model's own type.
    """

    kind: str
    elements: int
    dtype: Dtype | None = None
    units: int = 1


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention over per-head keys and values."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    normed_heads: bool = False  # queries and keys are normalised per head
    gated: bool = False  # the output is gated by a projection as wide as the query
    sinks: bool = False
    window: int | None = None
    fp32_rope_copies: int = 0  # query-wide fp32 tensors that rotary embedding holds at once, where it runs in fp32
    index_heads: int = 0  # sparse attention scores every earlier token with this many heads


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (MLA): keys and values are expanded from a small latent."""

    heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    index_heads: int = 0

    @property
    def query_dim(self) -> int:
        return self.nope_dim + self.rope_dim


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """Gated delta rule (Qwen3-Next, Qwen3.5; Kimi Delta Attention), run in chunks."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_dim: int
    chunk: int = 64
    fused_projection: bool = False  # q, k, v and gate come out of one projection, which stays alive
    channel_decay: bool = False  # a decay per channel (Kimi): chunks are multiplied out channel by channel


@dataclass(frozen=True, slots=True)
class Mamba2:
    """State-space layer of the Mamba-2 kind, run in chunks."""

    heads: int
    head_dim: int
    state: int
    groups: int
    chunk: int

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def conv_dim(self) -> int:
        return self.inner + 2 * self.groups * self.state


@dataclass(frozen=True, slots=True)
class ShortConv:
    """Gated short convolution (LFM2)."""

    channels: int


@dataclass(frozen=True, slots=True)
class LightningAttention:
    """Linear attention with decay (MiniMax-01)."""

    heads: int
    head_dim: int
    block: int = 256


Mixer = Attention | LatentAttention | DeltaNet | Mamba2 | ShortConv | LightningAttention


@dataclass(frozen=True, slots=True)
class FeedForward:
    """The feed-forward part of a layer: a dense MLP, a mixture of experts, or both side by side."""

    intermediate: int = 0  # dense (or always-on, shared) width
    gated: bool = True
    fused_gate: bool = False  # gate and up projection are one matrix
    stepwise_activation: bool = False  # the activation function is spelled out in several operations
    experts: int = 0
    top_k: int = 0
    expert_intermediate: int = 0
    expert_hidden: int = 0  # width of an expert's input where it is not the model's
    expert_gated: bool = True
    routed_fp32: bool = False  # routing weights stay in fp32 and widen the weighted sum
    every_expert: bool = False  # all experts compute all tokens (Llama 4 in transformers)
    clamped: bool = False  # gate and up are clamped copies (gpt-oss)


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer: how it mixes tokens, its feed-forward part, its tensors, and what it keeps."""

    mixer: Mixer | None
    feed_forward: FeedForward | None
    tensors: tuple[Tensor, ...]
    kv: tuple[KvCache, ...] = ()
    state: tuple[StateCache, ...] = ()


class MediaType(StrEnum):
    IMAGE = "image"
    AUDIO = "audio"


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """The largest input the processor allows, as the tower sees it.

    Images: `max_pixels` in one image, or `max_tiles` of `tile_pixels` each. Audio: `max_seconds`.
    `source` says where the limit is from.
    """

    source: str
    max_pixels: int = 0
    tile_pixels: int = 0
    max_tiles: int = 0
    max_seconds: int = 0


@dataclass(frozen=True, slots=True)
class TowerSpec:
    """A vision or audio encoder. `hidden` of 0 means its dimensions are not in the config."""

    media: MediaType
    hidden: int
    intermediate: int
    layers: int
    heads: int
    tensors: tuple[Tensor, ...]
    limits: MediaLimits
    pixels_per_patch: int = 0  # patch edge squared
    merge: int = 1  # patches that become one token of the language model
    frames_per_second: int = 0  # audio: encoder positions for a second
    output: int = 0  # width of what is handed to the language model
    gated: bool = False
    head_dim: int = 0
    extra_outputs: int = 0  # deepstack features handed over beside the last layer's
    fp32_rope: bool = False

    @property
    def pixel_elements(self) -> int:
        """Numbers that the processor sends for a patch: colours, and frames where a patch spans several."""
        embeddings = (tensor for tensor in self.tensors if "patch" in tensor.name and len(tensor.shape) > 1)
        return next((prod(tensor.shape[1:]) for tensor in embeddings), 3 * self.pixels_per_patch)


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How the matrix of a linear module is stored.

    `bits` for an element, plus one scale of `scale_bytes` for every `rows_per_scale` × `columns_per_scale` block
    (0: the whole extent), plus `zero_bits` for each of those blocks, plus `matrix_bytes` once. Where scales are
    quantised themselves, `scales_per_scale` of them share one in fp32.

    A format with a `gguf_mix` is one of a whole file, embeddings included: this is the type of most matrices, and the
    mix of that name says which are stored otherwise.
    """

    name: str
    bits: int
    scale_bytes: int = 0
    rows_per_scale: int = 0
    columns_per_scale: int = 0
    zero_bits: int = 0
    matrix_bytes: int = 0
    column_bytes: int = 0
    row_bytes: int = 0
    scales_per_scale: int = 0
    gguf_mix: str = ""


@dataclass(frozen=True, slots=True)
class Quantisation:
    """Which modules are stored in which format. `overrides` come before `default`; None means unquantised."""

    method: str
    default: WeightFormat | None
    excluded: tuple[str, ...] = ()
    overrides: tuple[tuple[str, WeightFormat], ...] = ()
    towers: bool = False
    kv_dtype: Dtype | None = None
    embeddings: bool = False  # tables of embeddings are quantised too


@dataclass(frozen=True, slots=True)
class StoredParts:
    """Where the bytes of weight files are, for engines that divide a model by layers.

    `shared_bytes` of the embeddings are the head too: an engine that keeps embeddings on the host has them twice.
    """

    layer_bytes: tuple[int, ...]
    embedding_bytes: int  # and what else is neither in a layer nor behind the last one
    output_bytes: int
    shared_bytes: int = 0
    tower_bytes: int = 0

    @property
    def bytes(self) -> int:
        return sum(self.layer_bytes) + self.embedding_bytes + self.output_bytes + self.tower_bytes


@dataclass(frozen=True)
class ModelSpec:
    """A model, as far as memory goes."""

    name: str
    family: str
    architecture: str
    dtype: Dtype
    hidden: int
    vocab: int
    max_positions: int
    layers: tuple[LayerSpec, ...]
    tensors: tuple[Tensor, ...]  # those outside the layers: embeddings, final norm, head
    towers: tuple[TowerSpec, ...] = ()
    quantisation: Quantisation | None = None
    files_bytes: int | None = None  # weights as stored, where the files are there
    files_detail: str = ""
    stored_parts: StoredParts | None = None  # the same bytes by part, where that is known
    projector: str | None = None  # file of the towers, where they are in one of their own
    logits_softcap: bool = False
    wide_residual: int = 1  # copies of the residual stream (hyper-connections)
    held_hidden: int = 0  # hidden-wide tensors the forward holds in addition to embeddings and residual
    lent_kv_elements: int = 0  # keys and values per token that layers keep alive for later layers
    layer_input_width: int = 0  # per-layer embeddings: width per layer (Gemma 3n and 4)
    # Cosines and sines of every position, where an engine computes them ahead. Not what the model is, so not compared:
    # configs that mean the same spell their scaling in several ways.
    position_table_bytes: int = field(default=0, compare=False)
    draft_only: bool = False
    source: str | None = None  # what an engine loads it by: a hub id, or a path
    warnings: tuple[str, ...] = field(default=())

    @cached_property
    def layer_groups(self) -> tuple[tuple[LayerSpec, int], ...]:
        """Distinct layers with how often each occurs, in order of appearance."""
        counts: dict[int, int] = {}
        firsts: dict[int, LayerSpec] = {}
        for layer in self.layers:
            counts[id(layer)] = counts.get(id(layer), 0) + 1
            firsts.setdefault(id(layer), layer)
        return tuple((firsts[key], count) for key, count in counts.items())

    @property
    def is_gguf(self) -> bool:
        """Whether its weights are in a GGUF file, or planned as one."""
        return self.quantisation is not None and self.quantisation.method == GGUF

    @property
    def indexes(self) -> bool:
        """Whether sparse attention scores all earlier tokens with an indexer."""
        return any(getattr(layer.mixer, "index_heads", 0) for layer, _ in self.layer_groups)

    def all_tensors(self) -> Iterator[tuple[str, Tensor, int]]:
        """(part, tensor, how often) for every tensor: part is "model", "layers" or "tower"."""
        for tensor in self.tensors:
            yield "model", tensor, 1
        for layer, count in self.layer_groups:
            for tensor in layer.tensors:
                yield "layers", tensor, count
        for tower in self.towers:
            for tensor in tower.tensors:
                yield "tower", tensor, 1

    @cached_property
    def parameters(self) -> int:
        return sum(elements for _, _, elements in self.elements_by_split)

    @cached_property
    def elements_by_split(self) -> tuple[tuple[int, Dtype | None, int], ...]:
        """(units, own dtype, elements): the parameters by how tensor parallelism may split them."""
        return _gathered((tensor, count) for _, tensor, count in self.all_tensors())

    @cached_property
    def elements_outside_matrices(self) -> tuple[tuple[int, Dtype | None, int], ...]:
        """The same without the matrices of linear modules inside the layers."""
        return _gathered(
            (tensor, count) for part, tensor, count in self.all_tensors() if part != "layers" or not tensor.linear
        )


def _gathered(tensors: Iterable[tuple[Tensor, int]]) -> tuple[tuple[int, Dtype | None, int], ...]:
    """(units, own dtype, elements) of tensors with their counts."""
    found: dict[tuple[int, Dtype | None], int] = {}
    for tensor, count in tensors:
        key = (tensor.units, tensor.dtype)
        found[key] = found.get(key, 0) + tensor.elements * count
    return tuple((*key, elements) for key, elements in found.items())

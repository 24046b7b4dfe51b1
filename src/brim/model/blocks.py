"""The parts that layers are made of: each function returns a `Block`, with the tensors in it named as in checkpoints.

In: dimensions. Out: tensors, caches, and the widths that decide activations. What differs between families (a bias
here, a norm there) is an argument; what only one family has is built in that family's own file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from brim.records.model import (
    Attention,
    DeltaNet,
    Dtype,
    FeedForward,
    KvCache,
    LatentAttention,
    LayerSpec,
    Mamba2,
    Mixer,
    StateCache,
    Tensor,
)


class HeadNorm(StrEnum):
    """How queries and keys are normalised."""

    NONE = "none"
    PER_HEAD = "per-head"  # one weight of head_dim, shared by the heads
    FULL = "full"  # one weight over all heads together


@dataclass(frozen=True, slots=True)
class Block:
    """A mixer or a feed-forward part, with everything it owns."""

    mixer: Mixer | None = None
    feed_forward: FeedForward | None = None
    tensors: tuple[Tensor, ...] = ()
    kv: tuple[KvCache, ...] = ()
    state: tuple[StateCache, ...] = ()


def linear(name: str, rows: int, columns: int, units: int = 1, bias: bool = False, count: int = 1) -> list[Tensor]:
    """A linear module: its matrix and, where there is one, its bias."""
    tensors = [Tensor(name, (rows, columns), units, linear=True, count=count)]
    if bias:
        tensors.append(Tensor(f"{name}.bias", (rows,), units, count=count))
    return tensors


def vector(name: str, width: int, bias: bool = False, dtype: Dtype | None = None) -> list[Tensor]:
    """A norm or another vector that every rank holds; a LayerNorm has a bias too."""
    tensors = [Tensor(name, (width,), dtype=dtype)]
    if bias:
        tensors.append(Tensor(f"{name}.bias", (width,), dtype=dtype))
    return tensors


def layer(*blocks: Block, norms: tuple[Tensor, ...] | list[Tensor] = ()) -> LayerSpec:
    """One layer out of its blocks and norms."""
    return LayerSpec(
        mixer=next((block.mixer for block in blocks if block.mixer), None),
        feed_forward=next((block.feed_forward for block in blocks if block.feed_forward), None),
        tensors=tuple(tensor for block in blocks for tensor in block.tensors) + tuple(norms),
        kv=tuple(cache for block in blocks for cache in block.kv),
        state=tuple(state for block in blocks for state in block.state),
    )


def norms(width: int, *names: str, bias: bool = False) -> list[Tensor]:
    """The norms of a layer, all of the same width."""
    return [tensor for name in names for tensor in vector(name, width, bias)]


def attention(
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    value_dim: int | None = None,
    *,
    prefix: str = "self_attn",
    out_name: str = "o_proj",
    qkv_bias: bool = False,
    out_bias: bool = False,
    head_norm: HeadNorm = HeadNorm.NONE,
    window: int | None = None,
    gated: bool = False,
    sinks: bool = False,
    keys_are_values: bool = False,
    borrows_kv: bool = False,
    fp32_rope_copies: int = 0,
) -> Block:
    """Softmax attention. `gated` widens the query projection by an output gate (Qwen3-Next and after);
    `keys_are_values` has no value projection; `borrows_kv` reads another layer's cache and keeps none."""
    value_dim = value_dim or head_dim
    query_width = heads * head_dim * (2 if gated else 1)
    tensors = linear(f"{prefix}.q_proj", query_width, hidden, heads, qkv_bias)
    if not borrows_kv:
        tensors += linear(f"{prefix}.k_proj", kv_heads * head_dim, hidden, kv_heads, qkv_bias)
        if not keys_are_values:
            tensors += linear(f"{prefix}.v_proj", kv_heads * value_dim, hidden, kv_heads, qkv_bias)
    tensors += linear(f"{prefix}.{out_name}", hidden, heads * value_dim, heads, out_bias)
    if head_norm is HeadNorm.PER_HEAD:
        tensors += vector(f"{prefix}.q_norm", head_dim)
        tensors += [] if borrows_kv else vector(f"{prefix}.k_norm", head_dim)
    elif head_norm is HeadNorm.FULL:
        tensors += [Tensor(f"{prefix}.q_norm", (heads * head_dim,), heads)]
        tensors += [Tensor(f"{prefix}.k_norm", (kv_heads * head_dim,), kv_heads)]
    if sinks:
        tensors.append(Tensor(f"{prefix}.sinks", (heads,), heads))
    cache = KvCache("sliding" if window else "full", kv_heads, head_dim + value_dim, window)
    return Block(
        mixer=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            value_dim=value_dim,
            normed_heads=head_norm is not HeadNorm.NONE,
            gated=gated,
            sinks=sinks,
            window=window,
            fp32_rope_copies=fp32_rope_copies,
        ),
        tensors=tuple(tensors),
        kv=() if borrows_kv else (cache,),
    )


def latent_attention(
    hidden: int,
    heads: int,
    q_rank: int | None,
    kv_rank: int,
    nope_dim: int,
    rope_dim: int,
    value_dim: int,
    *,
    bias: bool = False,
    index_heads: int = 0,
    index_dim: int = 0,
    has_indexer: bool = True,
    output_gate: bool = False,
) -> Block:
    """Multi-head latent attention (DeepSeek V2 and after), with the indexer of its sparse variant."""
    prefix, query_dim = "self_attn", nope_dim + rope_dim
    tensors: list[Tensor] = []
    if q_rank is None:
        tensors += linear(f"{prefix}.q_proj", heads * query_dim, hidden, heads)
    else:
        tensors += linear(f"{prefix}.q_a_proj", q_rank, hidden, bias=bias)
        tensors += vector(f"{prefix}.q_a_layernorm", q_rank)
        tensors += linear(f"{prefix}.q_b_proj", heads * query_dim, q_rank, heads)
    tensors += linear(f"{prefix}.kv_a_proj_with_mqa", kv_rank + rope_dim, hidden, bias=bias)
    tensors += vector(f"{prefix}.kv_a_layernorm", kv_rank)
    tensors += linear(f"{prefix}.kv_b_proj", heads * (nope_dim + value_dim), kv_rank, heads)
    tensors += linear(f"{prefix}.o_proj", hidden, heads * value_dim, heads, bias)
    if output_gate:
        tensors += linear(f"{prefix}.g_proj", heads * value_dim, hidden, heads)
    caches = [
        KvCache(
            "latent",
            heads=1,
            elements_per_head=kv_rank + rope_dim,
            expanded_heads=heads,
            expanded_elements=query_dim + value_dim,
        )
    ]
    if index_heads and has_indexer:
        tensors += linear(f"{prefix}.indexer.wq_b", index_heads * index_dim, q_rank or hidden)
        tensors += linear(f"{prefix}.indexer.wk", index_dim, hidden)
        tensors += vector(f"{prefix}.indexer.k_norm", index_dim, bias=True)
        tensors += linear(f"{prefix}.indexer.weights_proj", index_heads, hidden)
        caches.append(KvCache("index", heads=1, elements_per_head=index_dim))
    return Block(
        mixer=LatentAttention(heads, q_rank, kv_rank, nope_dim, rope_dim, value_dim, index_heads),
        tensors=tuple(tensors),
        kv=tuple(caches),
    )


def delta_net(
    hidden: int, key_heads: int, value_heads: int, key_dim: int, value_dim: int, kernel: int, *, fused: bool = False
) -> Block:
    """Gated delta rule of Qwen3-Next (`fused` projections) and Qwen3.5 (separate ones)."""
    prefix = "linear_attn"
    keys, values = key_heads * key_dim, value_heads * value_dim
    conv_dim = 2 * keys + values
    tensors = [
        Tensor(f"{prefix}.conv1d", (conv_dim, 1, kernel), key_heads),
        Tensor(f"{prefix}.dt_bias", (value_heads,), value_heads),
        Tensor(f"{prefix}.A_log", (value_heads,), value_heads),
        *vector(f"{prefix}.norm", value_dim),
        *linear(f"{prefix}.out_proj", hidden, values, value_heads),
    ]
    if fused:
        tensors += linear(f"{prefix}.in_proj_qkvz", conv_dim + values, hidden, key_heads)
        tensors += linear(f"{prefix}.in_proj_ba", 2 * value_heads, hidden, key_heads)
    else:
        tensors += linear(f"{prefix}.in_proj_qkv", conv_dim, hidden, key_heads)
        tensors += linear(f"{prefix}.in_proj_z", values, hidden, value_heads)
        tensors += linear(f"{prefix}.in_proj_b", value_heads, hidden, value_heads)
        tensors += linear(f"{prefix}.in_proj_a", value_heads, hidden, value_heads)
    return Block(
        mixer=DeltaNet(key_heads, value_heads, key_dim, value_dim, conv_dim, fused_projection=fused),
        tensors=tuple(tensors),
        state=(
            StateCache("conv", conv_dim * kernel, units=key_heads),
            StateCache("recurrent", value_heads * key_dim * value_dim, Dtype.FP32, units=value_heads),
        ),
    )


def mamba2(
    hidden: int,
    heads: int,
    head_dim: int,
    state: int,
    groups: int,
    kernel: int,
    chunk: int,
    *,
    prefix: str,
    conv_bias: bool,
    proj_bias: bool,
    gated_norm: bool = True,
    state_dtype: Dtype = Dtype.FP32,
) -> Block:
    """A Mamba-2 layer. In-projection: gate, inner, B and C of each group, and a time step per head."""
    mixer = Mamba2(heads, head_dim, state, groups, chunk)
    tensors = [
        *linear(f"{prefix}.in_proj", mixer.inner + mixer.conv_dim + heads, hidden, heads, proj_bias),
        Tensor(f"{prefix}.conv1d", (mixer.conv_dim, 1, kernel), heads),
        Tensor(f"{prefix}.dt_bias", (heads,), heads),
        Tensor(f"{prefix}.A_log", (heads,), heads),
        Tensor(f"{prefix}.D", (heads,), heads),
        *linear(f"{prefix}.out_proj", hidden, mixer.inner, heads, proj_bias),
    ]
    if conv_bias:
        tensors.append(Tensor(f"{prefix}.conv1d.bias", (mixer.conv_dim,), heads))
    if gated_norm:
        tensors.append(Tensor(f"{prefix}.norm", (mixer.inner,), heads))
    return Block(
        mixer=mixer,
        tensors=tuple(tensors),
        state=(
            StateCache("conv", mixer.conv_dim * kernel, units=heads),
            StateCache("recurrent", mixer.inner * state, state_dtype, units=heads),
        ),
    )


def mlp(
    hidden: int,
    intermediate: int,
    *,
    prefix: str = "mlp",
    gated: bool = True,
    fused: bool = False,
    bias: bool = False,
    stepwise_activation: bool = False,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> Block:
    """A dense feed-forward part."""
    gate, up, down = names
    tensors: list[Tensor] = []
    if fused and gated:
        tensors += linear(f"{prefix}.gate_up_proj", 2 * intermediate, hidden, intermediate, bias)
    else:
        tensors += linear(f"{prefix}.{gate}", intermediate, hidden, intermediate, bias) if gated else []
        tensors += linear(f"{prefix}.{up}", intermediate, hidden, intermediate, bias)
    down_tensors = linear(f"{prefix}.{down}", hidden, intermediate, intermediate)
    tensors += down_tensors + (vector(f"{prefix}.{down}.bias", hidden) if bias else [])
    widths = FeedForward(intermediate, gated, fused_gate=fused, stepwise_activation=stepwise_activation)
    return Block(feed_forward=widths, tensors=tuple(tensors))


@dataclass(frozen=True, slots=True)
class Routing:
    """How many experts there are, how many a token visits, and how wide one is."""

    experts: int
    top_k: int
    intermediate: int


def moe(
    hidden: int,
    routing: Routing,
    *,
    prefix: str = "mlp",
    router: str = "gate",
    router_bias: bool = False,
    shared: str = "shared_experts",
    shared_intermediate: int = 0,
    shared_gate: bool = False,
    shared_fused: bool = False,
    gated: bool = True,
    expert_hidden: int = 0,
    expert_bias: bool = False,
    routed_fp32: bool = False,
    every_expert: bool = False,
    clamped: bool = False,
) -> Block:
    """A mixture of experts, with an always-on shared expert where there is one."""
    width, experts, expert_intermediate = expert_hidden or hidden, routing.experts, routing.intermediate
    tensors = [Tensor(f"{prefix}.{router}", (experts, hidden))]
    tensors += vector(f"{prefix}.{router}.bias", experts) if router_bias else []
    projections = ("gate_proj", "up_proj") if gated else ("up_proj",)
    for name in projections:
        tensors += linear(
            f"{prefix}.experts.{name}", expert_intermediate, width, expert_intermediate, expert_bias, count=experts
        )
    tensors += linear(f"{prefix}.experts.down_proj", width, expert_intermediate, expert_intermediate, count=experts)
    tensors += [Tensor(f"{prefix}.experts.down_proj.bias", (width,), count=experts)] if expert_bias else []
    if shared_intermediate:
        shared_block = mlp(hidden, shared_intermediate, prefix=f"{prefix}.{shared}", gated=gated, fused=shared_fused)
        tensors += shared_block.tensors
    if shared_gate:
        tensors += linear(f"{prefix}.shared_expert_gate", 1, hidden)
    return Block(
        feed_forward=FeedForward(
            intermediate=shared_intermediate,
            gated=gated,
            fused_gate=shared_fused,
            experts=experts,
            top_k=routing.top_k,
            expert_intermediate=expert_intermediate,
            expert_hidden=width,
            expert_gated=gated,
            routed_fp32=routed_fp32,
            every_expert=every_expert,
            clamped=clamped,
        ),
        tensors=tuple(tensors),
    )


def behind_latent(block: Block, *projections: Tensor) -> Block:
    """A mixture whose experts work in a narrower space, with the projections into it and out of it."""
    return replace(block, tensors=block.tensors + projections)

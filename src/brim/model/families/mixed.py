"""Mixtures whose layers differ in more than being a mixture: windows, chunks, indexers, gates."""

from __future__ import annotations

from dataclasses import replace

from brim.errors import InvalidConfig
from brim.model.blocks import Block, HeadNorm, attention, layer, linear, mlp, moe, norms, vector
from brim.model.families.common import (
    CHUNKED,
    FULL,
    HEADS,
    SLIDING,
    Dimensions,
    TextModelSpec,
    fields_of_layers,
    layer_kinds,
    read_dimensions,
    read_window,
    sliding_pattern,
)
from brim.model.families.dense import PRE_NORMS, by_kind, decoder, plain_attention
from brim.model.families.experts import first_dense, read_routing
from brim.model.fields import LARGEST_CONTEXT, ConfigFields
from brim.records.model import Attention, KvCache, LayerSpec


def gpt_oss(fields: ConfigFields) -> TextModelSpec:
    size = read_dimensions(fields, {"num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072})
    window = read_window(fields, default=128)
    routing = read_routing(fields, intermediate=("intermediate_size",))
    bias = fields.boolean("attention_bias", True)
    ff = moe(
        size.hidden,
        routing,
        router="router",
        router_bias=True,
        expert_bias=True,
        clamped=True,
    )

    def make(kind: str) -> LayerSpec:
        mixer = attention(
            size.hidden,
            size.heads,
            size.kv_heads,
            size.head_dim,
            qkv_bias=bias,
            out_bias=bias,
            sinks=True,
            window=window if kind == SLIDING else None,
        )
        return layer(mixer, ff, norms=norms(size.hidden, *PRE_NORMS))

    return decoder(size, by_kind(sliding_pattern(fields, size.layers, every=2), make))


def llama4(fields: ConfigFields) -> TextModelSpec:
    """Llama 4: chunked attention but for every fourth layer; dense and mixture layers interleaved."""
    size = read_dimensions(fields, {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 202048})
    routing = read_routing(fields, intermediate=("intermediate_size",))
    chunk = fields.integer("attention_chunk_size", default=8192)
    step = fields.integer("interleave_moe_layer_step", default=1)
    sparse = set(fields.integers("moe_layers")) if "moe_layers" in fields else set(range(step - 1, size.layers, step))
    bias = fields.boolean("attention_bias", False)
    experts = moe(
        size.hidden,
        routing,
        prefix="feed_forward",
        router="router",
        shared="shared_expert",
        shared_intermediate=routing.intermediate,
        every_expert=True,
    )
    kinds = _llama4_kinds(fields, size.layers)

    def make(kind: str) -> LayerSpec:
        attends, ff = kind.split("/")
        mixer = plain_attention(size, qkv_bias=bias, out_bias=bias, window=chunk if attends == CHUNKED else None)
        dense = mlp(size.hidden, fields.integer("intermediate_size_mlp", default=16384), prefix="feed_forward")
        return layer(mixer, experts if ff == "moe" else dense, norms=norms(size.hidden, *PRE_NORMS))

    return decoder(
        size,
        by_kind(tuple(f"{kind}/{'moe' if i in sparse else 'mlp'}" for i, kind in enumerate(kinds)), make),
    )


def _llama4_kinds(fields: ConfigFields, layers: int) -> tuple[str, ...]:
    given = layer_kinds(fields, layers, (FULL, CHUNKED))
    if given:
        return given
    if "no_rope_layers" in fields and fields.raw("no_rope_layers"):
        return tuple(CHUNKED if flag else FULL for flag in fields.per_layer("no_rope_layers", layers))
    every = fields.integer("no_rope_layer_interval", default=4)
    return tuple(CHUNKED if (index + 1) % every else FULL for index in range(layers))


def mimo_v2(fields: ConfigFields) -> TextModelSpec:
    """MiMo V2: sliding layers with more KV heads than the full ones, keys wider than values, sinks where it slides."""
    size = read_dimensions(fields)
    before = fields.optional_integer("sliding_window_size", maximum=LARGEST_CONTEXT)  # the token itself comes on top
    window = before + 1 if before else read_window(fields, default=128)
    routing = read_routing(fields)
    slides = (
        tuple(kind == SLIDING for kind in layer_kinds(fields, size.layers) or ())
        if "layer_types" in fields
        else tuple(bool(flag) for flag in fields.per_layer("hybrid_layer_pattern", size.layers))
    )
    sparse = first_dense(fields, size.layers, default=1)
    bias = fields.boolean("attention_bias", False)
    experts = moe(size.hidden, routing, routed_fp32=True)

    def make(kind: str) -> LayerSpec:
        sliding, is_mixture = "s" in kind, "x" in kind
        prefix = "swa_" if sliding else ""
        heads = fields.integer(f"{prefix}num_attention_heads", default=size.heads)
        mixer = attention(
            size.hidden,
            heads,
            fields.divisor(f"{prefix}num_key_value_heads", of=heads, what=HEADS, default=size.kv_heads),
            fields.integer(f"{prefix}head_dim", default=size.head_dim),
            fields.integer(f"{prefix}v_head_dim", "v_head_dim", default=size.head_dim),
            qkv_bias=bias,
            window=window if sliding else None,
            sinks=fields.boolean("add_swa_attention_sink_bias" if sliding else "add_full_attention_sink_bias", sliding),
        )
        dense = mlp(size.hidden, fields.integer("intermediate_size"))
        return layer(mixer, experts if is_mixture else dense, norms=norms(size.hidden, *PRE_NORMS))

    kinds = tuple(("s" if s else "f") + ("x" if x else "d") for s, x in zip(slides, sparse, strict=True))
    return decoder(size, by_kind(kinds, make))


def minimax_m3(fields: ConfigFields) -> TextModelSpec:
    """MiniMax M3: block-sparse attention chosen by a small indexer, in all but the first layers."""
    size = read_dimensions(fields, {"num_key_value_heads": 4, "head_dim": 128})
    routing = read_routing(fields, intermediate=("moe_intermediate_size", "intermediate_size"))
    sparse_fields = fields.child("sparse_attention_config")
    index_heads = sparse_fields.integer("sparse_num_index_heads", default=4)
    index_dim = sparse_fields.integer("sparse_index_dim", default=128)
    indexed = (
        tuple(bool(flag) for flag in sparse_fields.per_layer("sparse_attention_freq", size.layers))
        if "sparse_attention_freq" in sparse_fields
        else tuple(index >= 3 for index in range(size.layers))
    )
    mixture = first_dense(fields, size.layers, default=0)
    experts = moe(
        size.hidden,
        routing,
        shared_intermediate=fields.integer("shared_intermediate_size", default=routing.intermediate)
        * fields.integer("n_shared_experts", default=1, minimum=0),
        shared_fused=True,
        routed_fp32=True,
    )
    dense = mlp(size.hidden, fields.integer("dense_intermediate_size", default=12288), fused=True)

    def make(kind: str) -> LayerSpec:
        mixer = plain_attention(size, head_norm=HeadNorm.PER_HEAD)
        if "i" in kind:
            mixer = with_indexer(mixer, size.hidden, index_heads, index_dim)
        return layer(mixer, experts if "x" in kind else dense, norms=norms(size.hidden, *PRE_NORMS))

    kinds = tuple(("i" if i else "f") + ("x" if x else "d") for i, x in zip(indexed, mixture, strict=True))
    return decoder(size, by_kind(kinds, make))


def with_indexer(block: Block, hidden: int, heads: int, dim: int) -> Block:
    """Attention with MiniMax M3's indexer beside it, which keeps one more key per token."""
    assert isinstance(block.mixer, Attention)
    tensors = [
        *linear("self_attn.indexer.q_proj", heads * dim, hidden),
        *linear("self_attn.indexer.k_proj", dim, hidden),
        *vector("self_attn.indexer.q_norm", dim),
        *vector("self_attn.indexer.k_norm", dim),
    ]
    return replace(
        block,
        mixer=replace(block.mixer, index_heads=heads),
        tensors=block.tensors + tuple(tensors),
        kv=(*block.kv, KvCache("index", heads=1, elements_per_head=dim)),
    )


def step3p7(fields: ConfigFields, *, flat: bool) -> TextModelSpec:
    """Step 3.7: sliding and full layers, a gate per head, a wide mixture with one shared expert.

    In the `flat` format, which has the language model's fields at the top, every fourth layer sees everything."""
    size = read_dimensions(fields)
    window = read_window(fields, default=512)
    routing = read_routing(
        fields,
        experts=("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts"),
        top_k=("num_experts_per_tok", "moe_top_k"),
    )
    experts = moe(
        size.hidden,
        routing,
        shared_intermediate=fields.integer("share_expert_dim", "share_expert_dims", default=routing.intermediate),
        routed_fp32=True,
    )
    dense = mlp(size.hidden, fields.integer("intermediate_size"))

    def make(kind: str) -> LayerSpec:
        attends, ff, heads = kind.split("/")
        own = replace(size, heads=int(heads))
        mixer = plain_attention(own, head_norm=HeadNorm.PER_HEAD, window=window if attends == SLIDING else None)
        gate = linear("self_attn.g_proj", own.heads, size.hidden, own.heads)
        mixer = replace(mixer, tensors=mixer.tensors + tuple(gate))
        return layer(mixer, experts if ff == "moe" else dense, norms=norms(size.hidden, *PRE_NORMS))

    attends = layer_kinds(fields, size.layers) or tuple(
        SLIDING if flat and index % 4 else FULL for index in range(size.layers)
    )
    mixture = _step_mixture(fields, size.layers)
    heads = _step_heads(fields, size, attends)
    kinds = tuple(
        f"{kind}/{'moe' if x else 'mlp'}/{count}" for kind, x, count in zip(attends, mixture, heads, strict=True)
    )
    return decoder(size, by_kind(kinds, make))


def _step_mixture(fields: ConfigFields, layers: int) -> tuple[bool, ...]:
    """`moe_layers_enum` is the older way to say it: the numbers of the layers, with commas between them."""
    listed = fields.raw("moe_layers_enum")
    if not isinstance(listed, str) or "mlp_layer_types" in fields:
        return first_dense(fields, layers, default=3)
    numbers = [part.strip() for part in listed.split(",") if part.strip()]
    if not all(number.isascii() and number.isdigit() for number in numbers):
        raise InvalidConfig(fields.where("moe_layers_enum"), "must be numbers of layers with commas between them")
    sparse = {int(number) for number in numbers}
    return tuple(index in sparse for index in range(layers))


def _step_heads(fields: ConfigFields, size: Dimensions, kinds: tuple[str, ...]) -> tuple[int, ...]:
    """Query heads by layer: sliding layers may have more of them than full ones."""
    if "per_layer_config" in fields:
        layers = fields_of_layers(fields, size.layers, ("num_attention_heads",))
        return tuple(read_dimensions(one).heads for one in layers)
    older = fields.child("attention_other_setting").optional_integer("num_attention_heads")
    sliding = fields.integer("num_sliding_attention_heads", default=older or size.heads)
    if sliding % size.kv_heads:
        raise InvalidConfig(
            fields.where("num_sliding_attention_heads"), f"is {sliding}, not a multiple of {size.kv_heads} KV heads"
        )
    return tuple(sliding if kind == SLIDING else size.heads for kind in kinds)


def afmoe(fields: ConfigFields) -> TextModelSpec:
    """Arcee's Trinity: sliding layers with a full one in every four, a gate on attention, norms on both sides."""
    size = read_dimensions(fields)
    window = read_window(fields, default=1024)
    routing = read_routing(fields, experts=("num_experts",))
    experts = moe(
        size.hidden,
        routing,
        router="router.gate",
        shared_intermediate=routing.intermediate * fields.integer("num_shared_experts", default=0, minimum=0),
        routed_fp32=True,
    )
    experts = replace(experts, tensors=(*experts.tensors, *vector("mlp.expert_bias", routing.experts)))
    dense = mlp(size.hidden, fields.integer("intermediate_size"))
    first = fields.integer("num_dense_layers", default=1, minimum=0)

    def make(kind: str) -> LayerSpec:
        attends, ff = kind.split("/")
        mixer = plain_attention(size, head_norm=HeadNorm.PER_HEAD, window=window if attends == SLIDING else None)
        gate = linear("self_attn.gate_proj", size.heads * size.head_dim, size.hidden, size.heads)
        mixer = replace(mixer, tensors=mixer.tensors + tuple(gate))
        names = (*PRE_NORMS, "pre_mlp_layernorm", "post_mlp_layernorm")
        return layer(mixer, experts if ff == "moe" else dense, norms=norms(size.hidden, *names))

    attends = sliding_pattern(fields, size.layers, every=fields.integer("global_attn_every_n_layers", default=4))
    kinds = tuple(f"{kind}/{'moe' if index >= first else 'mlp'}" for index, kind in enumerate(attends))
    return decoder(size, by_kind(kinds, make))

"""Hybrids: layers that keep a fixed state per request beside layers that keep keys and values."""

from __future__ import annotations

from dataclasses import replace

from brim.errors import UnsupportedModel
from brim.model.blocks import (
    Block,
    HeadNorm,
    attention,
    delta_net,
    layer,
    linear,
    mamba2,
    mlp,
    moe,
    norms,
    vector,
)
from brim.model.families.common import (
    FULL,
    Dimensions,
    TextModel,
    layer_kinds,
    outer_tensors,
    read_context,
    read_dimensions,
    read_window,
)
from brim.model.families.dense import PRE_NORMS, by_kind, decoder, plain_attention
from brim.model.families.experts import first_dense, is_sparse, read_routing
from brim.model.families.latent import read_latent
from brim.model.fields import Fields
from brim.records.model import (
    DeltaNet,
    Dtype,
    FeedForward,
    LayerSpec,
    LightningAttention,
    ShortConv,
    StateCache,
    Tensor,
)

LINEAR = "linear_attention"
_DTYPES = {"float32": Dtype.FP32, "bfloat16": Dtype.BF16, "float16": Dtype.FP16}


def qwen3_next(fields: Fields) -> TextModel:
    return _qwen_delta(fields, mixture=True, fused=True)


def qwen3_5(fields: Fields) -> TextModel:
    return _qwen_delta(fields, mixture=False, fused=False)


def qwen3_5_moe(fields: Fields) -> TextModel:
    return _qwen_delta(fields, mixture=True, fused=False)


def _qwen_delta(fields: Fields, *, mixture: bool, fused: bool) -> TextModel:
    size = read_dimensions(fields, {"head_dim": 256, "max_position_embeddings": 32768})
    bias = fields.boolean("attention_bias", False)
    sparse = is_sparse(fields, size.layers) if mixture else (False,) * size.layers

    def make(kind: str) -> LayerSpec:
        mixer = (
            _qwen_delta_net(fields, size.hidden, fused)
            if kind.startswith(LINEAR)
            else attention(
                size.hidden,
                size.heads,
                size.kv_heads,
                size.head_dim,
                qkv_bias=bias,
                out_bias=bias,
                head_norm=HeadNorm.PER_HEAD,
                gated=True,
            )
        )
        dense = not kind.endswith("moe")
        ff = mlp(size.hidden, fields.integer("intermediate_size")) if dense else _qwen_experts(fields, size.hidden)
        return layer(mixer, ff, norms=norms(size.hidden, *PRE_NORMS))

    kinds = _interval_kinds(fields, size.layers)
    return decoder(
        size, by_kind(tuple(f"{k}/{'moe' if s else 'mlp'}" for k, s in zip(kinds, sparse, strict=True)), make)
    )


def _interval_kinds(fields: Fields, layers: int) -> tuple[str, ...]:
    given = layer_kinds(fields, layers, (FULL, LINEAR))
    every = fields.integer("full_attention_interval", default=4)
    return given or tuple(FULL if (index + 1) % every == 0 else LINEAR for index in range(layers))


def _qwen_delta_net(fields: Fields, hidden: int, fused: bool) -> Block:
    return delta_net(
        hidden,
        fields.integer("linear_num_key_heads", default=16),
        fields.integer("linear_num_value_heads", default=32),
        fields.integer("linear_key_head_dim", default=128),
        fields.integer("linear_value_head_dim", default=128),
        fields.integer("linear_conv_kernel_dim", default=4),
        fused=fused,
    )


def _qwen_experts(fields: Fields, hidden: int) -> Block:
    routing = read_routing(fields)
    return moe(
        hidden,
        routing.experts,
        routing.top_k,
        routing.intermediate,
        shared="shared_expert",
        shared_intermediate=fields.integer("shared_expert_intermediate_size", default=512),
        shared_gate=True,
    )


def granite_hybrid(fields: Fields) -> TextModel:
    """Granite 4: Mamba-2 layers with attention here and there; a shared MLP, and experts where there are any."""
    size = read_dimensions(fields)
    experts = fields.integer("num_local_experts", default=8, minimum=0)
    shared = fields.integer("shared_intermediate_size", default=1024)
    bias = fields.boolean("attention_bias", False)

    def make(kind: str) -> LayerSpec:
        mixer = plain_attention(size, qkv_bias=bias, out_bias=bias) if kind == FULL else _granite_mamba(fields, size)
        tensors = [
            *linear("shared_mlp.input_linear", 2 * shared, size.hidden, shared),
            *linear("shared_mlp.output_linear", size.hidden, shared, shared),
        ]
        ff = Block(feed_forward=FeedForward(shared, fused_gate=True), tensors=tuple(tensors))
        if experts:
            routing = read_routing(fields, intermediate=("intermediate_size",))
            routed = moe(
                size.hidden,
                routing.experts,
                routing.top_k,
                routing.intermediate,
                prefix="block_sparse_moe",
                router="router.layer",
            )
            assert routed.feed_forward is not None
            ff = Block(
                feed_forward=replace(routed.feed_forward, intermediate=shared, fused_gate=True),
                tensors=(*tensors, *routed.tensors),
            )
        return layer(mixer, ff, norms=norms(size.hidden, *PRE_NORMS))

    renamed = {"attention": FULL, "mamba": LINEAR, FULL: FULL, LINEAR: LINEAR}
    given = fields.first(("layer_types", "layers_block_type"))
    kinds = fields.per_layer(given, size.layers) if given in fields else (LINEAR,) * size.layers
    return decoder(size, by_kind(tuple(_known(fields, given, kind, renamed) for kind in kinds), make))


def _known(fields: Fields, name: str, kind: object, names: dict[str, str]) -> str:
    if not isinstance(kind, str) or kind not in names:
        raise UnsupportedModel(f"config field '{fields.where(name)}': unknown layer type {str(kind)[:40]!r}")
    return names[kind]


def _granite_mamba(fields: Fields, size: Dimensions) -> Block:
    inner = fields.integer("mamba_expand", default=2) * size.hidden
    heads = fields.integer("mamba_n_heads", default=128)
    return mamba2(
        size.hidden,
        heads,
        inner // heads,
        fields.integer("mamba_d_state", default=256),
        fields.integer("mamba_n_groups", default=1),
        fields.integer("mamba_d_conv", default=4),
        fields.integer("mamba_chunk_size", default=256),
        prefix="mamba",
        conv_bias=fields.boolean("mamba_conv_bias", True),
        proj_bias=fields.boolean("mamba_proj_bias", False),
    )


def nemotron_h(fields: Fields) -> TextModel:
    """Nemotron-H and Nemotron 3: each layer is one thing only, a Mamba-2, an attention, an MLP or a mixture."""
    hidden = fields.integer("hidden_size")
    kinds = _nemotron_kinds(fields)
    vocab = fields.integer("vocab_size")

    def make(kind: str) -> LayerSpec:
        block = {
            "mamba": _nemotron_mamba,
            "attention": _nemotron_attention,
            "mlp": _nemotron_mlp,
            "moe": _nemotron_experts,
        }[kind](fields, hidden)
        return layer(block, norms=norms(hidden, "norm"))

    return TextModel(
        hidden=hidden,
        vocab=vocab,
        max_positions=read_context(fields, 4096),
        layers=by_kind(kinds, make),
        tensors=outer_tensors(hidden, vocab, fields.boolean("tie_word_embeddings", False)),
    )


def _nemotron_kinds(fields: Fields) -> tuple[str, ...]:
    if "hybrid_override_pattern" in fields:
        letters = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
        pattern = fields.text("hybrid_override_pattern")
        layers = fields.layer_count("num_hidden_layers", default=max(len(pattern), 1))
        if len(pattern) < layers or any(letter not in letters for letter in pattern):
            raise UnsupportedModel(
                f"config field '{fields.where('hybrid_override_pattern')}': needs a letter of "
                f"{' '.join(letters)} for each of {layers} layers"
            )
        return tuple(letters[letter] for letter in pattern[:layers])
    names = {"mamba": "mamba", LINEAR: "mamba", "attention": "attention", FULL: "attention", "mlp": "mlp", "moe": "moe"}
    given = fields.first(("layers_block_type", "layer_types"))
    if given not in fields:
        raise UnsupportedModel(
            "Nemotron-H without 'hybrid_override_pattern' or 'layers_block_type': the layers are unknown"
        )
    kinds = fields.per_layer(given, 0) or tuple(fields.raw(given))
    layers = fields.layer_count("num_hidden_layers", default=max(len(fields.texts(given)), 1))
    kinds = fields.per_layer(given, layers)
    return tuple(_known(fields, given, kind, names) for kind in kinds)


def _nemotron_mamba(fields: Fields, hidden: int) -> Block:
    return mamba2(
        hidden,
        fields.integer("mamba_num_heads", default=128),
        fields.integer("mamba_head_dim", default=64),
        fields.integer("ssm_state_size", default=128),
        fields.integer("n_groups", default=8),
        fields.integer("conv_kernel", default=4),
        fields.integer("chunk_size", default=128),
        prefix="mixer",
        conv_bias=fields.boolean("use_conv_bias", True),
        proj_bias=fields.boolean("mamba_proj_bias", False),
        state_dtype=_DTYPES.get(fields.text("mamba_ssm_cache_dtype"), Dtype.FP32),
    )


def _nemotron_attention(fields: Fields, hidden: int) -> Block:
    heads = fields.integer("num_attention_heads")
    bias = fields.boolean("attention_bias", False)
    return attention(
        hidden,
        heads,
        fields.integer("num_key_value_heads", default=8),
        fields.integer("head_dim", "attention_head_dim", default=128),
        prefix="mixer",
        qkv_bias=bias,
        out_bias=bias,
        window=read_window(fields),
    )


def _nemotron_mlp(fields: Fields, hidden: int) -> Block:
    return mlp(
        hidden,
        fields.integer("intermediate_size"),
        prefix="mixer",
        gated=False,
        bias=fields.boolean("mlp_bias", False),
    )


def _nemotron_experts(fields: Fields, hidden: int) -> Block:
    routing = read_routing(fields, experts=("n_routed_experts",))
    latent = fields.optional_integer("moe_latent_size")
    block = moe(
        hidden,
        routing.experts,
        routing.top_k,
        routing.intermediate,
        prefix="mixer",
        shared_intermediate=fields.integer("moe_shared_expert_intermediate_size", default=0, minimum=0),
        gated=False,
        expert_hidden=latent or hidden,
        routed_fp32=True,
    )
    if latent is None:
        return block
    projections = [
        *linear("mixer.fc1_latent_proj", latent, hidden),
        *linear("mixer.fc2_latent_proj", hidden, latent),
    ]
    return replace(block, tensors=block.tensors + tuple(projections))


def lfm2(fields: Fields) -> TextModel:
    """LFM2: gated short convolutions with attention here and there."""
    size = read_dimensions(fields, {"num_key_value_heads": 8}, tied=fields.boolean("tie_embedding", True))
    intermediate = fields.integer("intermediate_size", "block_ff_dim", default=12288)
    if fields.boolean("block_auto_adjust_ff_dim", True):
        multiple = fields.integer("block_multiple_of", default=256)
        intermediate = int(2 * intermediate / 3)
        intermediate = int(fields.number("block_ffn_dim_multiplier", default=1.0) * intermediate)
        intermediate = multiple * ((intermediate + multiple - 1) // multiple)
    kernel = fields.integer("conv_L_cache", default=3)
    ff = mlp(size.hidden, intermediate, prefix="feed_forward", names=("w1", "w3", "w2"))

    def make(kind: str) -> LayerSpec:
        mixer = (
            attention(
                size.hidden,
                size.heads,
                size.kv_heads,
                size.head_dim,
                out_name="out_proj",
                head_norm=HeadNorm.PER_HEAD,
            )
            if kind == FULL
            else _short_conv(size.hidden, kernel, fields.boolean("conv_bias", False))
        )
        return layer(mixer, ff, norms=norms(size.hidden, "operator_norm", "ffn_norm"))

    names = {FULL: FULL, "conv": "conv"}
    if "full_attn_idxs" in fields and "layer_types" not in fields:
        full = set(fields.integers("full_attn_idxs"))
        kinds: tuple[str, ...] = tuple(FULL if index in full else "conv" for index in range(size.layers))
    else:
        given = fields.per_layer("layer_types", size.layers)
        kinds = tuple(_known(fields, "layer_types", kind, names) for kind in given)
    return decoder(size, by_kind(kinds, make))


def _short_conv(hidden: int, kernel: int, bias: bool) -> Block:
    tensors = [
        Tensor("conv.conv", (hidden, 1, kernel), hidden),
        *linear("conv.in_proj", 3 * hidden, hidden, hidden, bias),
        *linear("conv.out_proj", hidden, hidden, hidden, bias),
    ]
    return Block(
        mixer=ShortConv(hidden), tensors=tuple(tensors), state=(StateCache("conv", hidden * kernel, units=hidden),)
    )


def minimax(fields: Fields) -> TextModel:
    """MiniMax-01 and M1: lightning attention with softmax attention every few layers, a mixture in each."""
    size = read_dimensions(fields, {"num_key_value_heads": 8})
    routing = read_routing(fields, intermediate=("intermediate_size",))
    ff = moe(size.hidden, routing.experts, routing.top_k, routing.intermediate)

    def make(kind: str) -> LayerSpec:
        mixer = plain_attention(size) if kind == FULL else _lightning(size, fields.integer("block_size", default=256))
        return layer(mixer, ff, norms=norms(size.hidden, *PRE_NORMS))

    if "attn_type_list" in fields:
        kinds = tuple(FULL if flag else LINEAR for flag in fields.per_layer("attn_type_list", size.layers))
    else:
        kinds = layer_kinds(fields, size.layers, (FULL, LINEAR)) or tuple(
            LINEAR if index % 2 else FULL for index in range(size.layers)
        )
    return decoder(size, by_kind(kinds, make))


def _lightning(size: Dimensions, block: int) -> Block:
    width = size.heads * size.head_dim
    tensors = [
        *vector("self_attn.norm", width),
        *linear("self_attn.qkv_proj", 3 * width, size.hidden, size.heads),
        *linear("self_attn.out_proj", size.hidden, width, size.heads),
        *linear("self_attn.output_gate", width, size.hidden, size.heads),
    ]
    return Block(
        mixer=LightningAttention(size.heads, size.head_dim, block),
        tensors=tuple(tensors),
        state=(StateCache("recurrent", size.heads * size.head_dim**2, units=size.heads),),
    )


def kimi_linear(fields: Fields) -> TextModel:
    """Kimi Linear (and the text side of K3): Kimi Delta Attention with MLA every few layers."""
    hidden = fields.integer("hidden_size")
    layers = fields.layer_count("num_hidden_layers")
    sparse = first_dense(fields, layers, default=1)
    kinds = _kimi_kinds(fields, layers)

    def make(kind: str) -> LayerSpec:
        gate = fields.boolean("mla_use_output_gate", False)
        mixer = read_latent(fields, None, output_gate=gate) if kind.startswith(FULL) else _kimi_delta(fields, hidden)
        ff = _kimi_experts(fields, hidden) if kind.endswith("moe") else mlp(hidden, fields.integer("intermediate_size"))
        return layer(mixer, ff, norms=norms(hidden, *PRE_NORMS))

    vocab = fields.integer("vocab_size")
    return TextModel(
        hidden=hidden,
        vocab=vocab,
        max_positions=read_context(fields),
        layers=by_kind(tuple(f"{k}/{'moe' if s else 'mlp'}" for k, s in zip(kinds, sparse, strict=True)), make),
        tensors=outer_tensors(hidden, vocab, fields.boolean("tie_word_embeddings", False)),
    )


def _kimi_kinds(fields: Fields, layers: int) -> tuple[str, ...]:
    """The published config numbers its layers from 1."""
    if "linear_attn_config" in fields:
        full = set(fields.child("linear_attn_config").integers("full_attn_layers"))
        return tuple(FULL if index + 1 in full else LINEAR for index in range(layers))
    given = layer_kinds(fields, layers, (FULL, LINEAR))
    return given or tuple(FULL if (index + 1) % 4 == 0 else LINEAR for index in range(layers))


def _kimi_delta(fields: Fields, hidden: int) -> Block:
    own = fields.child("linear_attn_config")
    heads = own.integer("num_heads", default=fields.integer("linear_num_heads", default=32))
    dim = own.integer("head_dim", default=fields.integer("linear_head_dim", default=128))
    kernel = own.integer("short_conv_kernel_size", default=fields.integer("linear_conv_kernel_dim", default=4))
    width, prefix = heads * dim, "self_attn"
    tensors = [
        *linear(f"{prefix}.q_proj", width, hidden, heads),
        *linear(f"{prefix}.k_proj", width, hidden, heads),
        *linear(f"{prefix}.v_proj", width, hidden, heads),
        Tensor(f"{prefix}.conv1d", (3 * width, 1, kernel), heads),
        Tensor(f"{prefix}.dt_bias", (width,), heads),
        Tensor(f"{prefix}.A_log", (heads,), heads),
        *linear(f"{prefix}.f_a_proj", dim, hidden),
        *linear(f"{prefix}.f_b_proj", width, dim, heads),
        *linear(f"{prefix}.b_proj", heads, hidden, heads),
        *vector(f"{prefix}.o_norm", dim),
        *linear(f"{prefix}.o_proj", hidden, width, heads),
    ]
    if own.boolean("use_full_rank_gate", False):
        tensors += linear(f"{prefix}.g_proj", width, hidden, heads)
    else:
        tensors += linear(f"{prefix}.g_a_proj", dim, hidden) + linear(f"{prefix}.g_b_proj", width, dim, heads)
    return Block(
        mixer=DeltaNet(heads, heads, dim, dim, 3 * width, channel_decay=True),
        tensors=tuple(tensors),
        state=(
            StateCache("conv", 3 * width * kernel, units=heads),
            StateCache("recurrent", heads * dim * dim, Dtype.FP32, units=heads),
        ),
    )


def _kimi_experts(fields: Fields, hidden: int) -> Block:
    routing = read_routing(fields)
    latent = fields.optional_integer("routed_expert_hidden_size")
    block = moe(
        hidden,
        routing.experts,
        routing.top_k,
        routing.intermediate,
        shared_intermediate=routing.intermediate * fields.integer("num_shared_experts", default=1, minimum=0),
        expert_hidden=latent or hidden,
        routed_fp32=True,
    )
    if latent is None:
        return block
    projections = [
        *linear("mlp.routed_down_proj", latent, hidden),
        *linear("mlp.routed_up_proj", hidden, latent),
        *(vector("mlp.latent_norm", latent) if fields.boolean("latent_moe_use_norm", False) else []),
    ]
    return replace(block, tensors=block.tensors + tuple(projections))

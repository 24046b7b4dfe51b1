"""Hybrids on Mamba-2: Granite 4, Nemotron-H and Nemotron 3.

Some layers keep a fixed state per request, the others keep KV.
"""

from __future__ import annotations

from dataclasses import replace

from brim.errors import InvalidConfig, UnsupportedModel
from brim.model.blocks import (
    Block,
    attention,
    behind_latent,
    layer,
    linear,
    mamba2,
    mlp,
    moe,
    norms,
)
from brim.model.families.common import (
    FULL,
    HEADS,
    LINEAR,
    Dimensions,
    TextModelSpec,
    known_kind,
    outer_tensors,
    read_context,
    read_dimensions,
    read_window,
)
from brim.model.families.dense import PRE_NORMS, by_kind, decoder, plain_attention
from brim.model.families.experts import read_routing
from brim.model.fields import ConfigFields
from brim.records.model import (
    Dtype,
    FeedForward,
    LayerSpec,
)

_DTYPES = {"float32": Dtype.FP32, "bfloat16": Dtype.BF16, "float16": Dtype.FP16}


def granite_hybrid(fields: ConfigFields) -> TextModelSpec:
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
                routing,
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
    return decoder(size, by_kind(tuple(known_kind(fields, given, kind, renamed) for kind in kinds), make))


def _granite_mamba(fields: ConfigFields, size: Dimensions) -> Block:
    inner = fields.integer("mamba_expand", default=2) * size.hidden
    heads = fields.divisor("mamba_n_heads", of=inner, what="columns of the state", default=128)
    return mamba2(
        size.hidden,
        heads,
        inner // heads,
        fields.integer("mamba_d_state", default=256),
        fields.divisor("mamba_n_groups", of=heads, what="state heads", default=1),
        fields.integer("mamba_d_conv", default=4),
        fields.integer("mamba_chunk_size", default=256),
        prefix="mamba",
        conv_bias=fields.boolean("mamba_conv_bias", True),
        proj_bias=fields.boolean("mamba_proj_bias", False),
    )


def nemotron_h(fields: ConfigFields) -> TextModelSpec:
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

    return TextModelSpec(
        hidden=hidden,
        vocab=vocab,
        max_positions=read_context(fields, 4096),
        layers=by_kind(kinds, make),
        tensors=outer_tensors(hidden, vocab, fields.boolean("tie_word_embeddings", False)),
    )


def _nemotron_kinds(fields: ConfigFields) -> tuple[str, ...]:
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
        raise InvalidConfig(
            fields.where("hybrid_override_pattern"), "missing", "it (or layers_block_type) says what the layers are"
        )
    layers = fields.layer_count("num_hidden_layers", default=max(len(fields.texts(given)), 1))
    kinds = fields.per_layer(given, layers)
    return tuple(known_kind(fields, given, kind, names) for kind in kinds)


def _nemotron_mamba(fields: ConfigFields, hidden: int) -> Block:
    heads = fields.integer("mamba_num_heads", default=128)
    return mamba2(
        hidden,
        heads,
        fields.integer("mamba_head_dim", default=64),
        fields.integer("ssm_state_size", default=128),
        fields.divisor("n_groups", of=heads, what="state heads", default=8),
        fields.integer("conv_kernel", default=4),
        fields.integer("chunk_size", default=128),
        prefix="mixer",
        conv_bias=fields.boolean("use_conv_bias", True),
        proj_bias=fields.boolean("mamba_proj_bias", False),
        state_dtype=_DTYPES.get(fields.text("mamba_ssm_cache_dtype"), Dtype.FP32),
    )


def _nemotron_attention(fields: ConfigFields, hidden: int) -> Block:
    heads = fields.integer("num_attention_heads")
    bias = fields.boolean("attention_bias", False)
    return attention(
        hidden,
        heads,
        fields.divisor("num_key_value_heads", of=heads, what=HEADS, default=8),
        fields.integer("head_dim", "attention_head_dim", default=128),
        prefix="mixer",
        qkv_bias=bias,
        out_bias=bias,
        window=read_window(fields),
    )


def _nemotron_mlp(fields: ConfigFields, hidden: int) -> Block:
    return mlp(
        hidden,
        fields.integer("intermediate_size"),
        prefix="mixer",
        gated=False,
        bias=fields.boolean("mlp_bias", False),
    )


def _nemotron_experts(fields: ConfigFields, hidden: int) -> Block:
    routing = read_routing(fields, experts=("n_routed_experts",))
    latent = fields.optional_integer("moe_latent_size")
    block = moe(
        hidden,
        routing,
        prefix="mixer",
        shared_intermediate=fields.integer("moe_shared_expert_intermediate_size", default=0, minimum=0),
        gated=False,
        expert_hidden=latent or hidden,
        routed_fp32=True,
    )
    if latent is None:
        return block
    return behind_latent(
        block,
        *linear("mixer.fc1_latent_proj", latent, hidden),
        *linear("mixer.fc2_latent_proj", hidden, latent),
    )


def falcon_h1(fields: ConfigFields) -> TextModelSpec:
    """Falcon-H1: attention and Mamba-2 side by side in every layer, then an MLP."""
    size = read_dimensions(fields, {"num_key_value_heads": 8})
    bias = fields.boolean("attention_bias", False)
    heads = fields.integer("mamba_n_heads", default=128)
    automatic = fields.raw("mamba_d_head") in (None, "auto")
    inner = fields.integer("mamba_d_ssm", default=fields.integer("mamba_expand", default=2) * size.hidden)
    head_dim = inner // heads if automatic else fields.integer("mamba_d_head")
    state = mamba2(
        size.hidden,
        heads,
        head_dim,
        fields.integer("mamba_d_state", default=256),
        fields.divisor("mamba_n_groups", of=heads, what="state heads", default=1),
        fields.integer("mamba_d_conv", default=4),
        fields.integer("mamba_chunk_size", default=256),
        prefix="mamba",
        conv_bias=fields.boolean("mamba_conv_bias", True),
        proj_bias=fields.boolean("mamba_proj_bias", False),
        gated_norm=fields.boolean("mamba_rms_norm", False),
    )
    one = layer(
        plain_attention(size, qkv_bias=bias, out_bias=bias),
        state,
        mlp(
            size.hidden,
            fields.integer("intermediate_size"),
            prefix="feed_forward",
            bias=fields.boolean("mlp_bias", False),
        ),
        norms=norms(size.hidden, "input_layernorm", "pre_ff_layernorm"),
    )
    return decoder(size, (one,) * size.layers)

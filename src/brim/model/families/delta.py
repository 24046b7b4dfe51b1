"""Hybrids on the delta rule: Qwen3-Next, Qwen3.5 and after, Kimi Linear.

Some layers keep a fixed state per request, the others keep KV.
"""

from __future__ import annotations

from brim.errors import InvalidConfig
from brim.model.blocks import (
    Block,
    HeadNorm,
    attention,
    behind_latent,
    delta_net,
    layer,
    linear,
    mlp,
    moe,
    norms,
    vector,
)
from brim.model.families.common import (
    FULL,
    LINEAR,
    TextModelSpec,
    layer_kinds,
    outer_tensors,
    read_context,
    read_dimensions,
)
from brim.model.families.dense import PRE_NORMS, by_kind, decoder
from brim.model.families.experts import first_dense, is_sparse, read_routing
from brim.model.families.latent import read_latent
from brim.model.fields import ConfigFields
from brim.records.model import (
    DeltaNet,
    Dtype,
    LayerSpec,
    StateCache,
    Tensor,
)


def qwen3_next(fields: ConfigFields) -> TextModelSpec:
    return _qwen_delta(fields, mixture=True, fused=True)


def qwen3_5(fields: ConfigFields) -> TextModelSpec:
    return _qwen_delta(fields, mixture=False, fused=False)


def qwen3_5_moe(fields: ConfigFields) -> TextModelSpec:
    return _qwen_delta(fields, mixture=True, fused=False)


def _qwen_delta(fields: ConfigFields, *, mixture: bool, fused: bool) -> TextModelSpec:
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


def _interval_kinds(fields: ConfigFields, layers: int) -> tuple[str, ...]:
    given = layer_kinds(fields, layers, (FULL, LINEAR))
    every = fields.integer("full_attention_interval", default=4)
    return given or tuple(FULL if (index + 1) % every == 0 else LINEAR for index in range(layers))


def _qwen_delta_net(fields: ConfigFields, hidden: int, fused: bool) -> Block:
    value_heads = fields.integer("linear_num_value_heads", default=32)
    return delta_net(
        hidden,
        fields.divisor("linear_num_key_heads", of=value_heads, what="value heads", default=16),
        value_heads,
        fields.integer("linear_key_head_dim", default=128),
        fields.integer("linear_value_head_dim", default=128),
        fields.integer("linear_conv_kernel_dim", default=4),
        fused=fused,
    )


def _qwen_experts(fields: ConfigFields, hidden: int) -> Block:
    routing = read_routing(fields)
    return moe(
        hidden,
        routing,
        shared="shared_expert",
        shared_intermediate=fields.integer("shared_expert_intermediate_size", default=512),
        shared_gate=True,
    )


def kimi_linear(fields: ConfigFields) -> TextModelSpec:
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
    return TextModelSpec(
        hidden=hidden,
        vocab=vocab,
        max_positions=read_context(fields),
        layers=by_kind(tuple(f"{k}/{'moe' if s else 'mlp'}" for k, s in zip(kinds, sparse, strict=True)), make),
        tensors=outer_tensors(hidden, vocab, fields.boolean("tie_word_embeddings", False)),
    )


def _kimi_kinds(fields: ConfigFields, layers: int) -> tuple[str, ...]:
    """The published config numbers its layers from 1."""
    if "linear_attn_config" in fields:
        full = set(fields.child("linear_attn_config").integers("full_attn_layers"))
        return tuple(FULL if index + 1 in full else LINEAR for index in range(layers))
    given = layer_kinds(fields, layers, (FULL, LINEAR))
    if given is None:
        raise InvalidConfig(fields.where("linear_attn_config"), "missing", "it says which layers attend")
    return given


def _kimi_delta(fields: ConfigFields, hidden: int) -> Block:
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


def _kimi_experts(fields: ConfigFields, hidden: int) -> Block:
    routing = read_routing(fields)
    latent = fields.optional_integer("routed_expert_hidden_size")
    block = moe(
        hidden,
        routing,
        shared_intermediate=routing.intermediate * fields.integer("num_shared_experts", default=1, minimum=0),
        expert_hidden=latent or hidden,
        routed_fp32=True,
    )
    if latent is None:
        return block
    return behind_latent(
        block,
        *linear("mlp.routed_down_proj", latent, hidden),
        *linear("mlp.routed_up_proj", hidden, latent),
        *(vector("mlp.latent_norm", latent) if fields.boolean("latent_moe_use_norm", False) else []),
    )

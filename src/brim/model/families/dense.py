"""Dense decoders of the Llama line: one attention, one MLP per layer, differing in biases, norms and windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from brim.model.blocks import Block, HeadNorm, attention, layer, mlp, norms
from brim.model.families.common import (
    FULL,
    SLIDING,
    Dimensions,
    TextModelSpec,
    layer_kinds,
    outer_tensors,
    read_dimensions,
    read_window,
    sliding_pattern,
)
from brim.model.fields import ConfigFields
from brim.records.model import LayerSpec, Tensor

PRE_NORMS = ("input_layernorm", "post_attention_layernorm")
SANDWICH_NORMS = (*PRE_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")


def plain_attention(
    size: Dimensions,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    head_norm: HeadNorm = HeadNorm.NONE,
    window: int | None = None,
    fp32_rope_copies: int = 0,
) -> Block:
    return attention(
        size.hidden,
        size.heads,
        size.kv_heads,
        size.head_dim,
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        head_norm=head_norm,
        window=window,
        fp32_rope_copies=fp32_rope_copies,
    )


def decoder(size: Dimensions, layers: tuple[LayerSpec, ...], *, norm_bias: bool = False) -> TextModelSpec:
    """A decoder out of its layers, with the usual embeddings, final norm and head."""
    return TextModelSpec(
        hidden=size.hidden,
        vocab=size.vocab,
        max_positions=size.max_positions,
        layers=layers,
        tensors=outer_tensors(size.hidden, size.vocab, size.tied, norm_bias=norm_bias),
    )


def uniform(
    size: Dimensions,
    mixer: Block,
    feed_forward: Block,
    norm_names: tuple[str, ...] = PRE_NORMS,
    *,
    norm_bias: bool = False,
) -> TextModelSpec:
    """A decoder whose layers are all alike."""
    one = layer(mixer, feed_forward, norms=norms(size.hidden, *norm_names, bias=norm_bias))
    return decoder(size, (one,) * size.layers, norm_bias=norm_bias)


def by_kind(kinds: tuple[str, ...], make: Callable[[str], LayerSpec]) -> tuple[LayerSpec, ...]:
    """Layers for a list of kinds; layers of one kind are one shared record."""
    made = {kind: make(kind) for kind in dict.fromkeys(kinds)}
    return tuple(made[kind] for kind in kinds)


def llama(fields: ConfigFields) -> TextModelSpec:
    size = read_dimensions(fields)
    bias = fields.boolean("attention_bias", False)
    return uniform(
        size,
        plain_attention(size, qkv_bias=bias, out_bias=bias),
        mlp(size.hidden, fields.integer("intermediate_size"), bias=fields.boolean("mlp_bias", False)),
    )


def mistral(fields: ConfigFields) -> TextModelSpec:
    size = read_dimensions(fields, {"num_key_value_heads": 8, "max_position_embeddings": 131072})
    window = read_window(fields, default=4096)
    kinds = layer_kinds(fields, size.layers) or (SLIDING if window else FULL,) * size.layers
    ff = mlp(size.hidden, fields.integer("intermediate_size"))

    def make(kind: str) -> LayerSpec:
        mixer = plain_attention(size, window=window if kind == SLIDING else None)
        return layer(mixer, ff, norms=norms(size.hidden, *PRE_NORMS))

    return decoder(size, by_kind(kinds, make))


def qwen_windows(fields: ConfigFields, layers: int) -> tuple[tuple[str, ...], int | None]:
    """Qwen's rule: no window unless `use_sliding_window`; then the layers from `max_window_layers` on slide."""
    window = read_window(fields, default=4096) if fields.boolean("use_sliding_window", False) else None
    if window is None:
        return (FULL,) * layers, None
    from_layer = fields.integer("max_window_layers", default=28, minimum=0)
    kinds = layer_kinds(fields, layers)
    return kinds or tuple(SLIDING if index >= from_layer else FULL for index in range(layers)), window


def _qwen(
    fields: ConfigFields, *, qkv_bias: bool, out_bias: bool, head_norm: HeadNorm, head_dim: int | None
) -> TextModelSpec:
    size = read_dimensions(fields, {"head_dim": head_dim} if head_dim else None)
    kinds, window = qwen_windows(fields, size.layers)
    ff = mlp(size.hidden, fields.integer("intermediate_size"))

    def make(kind: str) -> LayerSpec:
        mixer = plain_attention(
            size,
            qkv_bias=qkv_bias,
            out_bias=out_bias,
            head_norm=head_norm,
            window=window if kind == SLIDING else None,
        )
        return layer(mixer, ff, norms=norms(size.hidden, *PRE_NORMS))

    return decoder(size, by_kind(kinds, make))


def qwen2(fields: ConfigFields) -> TextModelSpec:
    return _qwen(fields, qkv_bias=True, out_bias=False, head_norm=HeadNorm.NONE, head_dim=None)


def qwen3(fields: ConfigFields) -> TextModelSpec:
    bias = fields.boolean("attention_bias", False)
    return _qwen(fields, qkv_bias=bias, out_bias=bias, head_norm=HeadNorm.PER_HEAD, head_dim=128)


def phi(fields: ConfigFields) -> TextModelSpec:
    size = read_dimensions(fields)
    feed_forward = mlp(
        size.hidden,
        fields.integer("intermediate_size"),
        gated=False,
        bias=True,
        stepwise_activation=True,
        names=("", "fc1", "fc2"),
    )
    mixer = plain_attention(size, qkv_bias=True, out_bias=True)
    model = uniform(size, mixer, feed_forward, ("input_layernorm",), norm_bias=True)
    return replace(model, tensors=(*model.tensors, Tensor("lm_head.bias", (size.vocab,), 0)))


def phi3(fields: ConfigFields) -> TextModelSpec:
    size = read_dimensions(fields)
    mixer = plain_attention(size, window=read_window(fields))
    return uniform(size, mixer, mlp(size.hidden, fields.integer("intermediate_size"), fused=True))


def olmo(fields: ConfigFields) -> TextModelSpec:
    """OLMo 1 normalises without weights."""
    size = read_dimensions(fields)
    bias = fields.boolean("attention_bias", False)
    mixer = plain_attention(size, qkv_bias=bias, out_bias=bias)
    model = uniform(size, mixer, mlp(size.hidden, fields.integer("intermediate_size")), ())
    return replace(model, tensors=tuple(tensor for tensor in model.tensors if tensor.name != "model.norm"))


def olmo2(fields: ConfigFields) -> TextModelSpec:
    return _olmo_post_norm(fields, (FULL,) * fields.layer_count("num_hidden_layers"), None)


def olmo3(fields: ConfigFields) -> TextModelSpec:
    layers = fields.layer_count("num_hidden_layers")
    return _olmo_post_norm(fields, sliding_pattern(fields, layers, every=4), read_window(fields, default=4096))


def _olmo_post_norm(fields: ConfigFields, kinds: tuple[str, ...], window: int | None) -> TextModelSpec:
    size = read_dimensions(fields)
    bias = fields.boolean("attention_bias", False)
    ff = mlp(size.hidden, fields.integer("intermediate_size"))

    def make(kind: str) -> LayerSpec:
        mixer = plain_attention(
            size,
            qkv_bias=bias,
            out_bias=bias,
            head_norm=HeadNorm.FULL,
            window=window if kind == SLIDING else None,
            fp32_rope_copies=4,
        )
        return layer(mixer, ff, norms=norms(size.hidden, "post_attention_layernorm", "post_feedforward_layernorm"))

    return decoder(size, by_kind(kinds, make))


def glm(fields: ConfigFields) -> TextModelSpec:
    return _glm(fields, PRE_NORMS)


def glm4(fields: ConfigFields) -> TextModelSpec:
    return _glm(fields, (*PRE_NORMS, "post_self_attn_layernorm", "post_mlp_layernorm"))


def _glm(fields: ConfigFields, norm_names: tuple[str, ...]) -> TextModelSpec:
    size = read_dimensions(fields, {"num_key_value_heads": 2, "max_position_embeddings": 131072})
    mixer = plain_attention(size, qkv_bias=fields.boolean("attention_bias", True))
    return uniform(size, mixer, mlp(size.hidden, fields.integer("intermediate_size"), fused=True), norm_names)


def starcoder2(fields: ConfigFields) -> TextModelSpec:
    size = read_dimensions(fields, {"num_key_value_heads": 2}, tied=True)
    bias = fields.boolean("use_bias", True)
    return uniform(
        size,
        plain_attention(size, qkv_bias=bias, out_bias=bias, window=read_window(fields)),
        mlp(size.hidden, fields.integer("intermediate_size"), gated=False, bias=bias, names=("", "c_fc", "c_proj")),
        norm_bias=True,
    )


def smollm3(fields: ConfigFields) -> TextModelSpec:
    size = read_dimensions(fields, {"num_key_value_heads": 4}, tied=True)
    bias = fields.boolean("attention_bias", False)
    return uniform(
        size,
        plain_attention(size, qkv_bias=bias, out_bias=bias),
        mlp(size.hidden, fields.integer("intermediate_size"), bias=fields.boolean("mlp_bias", False)),
    )


def seed_oss(fields: ConfigFields) -> TextModelSpec:
    size = read_dimensions(fields, {"num_key_value_heads": 8, "head_dim": 128})
    return uniform(
        size,
        plain_attention(
            size,
            qkv_bias=fields.boolean("attention_bias", True),
            out_bias=fields.boolean("attention_out_bias", False),
        ),
        mlp(size.hidden, fields.integer("intermediate_size"), bias=fields.boolean("mlp_bias", False)),
    )


def exaone4(fields: ConfigFields) -> TextModelSpec:
    """EXAONE 4: norms behind attention and MLP; the 32B slides three layers in four, the 1.2B none."""
    size = read_dimensions(fields)
    window = read_window(fields, default=4096)
    kinds = (
        sliding_pattern(fields, size.layers, fields.integer("sliding_window_pattern", default=4, minimum=0))
        if window
        else (FULL,) * size.layers
    )
    ff = mlp(size.hidden, fields.integer("intermediate_size"))

    def make(kind: str) -> LayerSpec:
        mixer = plain_attention(size, head_norm=HeadNorm.PER_HEAD, window=window if kind == SLIDING else None)
        return layer(mixer, ff, norms=norms(size.hidden, "post_attention_layernorm", "post_feedforward_layernorm"))

    return decoder(size, by_kind(kinds, make))


def cohere2(fields: ConfigFields) -> TextModelSpec:
    size = read_dimensions(fields, tied=True)
    window = read_window(fields, default=4096)
    bias = fields.boolean("attention_bias", False)
    ff = mlp(size.hidden, fields.integer("intermediate_size"))

    def make(kind: str) -> LayerSpec:
        mixer = plain_attention(
            size,
            qkv_bias=bias,
            out_bias=bias,
            window=window if kind == SLIDING else None,
            fp32_rope_copies=6,
        )
        return layer(mixer, ff, norms=norms(size.hidden, "input_layernorm"))

    every = fields.integer("sliding_window_pattern", default=4)
    return decoder(size, by_kind(sliding_pattern(fields, size.layers, every), make))


def ernie4_5(fields: ConfigFields) -> TextModelSpec:
    size = read_dimensions(fields, {"head_dim": 128}, tied=True)
    bias = fields.boolean("use_bias", False)
    return uniform(
        size,
        plain_attention(size, qkv_bias=bias, out_bias=bias),
        mlp(size.hidden, fields.integer("intermediate_size"), bias=bias),
    )


def hunyuan_dense(fields: ConfigFields) -> TextModelSpec:
    size = read_dimensions(fields)
    bias = fields.boolean("attention_bias", False)
    return uniform(
        size,
        plain_attention(size, qkv_bias=bias, out_bias=bias, head_norm=HeadNorm.PER_HEAD),
        mlp(size.hidden, fields.integer("intermediate_size")),
    )


def nemotron(fields: ConfigFields) -> TextModelSpec:
    """Nemotron 4 and Minitron: squared ReLU without a gate, LayerNorm."""
    size = read_dimensions(fields)
    bias = fields.boolean("attention_bias", False)
    return uniform(
        size,
        plain_attention(size, qkv_bias=bias, out_bias=bias),
        mlp(size.hidden, fields.integer("intermediate_size"), gated=False, bias=fields.boolean("mlp_bias", False)),
        norm_bias=True,
    )


def mimo(fields: ConfigFields) -> TextModelSpec:
    """MiMo 7B: a Qwen2 with prediction layers behind it, which no engine loads unless it speculates."""
    size = read_dimensions(fields)
    return uniform(
        size,
        plain_attention(size, qkv_bias=fields.boolean("attention_bias", True)),
        mlp(size.hidden, fields.integer("intermediate_size")),
    )

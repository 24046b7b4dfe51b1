"""Gemma 1 to 4: wide heads, sliding and global layers, and in Gemma 4 layers that differ in nearly everything."""

from __future__ import annotations

from dataclasses import replace

from brim.model.blocks import Block, HeadNorm, attention, layer, linear, mlp, moe, norms, vector
from brim.model.families.common import (
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
from brim.model.families.dense import PRE_NORMS, SANDWICH_NORMS, by_kind, decoder, plain_attention
from brim.model.families.experts import read_routing
from brim.model.fields import ConfigFields
from brim.records.model import LayerSpec, Tensor

_GEMMA = {"head_dim": 256, "max_position_embeddings": 8192}
_GEMMA2 = {**_GEMMA, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 256000}
_GEMMA3 = {**_GEMMA2, "vocab_size": 262208, "max_position_embeddings": 131072}
_GEMMA4 = {**_GEMMA3, "vocab_size": 262144}


def gemma(fields: ConfigFields) -> TextModelSpec:
    size = read_dimensions(fields, {**_GEMMA, "num_key_value_heads": 16}, tied=True)
    bias = fields.boolean("attention_bias", False)
    one = layer(
        plain_attention(size, qkv_bias=bias, out_bias=bias),
        mlp(size.hidden, fields.integer("intermediate_size")),
        norms=norms(size.hidden, *PRE_NORMS),
    )
    return decoder(size, (one,) * size.layers)


def gemma2(fields: ConfigFields) -> TextModelSpec:
    model = _sandwich(fields, _GEMMA2, window=4096, every=2, head_norm=HeadNorm.NONE)
    return replace(model, logits_softcap=not fields.is_null("final_logit_softcapping"))


def gemma3(fields: ConfigFields) -> TextModelSpec:
    every = fields.integer("sliding_window_pattern", "_sliding_window_pattern", default=6)
    older = fields.stated("sliding_window_attention_size")
    if older is not None and fields.stated("sliding_window") is None:
        fields = fields.merged(sliding_window=older)
    model = _sandwich(fields, _GEMMA3, window=4096, every=every, head_norm=HeadNorm.PER_HEAD)
    return replace(model, logits_softcap="final_logit_softcapping" in fields)


def _sandwich(
    fields: ConfigFields, defaults: dict[str, int], *, window: int, every: int, head_norm: HeadNorm
) -> TextModelSpec:
    size = read_dimensions(fields, defaults, tied=True)
    span = read_window(fields, default=window)
    bias = fields.boolean("attention_bias", False)
    ff = mlp(size.hidden, fields.integer("intermediate_size"))

    def make(kind: str) -> LayerSpec:
        mixer = plain_attention(
            size, qkv_bias=bias, out_bias=bias, head_norm=head_norm, window=span if kind == SLIDING else None
        )
        return layer(mixer, ff, norms=norms(size.hidden, *SANDWICH_NORMS))

    return decoder(size, by_kind(sliding_pattern(fields, size.layers, every), make))


def gemma4(fields: ConfigFields) -> TextModelSpec:
    """Gemma 4: global layers with their own head size (and K = V), the last layers on borrowed KV, embeddings per
    layer, and a mixture beside the dense MLP where `enable_moe_block` says so."""
    size = read_dimensions(fields, _GEMMA4, tied=True)
    kinds = _gemma4_kinds(fields, size.layers)
    own_kv = size.layers - fields.integer("num_kv_shared_layers", default=0, minimum=0, maximum=size.layers - 1)
    wide_from = own_kv if fields.boolean("use_double_wide_mlp", False) else size.layers
    per_layer = (
        fields.integer("hidden_size_per_layer_input", default=256, minimum=0)
        if not fields.is_null("hidden_size_per_layer_input")
        else 0
    )

    def make(kind: str) -> LayerSpec:
        attends, borrows, wide, kv_heads, head_dim = kind.split("/")
        heads = replace(size, kv_heads=int(kv_heads), head_dim=int(head_dim))
        mixer = _gemma4_attention(fields, heads, attends == FULL, borrows == "borrowed")
        intermediate = fields.integer("intermediate_size") * (2 if wide == "wide" else 1)
        ff, more_norms = _gemma4_feed_forward(fields, size, intermediate)
        extra = [*norms(size.hidden, *SANDWICH_NORMS), *more_norms]
        if per_layer:
            extra += linear("per_layer_input_gate", per_layer, size.hidden)
            extra += linear("per_layer_projection", size.hidden, per_layer)
            extra += vector("post_per_layer_input_norm", size.hidden)
        return layer(mixer, ff, norms=extra)

    named = tuple(
        f"{kind}/{'borrowed' if index >= own_kv else 'own'}/{'wide' if index >= wide_from else 'plain'}/{heads}"
        for index, (kind, heads) in enumerate(zip(kinds, _gemma4_heads(fields, size, kinds), strict=True))
    )
    model = decoder(size, by_kind(named, make))
    if per_layer:
        table = fields.integer("vocab_size_per_layer_input", default=size.vocab)
        width = size.layers * per_layer
        model = replace(
            model,
            tensors=(
                *model.tensors,
                Tensor("model.embed_tokens_per_layer", (table, width), 0),
                *linear("model.per_layer_model_projection", width, size.hidden),
                *vector("model.per_layer_projection_norm", per_layer),
            ),
            layer_input_width=per_layer,
        )
    return replace(
        model,
        logits_softcap="final_logit_softcapping" in fields,
        lent_kv_elements=sum({id(layer): _kv_elements(layer) for layer in model.layers}.values()),
    )


def _kv_elements(layer: LayerSpec) -> int:
    return sum(cache.elements_per_token for cache in layer.kv)


def _gemma4_kinds(fields: ConfigFields, layers: int) -> tuple[str, ...]:
    kinds = layer_kinds(fields, layers) or sliding_pattern(fields, layers, every=6)
    return (*kinds[:-1], FULL)  # the last layer always sees everything


def _gemma4_heads(fields: ConfigFields, size: Dimensions, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Per layer "KV heads/head size", as published (fields for global layers) or as newer releases save it."""
    if "per_layer_config" in fields:
        layers = fields_of_layers(fields, size.layers, ("head_dim", "num_key_value_heads"))
        own = [(read_dimensions(one, _GEMMA4).kv_heads, one.integer("head_dim", default=256)) for one in layers]
        return tuple(f"{kv_heads}/{head_dim}" for kv_heads, head_dim in own)
    kv_heads = size.kv_heads
    if fields.boolean("attention_k_eq_v", False):
        kv_heads = fields.divisor("num_global_key_value_heads", of=size.heads, what=HEADS, default=size.kv_heads)
    wide = f"{kv_heads}/{fields.integer('global_head_dim', default=512)}"
    return tuple(wide if kind == FULL else f"{size.kv_heads}/{size.head_dim}" for kind in kinds)


def _gemma4_attention(fields: ConfigFields, size: Dimensions, is_global: bool, borrows: bool) -> Block:
    keys_are_values = is_global and fields.boolean("attention_k_eq_v", False)
    bias = fields.boolean("attention_bias", False)
    return attention(
        size.hidden,
        size.heads,
        size.kv_heads,
        size.head_dim,
        qkv_bias=bias,
        out_bias=bias,
        head_norm=HeadNorm.PER_HEAD,
        window=None if is_global else read_window(fields, default=512),
        keys_are_values=keys_are_values,
        borrows_kv=borrows,
    )


def _gemma4_feed_forward(fields: ConfigFields, size: Dimensions, intermediate: int) -> tuple[Block, list[Tensor]]:
    dense = mlp(size.hidden, intermediate)
    if not fields.boolean("enable_moe_block", False):
        return dense, []
    routing = read_routing(fields, intermediate=("moe_intermediate_size", "expert_intermediate_size"))
    experts = moe(
        size.hidden,
        routing,
        prefix="",
        router="router.proj",
        routed_fp32=True,
    )
    assert experts.feed_forward is not None
    tensors = [replace(tensor, name=tensor.name.lstrip(".")) for tensor in experts.tensors]
    tensors += vector("router.scale", size.hidden) + vector("router.per_expert_scale", routing.experts)
    both = Block(
        feed_forward=replace(experts.feed_forward, intermediate=intermediate), tensors=(*dense.tensors, *tensors)
    )
    names = ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")
    return both, norms(size.hidden, *names)

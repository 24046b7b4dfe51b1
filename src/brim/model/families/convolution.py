"""Hybrids on short convolutions and lightning attention: LFM2, MiniMax-01.

Some layers keep a fixed state per request, the others keep KV.
"""

from __future__ import annotations

from brim.model.blocks import (
    Block,
    HeadNorm,
    attention,
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
    Dimensions,
    TextModelSpec,
    known_kind,
    layer_kinds,
    read_dimensions,
)
from brim.model.families.dense import PRE_NORMS, by_kind, decoder, plain_attention
from brim.model.families.experts import read_routing
from brim.model.fields import ConfigFields
from brim.records.model import (
    LayerSpec,
    LightningAttention,
    ShortConv,
    StateCache,
    Tensor,
)
from brim.units import round_up


def lfm2(fields: ConfigFields) -> TextModelSpec:
    """LFM2: gated short convolutions with attention here and there."""
    size = read_dimensions(fields, {"num_key_value_heads": 8}, tied=fields.boolean("tie_embedding", True))
    intermediate = fields.integer("intermediate_size", "block_ff_dim", default=12288)
    if fields.boolean("block_auto_adjust_ff_dim", True):
        multiple = fields.integer("block_multiple_of", default=256)
        intermediate = int(2 * intermediate / 3)
        intermediate = int(fields.ratio("block_ffn_dim_multiplier", default=1.0) * intermediate)
        intermediate = max(multiple, round_up(intermediate, multiple))
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

    return decoder(size, by_kind(_lfm2_kinds(fields, size.layers), make))


def _lfm2_kinds(fields: ConfigFields, layers: int) -> tuple[str, ...]:
    """Layer by layer, or by the numbers of those that attend; where the config says neither, all do."""
    if "layer_types" in fields:
        names = {FULL: FULL, "conv": "conv"}
        given = fields.per_layer("layer_types", layers)
        return tuple(known_kind(fields, "layer_types", kind, names) for kind in given)
    full = set(fields.integers("full_attn_idxs") if "full_attn_idxs" in fields else range(layers))
    return tuple(FULL if index in full else "conv" for index in range(layers))


def _short_conv(hidden: int, kernel: int, bias: bool) -> Block:
    tensors = [
        Tensor("conv.conv", (hidden, 1, kernel), hidden),
        *linear("conv.in_proj", 3 * hidden, hidden, hidden, bias),
        *linear("conv.out_proj", hidden, hidden, hidden, bias),
    ]
    return Block(
        mixer=ShortConv(hidden), tensors=tuple(tensors), state=(StateCache("conv", hidden * kernel, units=hidden),)
    )


def minimax(fields: ConfigFields) -> TextModelSpec:
    """MiniMax-01 and M1: lightning attention with softmax attention every few layers, a mixture in each."""
    size = read_dimensions(fields, {"num_key_value_heads": 8})
    routing = read_routing(fields, intermediate=("intermediate_size",))
    ff = moe(size.hidden, routing)

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

"""Draft models of speculative decoding. They borrow the target's embeddings (and often its head)."""

from __future__ import annotations

from dataclasses import replace

from brim.model.blocks import HeadNorm, layer, linear, mlp, norms
from brim.model.families.common import (
    FULL,
    SLIDING,
    Dimensions,
    TextModelSpec,
    layer_kinds,
    read_dimensions,
    read_window,
)
from brim.model.families.dense import PRE_NORMS, by_kind, plain_attention
from brim.model.fields import ConfigFields
from brim.records.model import LayerSpec, Tensor


def eagle3(fields: ConfigFields) -> TextModelSpec:
    """EAGLE-3 (and P-EAGLE): three hidden states of the target are fused; the first layer reads twice the width;
    the head covers a reduced vocabulary."""
    fields = nested_layers(fields)
    size = read_dimensions(fields)
    target = fields.integer("target_hidden_size", default=size.hidden)
    head = fields.integer("draft_vocab_size", default=size.vocab)
    ff = mlp(size.hidden, fields.integer("intermediate_size"))
    first = _wide_first_layer(size, plain_attention(size).tensors)
    later = layer(plain_attention(size), ff, norms=norms(size.hidden, *PRE_NORMS))
    opening = LayerSpec(
        mixer=later.mixer,
        feed_forward=later.feed_forward,
        tensors=first + ff.tensors + tuple(norms(size.hidden, *PRE_NORMS, "hidden_norm")),
        kv=later.kv,
    )
    tensors = (
        *linear("fc", size.hidden, 3 * target),
        *norms(size.hidden, "norm"),
        Tensor("lm_head", (head, size.hidden), 0, linear=True),
    )
    layers = (opening, *(later,) * (size.layers - 1))
    return TextModelSpec(size.hidden, head, size.max_positions, layers, tensors, draft_only=True, warnings=(_BORROWS,))


def _wide_first_layer(size: Dimensions, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The first layer's projections read the embedding and the fused state side by side."""
    reads = ("q_proj", "k_proj", "v_proj")
    return tuple(
        replace(tensor, shape=(tensor.shape[0], 2 * size.hidden)) if tensor.name.endswith(reads) else tensor
        for tensor in tensors
    )


def dflash(fields: ConfigFields) -> TextModelSpec:
    """DFlash and DSpark: Qwen3 layers over fused hidden states of the target, which lends embeddings and head."""
    fields = nested_layers(fields)
    size = read_dimensions(fields, {"head_dim": 128})
    own = fields.child("dflash_config") if "dflash_config" in fields else fields
    sources = max(1, len(own.integers(own.first(("target_layer_ids", "aux_hidden_state_layer_ids")))))
    tensors = [*linear("fc", size.hidden, sources * size.hidden), *norms(size.hidden, "hidden_norm", "norm")]
    if "draft_vocab_size" in fields:  # a head of its own, for the words it drafts
        tensors.append(Tensor("lm_head", (fields.integer("draft_vocab_size"), size.hidden), 0, linear=True))
    rank = own.optional_integer("markov_rank")
    if rank:
        tensors += [Tensor("markov.embed", (size.vocab, rank)), Tensor("markov.head", (size.vocab, rank))]
    return TextModelSpec(
        size.hidden,
        size.vocab,
        size.max_positions,
        _dflash_layers(fields, size),
        tuple(tensors),
        draft_only=True,
        warnings=(_BORROWS,),
    )


def _dflash_layers(fields: ConfigFields, size: Dimensions) -> tuple[LayerSpec, ...]:
    bias, window = fields.boolean("attention_bias", False), read_window(fields)
    feed_forward = mlp(size.hidden, fields.integer("intermediate_size"))

    def make(kind: str) -> LayerSpec:
        own = window if kind == SLIDING else None
        mixer = plain_attention(size, qkv_bias=bias, out_bias=bias, head_norm=HeadNorm.PER_HEAD, window=own)
        return layer(mixer, feed_forward, norms=norms(size.hidden, *PRE_NORMS))

    return by_kind(layer_kinds(fields, size.layers) or (FULL,) * size.layers, make)


def domino(fields: ConfigFields) -> TextModelSpec:
    """Domino: DFlash with a small recurrent network on top, whose code is not public."""
    model = dflash(fields)
    return replace(model, warnings=(*model.warnings, "Domino's recurrent projector is not counted"))


def nested_layers(fields: ConfigFields) -> ConfigFields:
    """The fields of a draft's layers, which speculators keep in a dict of their own, beside those of the draft."""
    inner = fields.stated("transformer_layer_config")
    if not isinstance(inner, dict):
        return fields
    own = {name: fields.stated(name) for name in fields if name not in inner and name != "transformer_layer_config"}
    return fields.child("transformer_layer_config").merged(**own)


_BORROWS = "a draft model: its embeddings are the target's and are not counted again"

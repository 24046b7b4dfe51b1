"""Draft models of speculative decoding. They borrow the target's embeddings (and often its head)."""

from __future__ import annotations

from dataclasses import replace

from brim.model.blocks import HeadNorm, layer, linear, mlp, norms
from brim.model.families.common import Dimensions, TextModel, read_dimensions
from brim.model.families.dense import PRE_NORMS, plain_attention
from brim.model.fields import Fields
from brim.records.model import LayerSpec, Tensor


def eagle3(fields: Fields) -> TextModel:
    """EAGLE-3 (and P-EAGLE): three hidden states of the target are fused; the first layer reads twice the width;
    the head covers a reduced vocabulary."""
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
    return TextModel(size.hidden, head, size.max_positions, layers, tensors, draft_only=True, warnings=(_BORROWS,))


def _wide_first_layer(size: Dimensions, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The first layer's projections read the embedding and the fused state side by side."""
    reads = ("q_proj", "k_proj", "v_proj")
    return tuple(
        replace(tensor, shape=(tensor.shape[0], 2 * size.hidden)) if tensor.name.endswith(reads) else tensor
        for tensor in tensors
    )


def dflash(fields: Fields) -> TextModel:
    """DFlash and DSpark: Qwen3 layers over fused hidden states of the target, which lends embeddings and head."""
    size = read_dimensions(fields, {"head_dim": 128})
    bias = fields.boolean("attention_bias", False)
    own = fields.child("dflash_config")
    sources = max(1, len(own.integers("target_layer_ids")))
    one = layer(
        plain_attention(size, qkv_bias=bias, out_bias=bias, head_norm=HeadNorm.PER_HEAD),
        mlp(size.hidden, fields.integer("intermediate_size")),
        norms=norms(size.hidden, *PRE_NORMS),
    )
    tensors = [*linear("fc", size.hidden, sources * size.hidden), *norms(size.hidden, "hidden_norm", "norm")]
    rank = own.optional_integer("markov_rank")
    if rank:
        tensors += [Tensor("markov.embed", (size.vocab, rank)), Tensor("markov.head", (size.vocab, rank))]
    return TextModel(
        size.hidden,
        size.vocab,
        size.max_positions,
        (one,) * size.layers,
        tuple(tensors),
        draft_only=True,
        warnings=(_BORROWS,),
    )


_BORROWS = "a draft model: its embeddings are the target's and are not counted again"

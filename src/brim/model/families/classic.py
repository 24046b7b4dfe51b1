"""Decoders before and beside the Llama line: GPT-2, GPT-J, NeoX, OPT, Falcon, StableLM, Cohere, EXAONE 3, InternLM 2.

They differ in what they call their fields, in biases and in norms; all keep plain keys and values.
"""

from __future__ import annotations

from dataclasses import replace

from brim.errors import UnsupportedModel
from brim.model.blocks import Block, attention, layer, linear, mlp, norms, vector
from brim.model.families import dense
from brim.model.families.common import HEADS, Dimensions, TextModelSpec, outer_tensors, read_dimensions
from brim.model.families.dense import PRE_NORMS, decoder, llama, plain_attention, uniform
from brim.model.fields import LARGEST_CONTEXT, ConfigFields
from brim.records.model import LayerSpec, Tensor

_SPELLINGS = {
    "hidden_size": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"),
}


def usual_names(fields: ConfigFields) -> ConfigFields:
    """The fields under the names that later families have for them."""
    found = {name: fields.raw(fields.first(spellings)) for name, spellings in _SPELLINGS.items()}
    return fields.merged(**{name: value for name, value in found.items() if value is not None})


def internlm2(fields: ConfigFields) -> TextModelSpec:
    """A Llama whose `bias` is that of its attention."""
    return llama(fields.behind(attention_bias=fields.boolean("bias", False)))


def exaone(fields: ConfigFields) -> TextModelSpec:
    """EXAONE 3 and 3.5: a Llama in the spelling of GPT."""
    return llama(usual_names(fields))


def cohere(fields: ConfigFields) -> TextModelSpec:
    """Command R and Aya: attention and MLP side by side behind one norm; queries and keys normalised head by head."""
    size = read_dimensions(fields, tied=True)
    bias = fields.boolean("attention_bias", False)
    mixer = plain_attention(size, qkv_bias=bias, out_bias=bias, fp32_rope_copies=6)
    if fields.boolean("use_qk_norm", False):
        mixer = with_norms_by_head(mixer, size)
    return uniform(size, mixer, mlp(size.hidden, fields.integer("intermediate_size")), ("input_layernorm",))


def with_norms_by_head(mixer: Block, size: Dimensions) -> Block:
    """Attention with a norm of its own for every head."""
    extra = (
        Tensor("self_attn.q_norm", (size.heads, size.head_dim), size.heads),
        Tensor("self_attn.k_norm", (size.kv_heads, size.head_dim), size.kv_heads),
    )
    return replace(mixer, tensors=mixer.tensors + extra)


def stablelm(fields: ConfigFields) -> TextModelSpec:
    size = read_dimensions(fields)
    mixer = plain_attention(size, qkv_bias=fields.boolean("use_qkv_bias", False))
    if fields.boolean("qk_layernorm", False):
        mixer = with_norms_by_head(mixer, size)
    names = PRE_NORMS[:1] if fields.boolean("use_parallel_residual", False) else PRE_NORMS
    return uniform(size, mixer, mlp(size.hidden, fields.integer("intermediate_size")), names, norm_bias=True)


def phi(fields: ConfigFields) -> TextModelSpec:
    """Phi 1 and 2, also as first published: in the spelling of GPT, with an MLP of four times the width."""
    usual = usual_names(fields)
    if "n_embd" in fields and "intermediate_size" not in usual:
        usual = usual.merged(intermediate_size=4 * usual.integer("hidden_size"))
    return dense.phi(usual)


def gpt2(fields: ConfigFields) -> TextModelSpec:
    """GPT-2: learned positions, biases everywhere, tied head."""
    return _learned_positions(usual_names(fields), "attn", ("", "c_fc", "c_proj"))


def _learned_positions(fields: ConfigFields, prefix: str, names: tuple[str, str, str]) -> TextModelSpec:
    size = read_dimensions(fields, tied=True)
    width = fields.integer("intermediate_size", default=4 * size.hidden)
    one = layer(
        attention(size.hidden, size.heads, size.kv_heads, size.head_dim, prefix=prefix, qkv_bias=True, out_bias=True),
        mlp(size.hidden, width, gated=False, bias=True, names=names),
        norms=norms(size.hidden, "ln_1", "ln_2", bias=True),
    )
    if fields.boolean("add_cross_attention", False):
        raise UnsupportedModel(f"config field '{fields.where('add_cross_attention')}': such a model is not supported")
    model = decoder(size, (one,) * size.layers, norm_bias=True)
    positions = Tensor("transformer.wpe", (size.max_positions, size.hidden))
    return replace(model, tensors=(*model.tensors, positions), held_hidden=2)


def gptj(fields: ConfigFields) -> TextModelSpec:
    """GPT-J and CodeGen: attention without biases beside an MLP with them; the head has one too."""
    usual = usual_names(fields)
    size = read_dimensions(usual)
    width = usual.integer("intermediate_size", default=4 * size.hidden)
    one = layer(
        plain_attention(size),
        mlp(size.hidden, width, gated=False, bias=True, names=("", "fc_in", "fc_out")),
        norms=norms(size.hidden, "ln_1", bias=True),
    )
    model = decoder(size, (one,) * size.layers, norm_bias=True)
    return replace(model, tensors=(*model.tensors, Tensor("lm_head.bias", (size.vocab,), 0)))


def gpt_neox(fields: ConfigFields) -> TextModelSpec:
    size = read_dimensions(fields)
    bias = fields.boolean("attention_bias", True)
    names = ("", "dense_h_to_4h", "dense_4h_to_h")
    return uniform(
        size,
        plain_attention(size, qkv_bias=bias, out_bias=bias),
        mlp(size.hidden, fields.integer("intermediate_size"), gated=False, bias=True, names=names),
        norm_bias=True,
    )


def opt(fields: ConfigFields) -> TextModelSpec:
    """OPT: learned positions, two of them unused; the 350M has narrower embeddings with projections around them."""
    size = read_dimensions(fields, tied=True)
    bias = fields.boolean("enable_bias", True)
    affine = fields.boolean("layer_norm_elementwise_affine", True)
    one = layer(
        plain_attention(size, qkv_bias=bias, out_bias=bias),
        mlp(size.hidden, fields.integer("ffn_dim"), gated=False, bias=bias, names=("", "fc1", "fc2")),
        norms=norms(size.hidden, "self_attn_layer_norm", "final_layer_norm", bias=True) if affine else (),
    )
    narrow = fields.integer("word_embed_proj_dim", default=size.hidden)
    tensors = [
        Tensor("model.decoder.embed_tokens", (size.vocab, narrow), 0),
        Tensor("model.decoder.embed_positions", (size.max_positions + 2, size.hidden)),
    ]
    if narrow != size.hidden:
        tensors += linear("model.decoder.project_in", size.hidden, narrow)
        tensors += linear("model.decoder.project_out", narrow, size.hidden)
    ends_normed = fields.boolean("do_layer_norm_before", True) and not fields.boolean("_remove_final_layer_norm", False)
    if affine and ends_normed:
        tensors += vector("model.decoder.final_layer_norm", size.hidden, bias=True)
    if not size.tied:
        tensors.append(Tensor("lm_head", (size.vocab, narrow), 0, linear=True))
    return TextModelSpec(
        size.hidden, size.vocab, size.max_positions, (one,) * size.layers, tuple(tensors), held_hidden=2
    )


def falcon(fields: ConfigFields) -> TextModelSpec:
    """Falcon: one key-value head, a few (the new architecture), or as many as there are queries."""
    usual = usual_names(fields)
    hidden, heads = usual.integer("hidden_size"), usual.integer("num_attention_heads")
    new = usual.boolean("new_decoder_architecture", False)
    if not new:
        usual = usual.merged(num_key_value_heads=1 if usual.boolean("multi_query", True) else heads)
    size = read_dimensions(usual, {"max_position_embeddings": 2048}, tied=True)
    bias = usual.boolean("bias", False)
    width = usual.integer("intermediate_size", default=4 * hidden)
    parallel = usual.boolean("parallel_attn", True)
    if new:
        two = usual.integer("num_ln_in_parallel_attn", default=2) == 2
        names: tuple[str, ...] = ("ln_attn", "ln_mlp") if parallel and two else ("input_layernorm",)
    else:
        names = ("input_layernorm",)
    names = names if parallel else (*names, "post_attention_layernorm")
    one = layer(
        plain_attention(size, qkv_bias=bias, out_bias=bias),
        mlp(hidden, width, gated=False, bias=bias, names=("", "dense_h_to_4h", "dense_4h_to_h")),
        norms=norms(hidden, *names, bias=True),
    )
    return decoder(size, (one,) * size.layers, norm_bias=True)


def bloom(fields: ConfigFields) -> TextModelSpec:
    """BLOOM: ALiBi instead of positions, a norm behind the embeddings, tied head."""
    usual = usual_names(fields)
    size = read_dimensions(usual, {"max_position_embeddings": 2048}, tied=True)
    names = ("", "dense_h_to_4h", "dense_4h_to_h")
    one = layer(
        plain_attention(size, qkv_bias=True, out_bias=True),
        mlp(size.hidden, 4 * size.hidden, gated=False, bias=True, names=names),
        norms=norms(size.hidden, *PRE_NORMS, bias=True),
    )
    model = decoder(size, (one,) * size.layers, norm_bias=True)
    first = vector("transformer.word_embeddings_layernorm", size.hidden, bias=True)
    return replace(model, tensors=(*model.tensors, *first))


def mpt(fields: ConfigFields) -> TextModelSpec:
    """MPT: ALiBi, no biases, keys and values of their own where `attn_config` groups them; tied head."""
    hidden = fields.integer("d_model")
    heads = fields.divisor("n_heads", of=hidden, what="columns")
    kv_heads = fields.child("attn_config").divisor("kv_n_heads", of=heads, what=HEADS, default=heads)
    width = 4 * hidden if "expansion_ratio" not in fields else hidden * fields.integer("expansion_ratio")
    vocab = fields.integer("vocab_size")
    one = layer(
        attention(hidden, heads, kv_heads, hidden // heads),
        mlp(hidden, width, gated=False, names=("", "up_proj", "down_proj")),
        norms=norms(hidden, "norm_1", "norm_2"),
    )
    positions = fields.integer("max_seq_len", default=2048, maximum=LARGEST_CONTEXT)
    layers: tuple[LayerSpec, ...] = (one,) * fields.layer_count("n_layers")
    return TextModelSpec(hidden, vocab, positions, layers, outer_tensors(hidden, vocab, tied=True))

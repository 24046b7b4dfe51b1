"""Families that `transformers` reads only through remote code, and the ones older than its conventions."""

from __future__ import annotations

from dataclasses import replace

from brim.errors import InvalidConfig, UnsupportedModel
from brim.model.blocks import Block, attention, layer, linear, mlp, norms, vector
from brim.model.families.common import HEADS, TextModelSpec, read_context, read_dimensions
from brim.model.families.dense import PRE_NORMS, decoder, plain_attention
from brim.model.fields import LARGEST_CONTEXT, ConfigFields
from brim.records.model import FeedForward, LayerSpec, Tensor
from brim.units import round_up


def gpt_bigcode(fields: ConfigFields) -> TextModelSpec:
    """GPT-BigCode (granite-20b-code, StarCoder): one key-value head for all, learned positions, tied head."""
    hidden = fields.integer("n_embd", "hidden_size")
    heads = fields.divisor("n_head", "num_attention_heads", of=hidden, what="columns")
    kv_heads = 1 if fields.boolean("multi_query", True) else heads
    positions = fields.integer("n_positions", "max_position_embeddings", default=1024, maximum=LARGEST_CONTEXT)
    vocab = fields.integer("vocab_size")
    mixer = attention(
        hidden,
        heads,
        kv_heads,
        hidden // heads,
        prefix="attn",
        out_name="c_proj",
        qkv_bias=True,
        out_bias=True,
    )
    ff = mlp(
        hidden,
        fields.integer("n_inner", default=4 * hidden),
        gated=False,
        bias=True,
        names=("", "c_fc", "c_proj"),
    )
    one = layer(mixer, ff, norms=norms(hidden, "ln_1", "ln_2", bias=True))
    tied = fields.boolean("tie_word_embeddings", True)
    tensors = [
        Tensor("transformer.wte", (vocab, hidden), 0),
        Tensor("transformer.wpe", (positions, hidden)),
        *vector("transformer.ln_f", hidden, bias=True),
        *([] if tied else [Tensor("lm_head", (vocab, hidden), 0, linear=True)]),
    ]
    layers = (one,) * fields.layer_count("n_layer", "num_hidden_layers")
    return TextModelSpec(
        hidden, vocab, positions, layers, tuple(tensors), held_hidden=2
    )  # token and position embeddings


def qwen1(fields: ConfigFields) -> TextModelSpec:
    """The first Qwen, in both of its spellings: the MLP width counts gate and up together; only the attention input
    has a bias."""
    size = read_dimensions(
        fields.merged(
            hidden_size=fields.raw(fields.first(("hidden_size", "n_embd"))),
            num_attention_heads=fields.raw(fields.first(("num_attention_heads", "n_head"))),
            num_hidden_layers=fields.raw(fields.first(("num_hidden_layers", "n_layer"))),
            vocab_size=fields.raw(fields.first(("padded_vocab_size", "vocab_size"))),
            max_position_embeddings=fields.raw(fields.first(("max_position_embeddings", "n_positions", "seq_length"))),
        )
    )
    one = layer(
        plain_attention(size, qkv_bias=True),
        mlp(size.hidden, fields.integer("intermediate_size", "ffn_hidden_size", minimum=2) // 2),
        norms=norms(size.hidden, "ln_1", "ln_2"),
    )
    return decoder(size, (one,) * size.layers)


def chatglm(fields: ConfigFields) -> TextModelSpec:
    """ChatGLM 2 and 3, and GLM-4-9B in its first format."""
    hidden = fields.integer("hidden_size")
    heads = fields.divisor("num_attention_heads", of=hidden, what="columns")
    grouped = fields.boolean("multi_query_attention", False)
    kv_heads = fields.divisor("multi_query_group_num", of=heads, what=HEADS, default=1) if grouped else heads
    vocab = fields.integer("padded_vocab_size", "vocab_size")
    bias = fields.boolean("add_bias_linear", False)
    one = layer(
        attention(
            hidden,
            heads,
            kv_heads,
            fields.integer("kv_channels", default=hidden // heads),
            qkv_bias=bias or fields.boolean("add_qkv_bias", False),
            out_bias=bias,
        ),
        mlp(hidden, fields.integer("ffn_hidden_size"), fused=True, bias=bias),
        norms=norms(hidden, *PRE_NORMS),
    )
    tensors = (
        Tensor("transformer.embedding", (vocab, hidden), 0),
        Tensor("transformer.output_layer", (vocab, hidden), 0),
        *(norms(hidden, "transformer.final_layernorm") if fields.boolean("post_layer_norm", True) else []),
    )
    layers = (one,) * fields.layer_count("num_layers", "num_hidden_layers")
    return TextModelSpec(hidden, vocab, read_context(fields), layers, tensors)


def baichuan(fields: ConfigFields) -> TextModelSpec:
    """Baichuan 2: queries, keys and values packed in one projection."""
    size = read_dimensions(fields)
    one = layer(
        plain_attention(size),
        mlp(size.hidden, fields.integer("intermediate_size")),
        norms=norms(size.hidden, *PRE_NORMS),
    )
    return decoder(size, (one,) * size.layers)


def nemotron_nas(fields: ConfigFields) -> TextModelSpec:
    """Nemotron from architecture search: every layer says for itself what attention and MLP it has, if any."""
    hidden = fields.integer("hidden_size")
    heads = fields.divisor("num_attention_heads", of=hidden, what="columns")
    layers = fields.layer_count("num_hidden_layers")
    blocks = fields.children("block_configs")
    if len(blocks) < layers:
        raise InvalidConfig(fields.where("block_configs"), f"has {len(blocks)} entries for {layers} layers")
    made: dict[tuple[object, ...], LayerSpec] = {}
    found = []
    for block in blocks[:layers]:
        key = _nas_key(block)
        if key not in made:
            made[key] = _nas_layer(block, hidden, heads)
        found.append(made[key])
    size = read_dimensions(fields.merged(num_key_value_heads=heads))
    return decoder(size, tuple(found))


def _nas_key(block: ConfigFields) -> tuple[object, ...]:
    attends, ff = block.child("attention"), block.child("ffn")
    return tuple(
        repr(part.raw(name))
        for part in (attends, ff)
        for name in (
            "n_heads_in_group",
            "window_length",
            "ffn_mult",
            "intermediate_size",
            "no_op",
            "replace_with_linear",
        )
    )


def _nas_layer(block: ConfigFields, hidden: int, heads: int) -> LayerSpec:
    attends, ff = block.child("attention"), block.child("ffn")
    blocks, names = [], []
    if not attends.boolean("no_op", False):
        names.append("input_layernorm")
        blocks.append(_nas_attention(attends, hidden, heads))
    if not ff.boolean("no_op", False):
        names.append("post_attention_layernorm")
        blocks.append(_nas_feed_forward(ff, hidden))
    return layer(*blocks, norms=norms(hidden, *names))


def _nas_attention(attends: ConfigFields, hidden: int, heads: int) -> Block:
    if attends.boolean("replace_with_linear", False):
        return Block(tensors=tuple(linear("self_attn.linear_attn", hidden, hidden)))
    group = attends.divisor("n_heads_in_group", of=heads, what=HEADS)
    window = attends.optional_integer("window_length", maximum=LARGEST_CONTEXT)
    return attention(hidden, heads, heads // group, hidden // heads, window=window)


def _nas_feed_forward(ff: ConfigFields, hidden: int) -> Block:
    if ff.boolean("replace_with_linear", False):
        return Block(
            feed_forward=FeedForward(hidden, gated=False), tensors=tuple(linear("mlp.linear_mlp", hidden, hidden))
        )
    if "intermediate_size" in ff:
        return mlp(hidden, ff.integer("intermediate_size"))
    width = int(2 * ff.ratio("ffn_mult") * hidden / 3)
    if not 0 < width < 1 << 24:
        raise InvalidConfig(ff.where("ffn_mult"), f"gives an MLP {width} wide")
    return mlp(hidden, round_up(width, 256))


def molmo_text(fields: ConfigFields) -> TextModelSpec:
    """Molmo's language model: `intermediate_size` counts gate and up together, and some tokens are added on top."""
    size = read_dimensions(fields.merged(vocab_size=fields.integer("embedding_size", "vocab_size")))
    if fields.boolean("norm_after", False) or fields.boolean("attention_layer_norm", False):
        raise UnsupportedModel("config field 'norm_after' or 'attention_layer_norm': such a Molmo is not supported yet")
    one = layer(
        plain_attention(size, qkv_bias=fields.boolean("qkv_bias", False)),
        mlp(size.hidden, fields.integer("intermediate_size", minimum=2) // 2, fused=True),
        norms=norms(size.hidden, "attn_norm", "ff_norm"),
    )
    tied = fields.boolean("weight_tying", False)
    model = decoder(replace(size, tied=tied), (one,) * size.layers)
    return replace(model, tensors=(*model.tensors, Tensor("model.wte.new_embedding", (128, size.hidden), 0)))

"""Families on multi-head latent attention: DeepSeek V2 to V3.2, Kimi K2, MiniCPM3, GLM 5; and DeepSeek V4."""

from __future__ import annotations

from dataclasses import replace

from brim.model.blocks import Block, Routing, latent_attention, layer, linear, mlp, moe, norms, vector
from brim.model.families.common import HEADS, TextModelSpec, known_kind, outer_tensors, read_context
from brim.model.families.dense import PRE_NORMS, by_kind
from brim.model.families.experts import first_dense, read_routing
from brim.model.fields import ConfigFields
from brim.records.model import Attention, KvCache, LayerSpec, Tensor


def deepseek_v2(fields: ConfigFields) -> TextModelSpec:
    return _deepseek(fields, q_rank=1536, shared=2, first=0, routed_fp32=True)


def deepseek_v3(fields: ConfigFields) -> TextModelSpec:
    return _deepseek(fields, q_rank=1536, shared=1, first=3, routed_fp32=True)


def deepseek_v32(fields: ConfigFields) -> TextModelSpec:
    return _deepseek(fields, q_rank=1536, shared=1, first=3, routed_fp32=True, index_heads=64)


def glm_moe_dsa(fields: ConfigFields) -> TextModelSpec:
    return _deepseek(fields, q_rank=2048, shared=1, first=3, routed_fp32=True, index_heads=32)


def read_latent(fields: ConfigFields, q_rank: int | None, **extra: int | bool) -> Block:
    """The attention of a config that names its ranks. A null `q_lora_rank` means a plain query projection."""
    rank = None if fields.is_null("q_lora_rank") else fields.optional_integer("q_lora_rank") or q_rank
    return latent_attention(
        fields.integer("hidden_size"),
        fields.integer("num_attention_heads"),
        rank,
        fields.integer("kv_lora_rank", default=512),
        fields.integer("qk_nope_head_dim", default=128),
        fields.integer("qk_rope_head_dim", default=64),
        fields.integer("v_head_dim", default=128),
        bias=fields.boolean("attention_bias", False),
        **extra,  # type: ignore[arg-type]
    )


def _deepseek(
    fields: ConfigFields, *, q_rank: int, shared: int, first: int, routed_fp32: bool, index_heads: int = 0
) -> TextModelSpec:
    hidden = fields.integer("hidden_size")
    layers = fields.layer_count("num_hidden_layers")
    all_dense = fields.is_null("n_routed_experts")
    sparse = (False,) * layers if all_dense else first_dense(fields, layers, default=first)
    indexed = (
        tuple(kind == "full" for kind in fields.per_layer("indexer_types", layers))
        if "indexer_types" in fields
        else (True,) * layers
    )

    def make(kind: str) -> LayerSpec:
        index = {}
        if index_heads:
            index = {
                "index_heads": fields.integer("index_n_heads", default=index_heads),
                "index_dim": fields.integer("index_head_dim", default=128),
                "has_indexer": "i" in kind,
            }
        mixer = read_latent(fields, q_rank, **index)
        ff = _experts(fields, hidden, shared, routed_fp32) if "x" in kind else _dense(fields, hidden)
        return layer(mixer, ff, norms=norms(hidden, *PRE_NORMS))

    kinds = tuple(("x" if x else "d") + ("i" if i else "-") for x, i in zip(sparse, indexed, strict=True))
    return _latent_model(fields, hidden, by_kind(kinds, make))


def _dense(fields: ConfigFields, hidden: int) -> Block:
    return mlp(hidden, fields.integer("intermediate_size"), bias=fields.boolean("mlp_bias", False))


def _experts(fields: ConfigFields, hidden: int, shared: int, routed_fp32: bool) -> Block:
    routing = read_routing(fields, experts=("n_routed_experts",))
    return moe(
        hidden,
        routing,
        shared_intermediate=routing.intermediate * fields.integer("n_shared_experts", default=shared, minimum=0),
        routed_fp32=routed_fp32,
    )


def _latent_model(
    fields: ConfigFields, hidden: int, layers: tuple[LayerSpec, ...], *, tied: bool = False
) -> TextModelSpec:
    vocab = fields.integer("vocab_size")
    return TextModelSpec(
        hidden=hidden,
        vocab=vocab,
        max_positions=read_context(fields),
        layers=layers,
        tensors=outer_tensors(hidden, vocab, fields.boolean("tie_word_embeddings", tied)),
    )


def minicpm3(fields: ConfigFields) -> TextModelSpec:
    hidden = fields.integer("hidden_size")
    heads = fields.divisor("num_attention_heads", of=hidden, what="columns")
    one = layer(
        latent_attention(
            hidden,
            heads,
            fields.integer("q_lora_rank", default=768),
            fields.integer("kv_lora_rank", default=256),
            fields.integer("qk_nope_head_dim", default=64),
            fields.integer("qk_rope_head_dim", default=32),
            fields.integer("v_head_dim", default=hidden // heads),
            bias=fields.boolean("attention_bias", False),
        ),
        _dense(fields, hidden),
        norms=norms(hidden, *PRE_NORMS),
    )
    return _latent_model(fields, hidden, (one,) * fields.layer_count("num_hidden_layers"), tied=True)


def deepseek_v4(fields: ConfigFields) -> TextModelSpec:
    """DeepSeek V4: one shared key-value head, a short window of raw entries and compressed ones behind it, several
    copies of the residual stream mixed by small matrices (hyper-connections)."""
    hidden = fields.integer("hidden_size")
    layers = fields.layer_count("num_hidden_layers")
    copies = fields.integer("hc_mult", default=4)
    routing = read_routing(fields, experts=("n_routed_experts",))
    made = by_kind(_v4_kinds(fields, layers), lambda kind: _v4_layer(fields, hidden, copies, routing, kind))
    model = _latent_model(fields, hidden, made)
    head = (
        Tensor("model.hc_head.hc_fn", (copies, copies * hidden)),
        *vector("model.hc_head.hc_base", copies),
        *vector("model.hc_head.hc_scale", 1),
    )
    return replace(model, tensors=model.tensors + head, wide_residual=copies)


def _v4_kinds(fields: ConfigFields, layers: int) -> tuple[str, ...]:
    """Per layer "fine/4" or "coarse/128": what kind of compression, and how many tokens an entry stands for.

    A ratio of 0 is a layer with only the window. In a list of bare ratios, the fine ones are those of one digit.
    """
    if "compress_ratios" in fields:
        ratios = fields.per_layer("compress_ratios", layers) and fields.integers("compress_ratios")[:layers]
        return tuple(f"{'fine' if ratio < 10 else 'coarse'}/{ratio}" for ratio in ratios)
    rates = fields.child("compress_rates")
    by_name = {
        "sliding_attention": "fine/0",
        "compressed_sparse_attention": f"fine/{rates.integer('compressed_sparse_attention', default=4)}",
        "heavily_compressed_attention": f"coarse/{rates.integer('heavily_compressed_attention', default=128)}",
    }
    kinds = fields.per_layer("layer_types", layers)
    return tuple(known_kind(fields, "layer_types", kind, by_name) for kind in kinds)


def _v4_layer(fields: ConfigFields, hidden: int, copies: int, routing: Routing, kind: str) -> LayerSpec:
    heads, head_dim = fields.integer("num_attention_heads"), fields.integer("head_dim", default=512)
    q_rank = fields.integer("q_lora_rank", default=1024)
    groups = fields.divisor("o_groups", of=heads, what=HEADS, default=8)
    out_rank = fields.integer("o_lora_rank", default=1024)
    prefix = "self_attn"
    tensors = [
        Tensor(f"{prefix}.sinks", (heads,), heads),
        *linear(f"{prefix}.q_a_proj", q_rank, hidden),
        *vector(f"{prefix}.q_a_norm", q_rank),
        *linear(f"{prefix}.q_b_proj", heads * head_dim, q_rank, heads),
        *linear(f"{prefix}.kv_proj", head_dim, hidden),
        *vector(f"{prefix}.kv_norm", head_dim),
        *linear(f"{prefix}.o_a_proj", groups * out_rank, heads * head_dim // groups, groups),
        *linear(f"{prefix}.o_b_proj", hidden, groups * out_rank, groups),
    ]
    caches = [
        KvCache("sliding", heads=1, elements_per_head=head_dim, window=fields.integer("sliding_window", default=128))
    ]
    fine, ratio = kind.startswith("fine"), int(kind.split("/")[1])
    index_heads = 0
    if ratio:
        # A fine layer keeps overlapping halves and scores its entries with an indexer; a coarse one does not.
        index_heads = fields.integer("index_n_heads", default=64) if fine else 0
        tensors += _v4_compressor(f"{prefix}.compressor", hidden, head_dim, ratio, overlapping=fine)
        caches.append(KvCache("compressed", heads=1, elements_per_head=head_dim, stride=ratio))
        if fine:
            index_dim = fields.integer("index_head_dim", default=128)
            name = f"{prefix}.compressor.indexer"
            tensors += _v4_compressor(name, hidden, index_dim, ratio, overlapping=True)
            tensors += linear(f"{name}.q_b_proj", index_heads * index_dim, q_rank)
            tensors += linear(f"{name}.scorer.weights_proj", index_heads, hidden)
            caches.append(KvCache("index", heads=1, elements_per_head=index_dim, stride=ratio))
    for name in ("attn_hc", "ffn_hc"):
        tensors.append(Tensor(f"{name}.fn", ((2 + copies) * copies, copies * hidden)))
        tensors += vector(f"{name}.base", (2 + copies) * copies) + vector(f"{name}.scale", 3)
    mixer = Block(
        mixer=Attention(heads, 1, head_dim, head_dim, normed_heads=True, sinks=True, index_heads=index_heads),
        tensors=tuple(tensors),
        kv=tuple(caches),
    )
    ff = moe(
        hidden,
        routing,
        shared_intermediate=routing.intermediate * fields.integer("n_shared_experts", default=1, minimum=0),
        routed_fp32=True,
        clamped=True,
    )
    return layer(mixer, ff, norms=norms(hidden, *PRE_NORMS))


def _v4_compressor(name: str, hidden: int, dim: int, ratio: int, *, overlapping: bool) -> list[Tensor]:
    width = dim * (2 if overlapping else 1)
    return [
        Tensor(f"{name}.position_bias", (ratio, width)),
        *linear(f"{name}.kv_proj", width, hidden),
        *linear(f"{name}.gate_proj", width, hidden),
        *vector(f"{name}.kv_norm", dim),
    ]

"""Mixture-of-experts decoders with plain attention."""

from __future__ import annotations

from collections.abc import Callable

from brim.errors import InvalidConfig, UnsupportedModel
from brim.model.blocks import Block, HeadNorm, Routing, layer, mlp, moe, norms
from brim.model.families.classic import usual_names
from brim.model.families.common import (
    Dimensions,
    TextModelSpec,
    read_dimensions,
    read_window,
)
from brim.model.families.dense import PRE_NORMS, by_kind, decoder, llama, plain_attention, qwen_windows
from brim.model.fields import LARGEST_EXPERT_COUNT, ConfigFields
from brim.records.model import LayerSpec


def read_routing(
    fields: ConfigFields,
    experts: tuple[str, ...] = ("num_experts", "num_local_experts", "n_routed_experts"),
    top_k: tuple[str, ...] = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_k"),
    intermediate: tuple[str, ...] = ("moe_intermediate_size",),
) -> Routing:
    routing = Routing(
        experts=fields.integer(*experts, maximum=LARGEST_EXPERT_COUNT),
        top_k=fields.integer(*top_k, maximum=LARGEST_EXPERT_COUNT),
        intermediate=fields.integer(*intermediate),
    )
    if routing.top_k > routing.experts:
        raise InvalidConfig(
            fields.where(fields.first(top_k)), f"is {routing.top_k}, more than the {routing.experts} experts there are"
        )
    return routing


def is_sparse(fields: ConfigFields, layers: int) -> tuple[bool, ...]:
    """Qwen's rule for which layers are mixtures: every `decoder_sparse_step`-th, but for `mlp_only_layers`."""
    step = fields.integer("decoder_sparse_step", default=1)
    dense = set(fields.integers("mlp_only_layers"))
    return tuple(index not in dense and (index + 1) % step == 0 for index in range(layers))


def first_dense(fields: ConfigFields, layers: int, default: int = 0) -> tuple[bool, ...]:
    """DeepSeek's rule: the first layers are dense, then every `moe_layer_freq`-th is a mixture."""
    if "mlp_layer_types" in fields:
        return tuple(kind != "dense" for kind in fields.per_layer("mlp_layer_types", layers))
    dense = fields.integer("first_k_dense_replace", default=default, minimum=0)
    if isinstance(fields.raw("moe_layer_freq"), list):
        return tuple(bool(flag) for flag in fields.per_layer("moe_layer_freq", layers))
    frequency = fields.integer("moe_layer_freq", default=1)
    return tuple(index >= dense and index % frequency == 0 for index in range(layers))


def mixed_layers(
    size: Dimensions, sparse: tuple[bool, ...], mixer: Block, dense: Callable[[], Block], experts: Block
) -> tuple[LayerSpec, ...]:
    """Layers that share their attention and differ in being a mixture or not."""

    def make(kind: str) -> LayerSpec:
        ff = experts if kind == "sparse" else dense()
        return layer(mixer, ff, norms=norms(size.hidden, *PRE_NORMS))

    return by_kind(tuple("sparse" if flag else "dense" for flag in sparse), make)


def mixtral(fields: ConfigFields) -> TextModelSpec:
    return _every_layer_mixture(fields, {"num_key_value_heads": 8, "max_position_embeddings": 131072})


def _every_layer_mixture(
    fields: ConfigFields,
    defaults: dict[str, int],
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    head_norm: HeadNorm = HeadNorm.NONE,
    norm_bias: bool = False,
    routed_fp32: bool = False,
) -> TextModelSpec:
    size = read_dimensions(fields, defaults)
    routing = read_routing(fields, intermediate=("intermediate_size",))
    one = layer(
        plain_attention(size, qkv_bias=qkv_bias, out_bias=out_bias, head_norm=head_norm, window=read_window(fields)),
        moe(size.hidden, routing, routed_fp32=routed_fp32),
        norms=norms(size.hidden, *PRE_NORMS, bias=norm_bias),
    )
    return decoder(size, (one,) * size.layers, norm_bias=norm_bias)


def phimoe(fields: ConfigFields) -> TextModelSpec:
    bias = fields.boolean("attention_bias", False)
    return _every_layer_mixture(fields, {"num_key_value_heads": 8}, qkv_bias=bias, out_bias=bias, norm_bias=True)


def olmoe(fields: ConfigFields) -> TextModelSpec:
    return _every_layer_mixture(fields, {}, head_norm=HeadNorm.FULL)


def minimax_m2(fields: ConfigFields) -> TextModelSpec:
    return _every_layer_mixture(
        fields, {"num_key_value_heads": 8, "head_dim": 128}, head_norm=HeadNorm.FULL, routed_fp32=True
    )


def qwen2_moe(fields: ConfigFields) -> TextModelSpec:
    size = read_dimensions(fields)
    _, window = qwen_windows(fields, size.layers)
    routing = read_routing(fields)
    experts = moe(
        size.hidden,
        routing,
        shared="shared_expert",
        shared_intermediate=fields.integer("shared_expert_intermediate_size", default=5632, minimum=0),
        shared_gate=True,
    )
    mixer = plain_attention(size, qkv_bias=fields.boolean("qkv_bias", True), window=window)
    layers = mixed_layers(
        size,
        is_sparse(fields, size.layers),
        mixer,
        lambda: mlp(size.hidden, fields.integer("intermediate_size")),
        experts,
    )
    return decoder(size, layers)


def qwen3_moe(fields: ConfigFields) -> TextModelSpec:
    return _qwen3_moe(fields, {"num_key_value_heads": 4})


def qwen3_vl_moe(fields: ConfigFields) -> TextModelSpec:
    """Qwen3-VL's language model: a Qwen3 mixture whose class has other defaults."""
    return _qwen3_moe(fields, {"num_key_value_heads": 16})


def _qwen3_moe(fields: ConfigFields, defaults: dict[str, int]) -> TextModelSpec:
    size = read_dimensions(fields, defaults, narrower=True)
    _, window = qwen_windows(fields, size.layers)
    bias = fields.boolean("attention_bias", False)
    routing = read_routing(fields)
    layers = mixed_layers(
        size,
        is_sparse(fields, size.layers),
        plain_attention(size, qkv_bias=bias, out_bias=bias, head_norm=HeadNorm.PER_HEAD, window=window),
        lambda: mlp(size.hidden, fields.integer("intermediate_size")),
        moe(size.hidden, routing),
    )
    return decoder(size, layers)


def glm4_moe(fields: ConfigFields) -> TextModelSpec:
    size = read_dimensions(fields, {"num_key_value_heads": 8}, narrower=True)
    routing = read_routing(fields)
    head_norm = HeadNorm.PER_HEAD if fields.boolean("use_qk_norm", False) else HeadNorm.NONE
    layers = mixed_layers(
        size,
        first_dense(fields, size.layers, default=1),
        plain_attention(size, qkv_bias=fields.boolean("attention_bias", False), head_norm=head_norm),
        lambda: mlp(size.hidden, fields.integer("intermediate_size")),
        moe(
            size.hidden,
            routing,
            shared_intermediate=routing.intermediate * fields.integer("n_shared_experts", default=1, minimum=0),
            routed_fp32=True,
        ),
    )
    return decoder(size, layers)


def glm4v_moe_text(fields: ConfigFields) -> TextModelSpec:
    """GLM-4.5V's language model: GLM-4.5 with biased queries, and no head norm to choose."""
    return glm4_moe(fields.behind(attention_bias=True))


def ernie4_5_moe(fields: ConfigFields) -> TextModelSpec:
    size = read_dimensions(fields, {"num_key_value_heads": 4}, tied=True)
    routing = read_routing(fields, experts=("moe_num_experts",), top_k=("moe_k",))
    start = fields.integer("moe_layer_start_index", default=1, minimum=0)
    end = fields.integer("moe_layer_end_index", default=size.layers - 1, minimum=-1)
    end = size.layers - 1 if end < 0 else end
    interval = fields.integer("moe_layer_interval", default=1)
    bias = fields.boolean("use_bias", False)
    layers = mixed_layers(
        size,
        tuple((index + 1) % interval == 0 and start <= index <= end for index in range(size.layers)),
        plain_attention(size, qkv_bias=bias, out_bias=bias),
        lambda: mlp(size.hidden, fields.integer("intermediate_size"), bias=bias),
        moe(
            size.hidden,
            routing,
            shared_intermediate=routing.intermediate * fields.integer("moe_num_shared_experts", default=2, minimum=0),
        ),
    )
    return decoder(size, layers)


def granitemoe(fields: ConfigFields) -> TextModelSpec:
    size = read_dimensions(fields)
    bias = fields.boolean("attention_bias", False)
    routing = read_routing(fields, intermediate=("intermediate_size",))
    one = layer(
        plain_attention(size, qkv_bias=bias, out_bias=bias),
        moe(
            size.hidden,
            routing,
            prefix="block_sparse_moe",
            router="router.layer",
            shared_intermediate=fields.integer("shared_intermediate_size", default=0, minimum=0),
            shared_fused=True,
        ),
        norms=norms(size.hidden, *PRE_NORMS),
    )
    return decoder(size, (one,) * size.layers)


def minicpm(fields: ConfigFields) -> TextModelSpec:
    """MiniCPM 1: a Llama, and a mixture of such MLPs where the config counts experts (MiniCPM-MoE)."""
    if not fields.integer("num_experts", default=0, minimum=0):
        return llama(fields)
    return _every_layer_mixture(fields, {})


def dbrx(fields: ConfigFields) -> TextModelSpec:
    """DBRX: everything about attention and experts in a dict of its own."""
    attends, ff = fields.child("attn_config"), fields.child("ffn_config")
    size = read_dimensions(usual_names(fields).merged(num_key_value_heads=attends.integer("kv_n_heads", default=1)))
    routing = read_routing(ff, experts=("moe_num_experts",), top_k=("moe_top_k",), intermediate=("ffn_hidden_size",))
    one = layer(
        plain_attention(size),
        moe(size.hidden, routing, router="router.layer"),
        norms=norms(size.hidden, "norm_1", "norm_2"),
    )
    return decoder(size, (one,) * size.layers)


def hunyuan_moe(fields: ConfigFields) -> TextModelSpec:
    """Hunyuan's mixtures: lists with an entry for every layer where others have a number; a shared expert beside."""
    if fields.boolean("use_mla", False) or fields.boolean("use_cla", False):
        name = "use_mla" if fields.boolean("use_mla", False) else "use_cla"
        raise UnsupportedModel(f"config field '{fields.where(name)}': such a Hunyuan is not supported")
    size = read_dimensions(fields.merged(head_dim=fields.raw(fields.first(("head_dim", "attention_head_dim")))))
    bias = fields.boolean("attention_bias", False)
    head_norm = HeadNorm.PER_HEAD if fields.boolean("use_qk_norm", True) else HeadNorm.NONE
    mixer = plain_attention(size, qkv_bias=bias, out_bias=bias, head_norm=head_norm)
    wide = fields.raw("moe_intermediate_size") is not None
    skipped = fields.integer("moe_layer_num_skipped", default=0, minimum=0)

    def make(kind: str) -> LayerSpec:
        if kind == "dense":
            ff = mlp(size.hidden, fields.integer("intermediate_size"), bias=fields.boolean("mlp_bias", False))
            return layer(mixer, ff, norms=norms(size.hidden, *PRE_NORMS))
        index = int(kind)
        own = fields.merged(
            num_experts=_of_layer(fields, "num_experts", index),
            moe_topk=_of_layer(fields, "moe_topk", index),
            num_shared_expert=_of_layer(fields, "num_shared_expert", index),
            expert_width=_of_layer(fields, "moe_intermediate_size" if wide else "intermediate_size", index),
        )
        routing = read_routing(own, experts=("num_experts",), top_k=("moe_topk",), intermediate=("expert_width",))
        mixes = fields.boolean("use_mixed_mlp_moe", True)
        shared = routing.intermediate * own.integer("num_shared_expert", default=1, minimum=0) if mixes else 0
        ff = moe(size.hidden, routing, router="gate.wg", shared="shared_mlp", shared_intermediate=shared)
        return layer(mixer, ff, norms=norms(size.hidden, *PRE_NORMS))

    alike = _alike(fields, ("num_experts", "moe_topk", "num_shared_expert", "moe_intermediate_size"), size.layers)
    kinds = tuple("dense" if index < skipped else str(alike[index]) for index in range(size.layers))
    return decoder(size, by_kind(kinds, make))


def _of_layer(fields: ConfigFields, name: str, index: int) -> object:
    """A field that is one value for all layers, or a list of them."""
    value = fields.raw(name)
    return fields.per_layer(name, index + 1)[index] if isinstance(value, list) else value


def _alike(fields: ConfigFields, names: tuple[str, ...], layers: int) -> tuple[int, ...]:
    """For every layer the first one with the same values."""
    first: dict[str, int] = {}
    return tuple(
        first.setdefault(repr([_of_layer(fields, name, index) for name in names]), index) for index in range(layers)
    )


def bailing_moe(fields: ConfigFields) -> TextModelSpec:
    """Ling and Ring (Bailing), and Sarvam's mixtures: a few dense layers first, shared experts, normed heads."""
    size = read_dimensions(fields)
    routing = read_routing(fields)
    bias = fields.boolean("use_bias", False)
    shared = fields.integer(
        "moe_shared_expert_intermediate_size",
        default=routing.intermediate * fields.integer("num_shared_experts", default=0, minimum=0),
        minimum=0,
    )
    normed = HeadNorm.PER_HEAD if fields.boolean("use_qk_norm", False) else HeadNorm.NONE
    mixer = plain_attention(
        size, qkv_bias=bias or fields.boolean("use_qkv_bias", False), out_bias=bias, head_norm=normed
    )
    layers = mixed_layers(
        size,
        first_dense(fields, size.layers),
        mixer,
        lambda: mlp(size.hidden, fields.integer("intermediate_size"), bias=bias),
        moe(size.hidden, routing, shared_intermediate=shared, routed_fp32=True),
    )
    return decoder(size, layers)


def dots1(fields: ConfigFields) -> TextModelSpec:
    """dots.llm1: DeepSeek's mixture under plain attention with normed heads."""
    return _deepseek_mixture(fields, HeadNorm.PER_HEAD)


def deepseek_moe(fields: ConfigFields) -> TextModelSpec:
    """The first DeepSeek mixtures, under plain attention."""
    return _deepseek_mixture(fields, HeadNorm.NONE)


def _deepseek_mixture(fields: ConfigFields, head_norm: HeadNorm) -> TextModelSpec:
    size = read_dimensions(fields)
    routing = read_routing(fields, experts=("n_routed_experts",))
    bias = fields.boolean("attention_bias", False)
    layers = mixed_layers(
        size,
        first_dense(fields, size.layers),
        plain_attention(size, qkv_bias=bias, out_bias=bias, head_norm=head_norm),
        lambda: mlp(size.hidden, fields.integer("intermediate_size")),
        moe(
            size.hidden,
            routing,
            shared_intermediate=routing.intermediate * fields.integer("n_shared_experts", default=0, minimum=0),
            routed_fp32=True,
        ),
    )
    return decoder(size, layers)

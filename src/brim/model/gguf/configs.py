"""A GGUF header as the config.json of its family, so that one reader describes a family wherever it comes from.

In: a header. Out: a dict with `model_type` and the fields that the family's reader reads. Converters write the same few
keys for all architectures; what they leave out is seen from the tensors: a bias, a head of its own, norms of heads.
What an architecture means beyond its keys, such as which layers slide, is what the family's reader knows. Not known:
how the model was trained, and any architecture that is not in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from brim.errors import InvalidConfig, UnsupportedModel
from brim.model.families.common import SLIDING
from brim.model.gguf.common import Config, experts, windows
from brim.model.gguf.fields import HeaderFields
from brim.model.gguf.header import GgufHeader
from brim.model.gguf.hybrids import (
    falcon_h1,
    granite_hybrid,
    jamba,
    lfm2,
    mamba,
    mamba2,
    nemotron_h,
    qwen_delta,
)

_NOT_GENERATIVE = ("bert", "t5", "clip", "wavtokenizer", "gemma-embedding", "llama-embed")


def config_of(header: GgufHeader) -> Config:
    """The config of a model's header."""
    fields = HeaderFields(header)
    name = fields.architecture
    if not name:
        raise InvalidConfig(f"{header.file}: general.architecture", "missing", "it says which family the model is of")
    if name not in _ARCHITECTURES:
        why = "is an encoder" if any(one in name for one in _NOT_GENERATIVE) else "is not a supported architecture"
        raise UnsupportedModel(
            f"config field '{header.file}: general.architecture': {name[:60]!r} {why}; those that are: "
            f"{', '.join(sorted(_ARCHITECTURES))}"
        )
    found = {**_common(fields), **_ARCHITECTURES[name](fields)}
    return {name: value for name, value in found.items() if value is not None or name in _MAY_BE_NULL}


# A null says that there is none, where a class would fill in its default.
_MAY_BE_NULL = (
    "sliding_window",
    "q_lora_rank",
    "n_routed_experts",
    "final_logit_softcapping",
    "hidden_size_per_layer_input",
)


def _common(fields: HeaderFields) -> Config:
    """What most families read, under the names that they have for it."""
    embeddings = fields.tensor("token_embd.weight")
    if embeddings is None or len(embeddings.shape) != 2:
        raise InvalidConfig(f"{fields.architecture}: token_embd.weight", "missing", "the file has no embeddings")
    heads = fields.largest("attention.head_count")
    return {
        "torch_dtype": "float16",  # what llama.cpp's cache is in by default
        "vocab_size": embeddings.shape[0],
        "hidden_size": fields.raw("embedding_length"),
        "num_hidden_layers": fields.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": fields.largest("attention.head_count_kv") or heads,
        "head_dim": fields.raw("attention.key_length"),
        "intermediate_size": fields.largest("feed_forward_length"),
        "max_position_embeddings": fields.raw("context_length"),
        "tie_word_embeddings": not fields.has("output.weight"),
        "attention_bias": fields.has("blk.*.attn_q.bias") or fields.has("blk.*.attn_qkv.bias"),
        "mlp_bias": fields.has("blk.*.ffn_up.bias"),
        "sliding_window": None,
        "final_logit_softcapping": fields.raw("final_logit_softcapping"),
    }


def _plain(model_type: str, **more: Any) -> Callable[[HeaderFields], Config]:
    """A family that needs no more than what all have."""
    return lambda fields: {"model_type": model_type, **more}


def _sliding(model_type: str) -> Callable[[HeaderFields], Config]:
    return lambda fields: {"model_type": model_type, **windows(fields)}


def _mixture(model_type: str, counts: str = "num_experts", **more: Any) -> Callable[[HeaderFields], Config]:
    return lambda fields: {"model_type": model_type, **experts(fields, counts), **more}


def _wide_mixture(model_type: str) -> Callable[[HeaderFields], Config]:
    """Families whose `intermediate_size` is that of an expert."""
    return lambda fields: {
        "model_type": model_type,
        **experts(fields, "num_local_experts"),
        "intermediate_size": fields.first("expert_feed_forward_length", "feed_forward_length"),
    }


def _llama(fields: HeaderFields) -> Config:
    """Llama and Mistral, and Mixtral where there are experts. llama.cpp keeps everything of Mistral's first window."""
    return _wide_mixture("mixtral")(fields) if fields.raw("expert_count") else {"model_type": "llama"}


def _llama4(fields: HeaderFields) -> Config:
    return {
        "model_type": "llama4_text",
        **experts(fields, "num_local_experts"),
        "intermediate_size": fields.raw("expert_feed_forward_length"),
        "intermediate_size_mlp": fields.raw("feed_forward_length"),
        "interleave_moe_layer_step": fields.raw("interleave_moe_layer_step"),
        "attention_chunk_size": fields.raw("attention.chunk_size"),
    }


def _gemma4(fields: HeaderFields) -> Config:
    """Global layers have heads of their own, which may have no values; the last layers may borrow their cache."""
    kinds = windows(fields)
    heads = fields.by_layer("attention.head_count_kv")
    slides = [kind == SLIDING for kind in kinds.get("layer_types", [])]
    wide = [count for count, sliding in zip(heads, slides, strict=False) if not sliding]
    narrow = [count for count, sliding in zip(heads, slides, strict=False) if sliding]
    widths = fields.by_layer("feed_forward_length")
    values = [fields.has(f"blk.{index}.attn_v.weight") for index in range(fields.layers)]
    per_layer = fields.tensor("per_layer_token_embd.weight")
    keys_alone = any(not has and not sliding for has, sliding in zip(values, slides, strict=False))
    return {
        "model_type": "gemma4_text",
        **kinds,
        "head_dim": fields.first("attention.key_length_swa", "attention.key_length"),
        "global_head_dim": fields.raw("attention.key_length"),
        "num_key_value_heads": max(narrow, default=None) or fields.largest("attention.head_count_kv"),
        "num_global_key_value_heads": max(wide, default=None),
        "attention_k_eq_v": keys_alone and not fields.raw("attention.shared_kv_layers"),
        "num_kv_shared_layers": fields.raw("attention.shared_kv_layers"),
        "hidden_size_per_layer_input": fields.raw("embedding_length_per_layer_input") or None,
        "vocab_size_per_layer_input": per_layer.shape[0] if per_layer else None,
        "intermediate_size": min(widths, default=None),
        "use_double_wide_mlp": len(set(widths)) > 1,
        **(experts(fields, enable_moe_block=True) if fields.raw("expert_count") else {}),
    }


def _deepseek2(fields: HeaderFields) -> Config:
    """DeepSeek V2 and V3, Kimi K2: MLA. Files from before its own keys have the widths of heads where others do."""
    rope = fields.raw("rope.dimension_count")
    query = fields.first("attention.key_length_mla", "attention.key_length")
    return {
        "model_type": "deepseek_v3" if fields.has("blk.*.exp_probs_b.bias") else "deepseek_v2",
        **experts(fields, "n_routed_experts"),
        **_latent(fields),
        "qk_nope_head_dim": query - rope if isinstance(query, int) and isinstance(rope, int) else None,
        "head_dim": None,
    }


def _latent(fields: HeaderFields) -> Config:
    return {
        "q_lora_rank": fields.raw("attention.q_lora_rank") or None,
        "kv_lora_rank": fields.raw("attention.kv_lora_rank"),
        "qk_rope_head_dim": fields.raw("rope.dimension_count"),
        "v_head_dim": fields.first("attention.value_length_mla", "attention.value_length"),
    }


def _glm_dsa(fields: HeaderFields) -> Config:
    return {
        **_deepseek2(fields),
        "model_type": "glm_moe_dsa",
        "index_n_heads": fields.raw("attention.indexer.head_count"),
        "index_head_dim": fields.raw("attention.indexer.key_length"),
    }


def _minicpm3(fields: HeaderFields) -> Config:
    rope, query = fields.raw("rope.dimension_count"), fields.raw("attention.key_length")
    nope = query - rope if isinstance(query, int) and isinstance(rope, int) else None
    return {"model_type": "minicpm3", **_latent(fields), "qk_nope_head_dim": nope, "v_head_dim": None, "head_dim": None}


def _glm4_moe(fields: HeaderFields) -> Config:
    normed = fields.has("blk.*.attn_q_norm.weight")
    return {"model_type": "glm4_moe", **experts(fields, "n_routed_experts"), "use_qk_norm": normed}


def _gpt_oss(fields: HeaderFields) -> Config:
    return {**_wide_mixture("gpt_oss")(fields), **windows(fields)}


def _command_r(fields: HeaderFields) -> Config:
    return {"model_type": "cohere", "use_qk_norm": fields.has("blk.*.attn_q_norm.weight")}


def _olmo2(fields: HeaderFields) -> Config:
    """OLMo 3 is an OLMo 2 with windows."""
    found = windows(fields)
    return {"model_type": "olmo3", **found} if found["sliding_window"] else {"model_type": "olmo2"}


def _stablelm(fields: HeaderFields) -> Config:
    return {
        "model_type": "stablelm",
        "use_qkv_bias": fields.has("blk.*.attn_q.bias"),
        "qk_layernorm": fields.has("blk.*.attn_q_norm.weight"),
        "use_parallel_residual": fields.raw("use_parallel_residual"),
    }


def _bias(model_type: str, name: str, **more: Any) -> Callable[[HeaderFields], Config]:
    """Families that have one word for all of their biases."""
    return lambda fields: {
        "model_type": model_type,
        name: fields.has("blk.*.attn_q.bias") or fields.has("blk.*.ffn_up.bias"),
        **more,
    }


def _seed_oss(fields: HeaderFields) -> Config:
    return {"model_type": "seed_oss", "attention_out_bias": fields.has("blk.*.attn_output.bias")}


def _ernie_moe(fields: HeaderFields) -> Config:
    return {
        "model_type": "ernie4_5_moe",
        "moe_num_experts": fields.raw("expert_count"),
        "moe_k": fields.raw("expert_used_count"),
        "moe_intermediate_size": fields.raw("expert_feed_forward_length"),
        "moe_num_shared_experts": fields.raw("expert_shared_count") or 0,
        "moe_layer_start_index": fields.raw("leading_dense_block_count") or 0,
        "moe_layer_interval": fields.raw("interleave_moe_layer_step") or 1,
        "use_bias": fields.has("blk.*.attn_q.bias"),
    }


def _hunyuan_moe(fields: HeaderFields) -> Config:
    width, shared = fields.raw("expert_feed_forward_length"), fields.raw("expert_shared_feed_forward_length")
    return {
        "model_type": "hunyuan_v1_moe",
        "num_experts": fields.raw("expert_count"),
        "moe_topk": fields.raw("expert_used_count"),
        "moe_intermediate_size": width,
        "num_shared_expert": shared // width if isinstance(shared, int) and isinstance(width, int) and width else 1,
    }


def _bailing(fields: HeaderFields) -> Config:
    return {
        "model_type": "bailing_moe",
        **experts(fields, num_shared_experts=fields.raw("expert_shared_count")),
        "moe_shared_expert_intermediate_size": fields.raw("expert_shared_feed_forward_length"),
        "use_qk_norm": fields.has("blk.*.attn_q_norm.weight"),
        "use_qkv_bias": fields.has("blk.*.attn_qkv.bias"),
    }


def _afmoe(fields: HeaderFields) -> Config:
    return {
        "model_type": "afmoe",
        **experts(fields, num_shared_experts=fields.raw("expert_shared_count")),
        **windows(fields),
        "num_dense_layers": fields.raw("leading_dense_block_count"),
    }


def _falcon(fields: HeaderFields) -> Config:
    """The new architecture has several key-value heads, or norms for attention and MLP apart."""
    kv, heads = fields.largest("attention.head_count_kv") or 1, fields.largest("attention.head_count")
    two = fields.has("blk.*.attn_norm_2.weight")
    return {
        "model_type": "falcon",
        "new_decoder_architecture": two or (kv > 1 and kv != heads),
        "num_ln_in_parallel_attn": 2 if two else 1,
        "multi_query": kv != heads,
        "num_kv_heads": kv,
        "ffn_hidden_size": fields.raw("feed_forward_length"),
    }


def _starcoder(fields: HeaderFields) -> Config:
    return {
        "model_type": "gpt_bigcode",
        "multi_query": fields.raw("attention.head_count_kv") == 1,
        "n_inner": fields.raw("feed_forward_length"),
    }


_ARCHITECTURES: Mapping[str, Callable[[HeaderFields], Config]] = {
    "afmoe": _afmoe,
    "baichuan": _plain("baichuan"),
    "bailingmoe": _bailing,
    "bailingmoe2": _bailing,
    "bloom": _plain("bloom"),
    "chatglm": _plain("glm"),
    "cohere2": _sliding("cohere2"),
    "command-r": _command_r,
    "deepseek": _mixture("deepseek", "n_routed_experts"),
    "deepseek2": _deepseek2,
    "dots1": _mixture("dots1", "n_routed_experts"),
    "ernie4_5": _bias("ernie4_5", "use_bias"),
    "ernie4_5-moe": _ernie_moe,
    "exaone": _plain("exaone"),
    "exaone4": _sliding("exaone4"),
    "falcon": _falcon,
    "falcon-h1": falcon_h1,
    "gemma": _plain("gemma"),
    "gemma2": _sliding("gemma2"),
    "gemma3": _sliding("gemma3_text"),
    "gemma4": _gemma4,
    "glm-dsa": _glm_dsa,
    "glm4": _plain("glm4"),
    "glm4moe": _glm4_moe,
    "gpt-oss": _gpt_oss,
    "gpt2": _plain("gpt2"),
    "gptneox": _plain("gpt_neox"),
    "granite": _plain("granite"),
    "granitehybrid": granite_hybrid,
    "granitemoe": lambda fields: {
        **_wide_mixture("granitemoe")(fields),
        "shared_intermediate_size": fields.raw("expert_shared_feed_forward_length"),
    },
    "hunyuan-dense": _plain("hunyuan_v1_dense"),
    "hunyuan-moe": _hunyuan_moe,
    "internlm2": _plain("internlm2"),
    "jamba": jamba,
    "lfm2": lfm2,
    "llama": _llama,
    "llama4": _llama4,
    "mamba": mamba,
    "mamba2": mamba2,
    "minicpm": _plain("minicpm"),
    "minicpm3": _minicpm3,
    "minimax-m2": _wide_mixture("minimax_m2"),
    "mistral3": _plain("mistral"),
    "nemotron": _plain("nemotron"),
    "nemotron_h": nemotron_h,
    "nemotron_h_moe": nemotron_h,
    "olmo": _plain("olmo"),
    "olmo2": _olmo2,
    "olmoe": _wide_mixture("olmoe"),
    "phi2": _plain("phi"),
    "phi3": _plain("phi3"),  # llama.cpp has its window switched off
    "phimoe": _wide_mixture("phimoe"),
    "qwen2": _plain("qwen2"),
    "qwen2moe": _mixture("qwen2_moe"),
    "qwen2vl": _plain("qwen2"),
    "qwen3": _plain("qwen3"),
    "qwen35": qwen_delta("qwen3_5_text"),
    "qwen35moe": qwen_delta("qwen3_5_moe_text"),
    "qwen3moe": _mixture("qwen3_moe"),
    "qwen3next": qwen_delta("qwen3_next"),
    "qwen3vl": _plain("qwen3"),
    "qwen3vlmoe": _mixture("qwen3_moe"),
    "seed_oss": _seed_oss,
    "smollm3": _plain("smollm3"),
    "stablelm": _stablelm,
    "starcoder": _starcoder,
    "starcoder2": _bias("starcoder2", "use_bias"),
}
ARCHITECTURES = tuple(_ARCHITECTURES)

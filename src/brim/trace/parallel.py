"""A model as one tensor-parallel rank runs it: the config with heads, MLP columns and vocabulary sharded.

Column- and row-parallel linear modules make a rank's model a narrower model of the same hidden width, so a rank is
traced by building that model. Replicated parts (norms, routers, MLA's down-projections, the residual stream) keep
their size, and so does the head, whose logits end up whole on a rank. The all-reduce works in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brim.errors import CannotTrace

_HEADS = ("num_attention_heads", "swa_num_attention_heads", "linear_num_key_heads", "linear_num_value_heads")
_KV_HEADS = ("num_key_value_heads", "num_global_key_value_heads", "swa_num_key_value_heads")
_COLUMNS = (
    "intermediate_size",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
    "intermediate_size_mlp",
)

# Families whose layers are only attention (or MLA, or the delta rule), MLPs and experts: what the rule above covers.
DIVISIBLE = frozenset(
    {
        "deepseek_v2",
        "deepseek_v3",
        "ernie4_5",
        "ernie4_5_moe",
        "exaone4",
        "gemma",
        "gemma2",
        "gemma3",
        "gemma3_text",
        "gemma4",
        "gemma4_text",
        "glm",
        "glm4",
        "glm4_moe",
        "gpt_oss",
        "granite",
        "granitemoe",
        "hunyuan_v1_dense",
        "llama",
        "minimax_m2",
        "ministral",
        "mistral",
        "mixtral",
        "olmo2",
        "olmo3",
        "phi3",
        "qwen2",
        "qwen2_5_vl",
        "qwen2_moe",
        "qwen2_vl",
        "qwen3",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_5_text",
        "qwen3_moe",
        "qwen3_next",
        "qwen3_vl",
        "qwen3_vl_moe",
        "seed_oss",
        "smollm3",
    }
)


def rank_config(config: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """The config of one rank's model."""
    kind = str(config.get("model_type", ""))
    if ranks == 1:
        return dict(config)
    if kind not in DIVISIBLE:
        raise CannotTrace(f"tp {ranks}: a trace of '{kind[:60]}' cannot be sharded over ranks; leave out --tp")
    if "text_config" in config:
        return {**config, "text_config": _divided(config["text_config"], ranks)}
    return _divided(config, ranks)


def _divided(text: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    rank = dict(text)
    heads = text.get("num_attention_heads")
    hidden = text.get("hidden_size")
    if not isinstance(heads, int) or not isinstance(hidden, int):
        raise CannotTrace("tp needs num_attention_heads and hidden_size in the config")
    rank.setdefault("head_dim", None)
    if rank["head_dim"] is None and "kv_lora_rank" not in text:
        rank["head_dim"] = hidden // heads
    elif rank["head_dim"] is None:
        del rank["head_dim"]
    for name in _HEADS:
        if text.get(name):
            rank[name] = _part(name, text[name], ranks)
    for name in _KV_HEADS:
        if text.get(name):
            rank[name] = max(1, text[name] // ranks)
    for name in _COLUMNS:
        if text.get(name):
            rank[name] = _part(name, text[name], ranks)
    return rank


def _part(name: str, value: int, ranks: int) -> int:
    if value % ranks:
        raise CannotTrace(f"tp {ranks} does not divide {name} {value}")
    return value // ranks

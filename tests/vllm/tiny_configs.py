"""Tiny models with KV caches that are not those of plain attention, as config.json, and with weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_SIZES: dict[str, Any] = {"vocab_size": 512, "hidden_size": 64, "max_position_embeddings": 1024, "head_dim": 32}
SEVERAL_GROUPS: dict[str, dict[str, Any]] = {  # layers of several kinds
    "windows": {
        **_SIZES,
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "intermediate_size": 128,
        "num_hidden_layers": 7,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "sliding_window": 64,
    },
    "states": {
        **_SIZES,
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "block_dim": 64,
        "block_ff_dim": 128,
        "block_multiple_of": 16,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "conv_dim": 64,
        "conv_dim_out": 64,
        "conv_L_cache": 3,
        "conv_bias": False,
        "layer_types": ["conv", "full_attention", "conv", "full_attention"],
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    },
}
LATENTS: dict[str, Any] = {  # MLA; its kernels know these dimensions of a head only
    "vocab_size": 512,
    "hidden_size": 64,
    "max_position_embeddings": 1024,
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "intermediate_size": 128,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
    "scoring_func": "softmax",
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
}


def write_weights(config: dict[str, Any], folder: Path) -> str:
    """Random weights that are large enough for the next token to depend on all of the text."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    (folder / "config.json").write_text(json.dumps({**config, "initializer_range": 0.3}))
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
    return str(folder)

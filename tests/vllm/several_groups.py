"""Tiny models whose layers need KV caches of several kinds, as config.json."""

from __future__ import annotations

from typing import Any

_SIZES: dict[str, Any] = {"vocab_size": 512, "hidden_size": 64, "max_position_embeddings": 1024, "head_dim": 32}
SEVERAL_GROUPS: dict[str, dict[str, Any]] = {
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

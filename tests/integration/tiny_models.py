"""Tiny configs of many families, and models made from them: every dimension small, every mechanism there."""

from __future__ import annotations

from typing import Any

VOCAB, WINDOW = 128, 16

BASE: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MOE = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
MLA = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
DSA = {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 8}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "shared_expert_intermediate_size": 32,
}
SLIDING = {"sliding_window": WINDOW}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": SLIDING,
    "mixtral": MOE,
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": MOE,
    "phi3": SLIDING,
    "gemma2": SLIDING,
    "gemma3_text": {**SLIDING, "num_hidden_layers": 6},
    "gemma4_text": {
        **SLIDING,
        "global_head_dim": 32,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 128,
    },
    "gpt_oss": {**SLIDING, **MOE},
    "olmo3": SLIDING,
    "cohere2": SLIDING,
    "llama4_text": {**MOE, "attention_chunk_size": WINDOW, "intermediate_size_mlp": 64, "num_experts_per_tok": 1},
    "minimax_m2": MOE,
    "deepseek_v2": {**MOE, **MLA},
    "deepseek_v3": {**MOE, **MLA, "head_dim": 8},
    "deepseek_v32": {**MOE, **MLA, **DSA},
    "glm_moe_dsa": {**MOE, **MLA, **DSA},
    "minicpm3": MLA,
    "qwen3_next": {**DELTA, **MOE},
    "qwen3_5_text": DELTA,
    "kimi_linear": {
        **MOE,
        **MLA,
        "q_lora_rank": None,
        "linear_num_heads": 4,
        "linear_head_dim": 16,
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    },
    "granitemoehybrid": {
        **MOE,
        "layer_types": ["mamba", "attention"] * 2,
        "mamba_n_heads": 8,
        "mamba_d_state": 16,
        "mamba_n_groups": 1,
        "mamba_d_head": 16,
        "shared_intermediate_size": 32,
    },
    "nemotron_h": {
        **MOE,
        "layers_block_type": ["mamba", "attention", "mlp", "moe"],
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
        "n_groups": 2,
        "n_shared_experts": 1,
        "moe_shared_expert_intermediate_size": 32,
        "chunk_size": 16,
    },
    "lfm2": {"layer_types": ["conv", "full_attention", "conv", "conv"]},
    "gpt_bigcode": {"n_embd": 64, "n_head": 4, "n_layer": 4, "n_positions": 512, "n_inner": 96},
}


MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_d_ssm": 128,
    "mamba_chunk_size": 16,
}
GPT = {"n_embd": 64, "n_head": 4, "n_layer": 4, "n_positions": 512, "n_inner": 96}
HALF_SLIDING = {**SLIDING, "use_sliding_window": True, "max_window_layers": 2}
WINDOWED = (
    *("afmoe", "cohere2_moe", "cwm", "exaone4", "exaone_moe", "flint", "granite_swa", "granitemoe_swa", "kolibri1"),
    *("laguna", "mellum", "mimo_v2_flash", "ministral", "ministral3", "modernbert-decoder", "phimoe", "starcoder2"),
    *("vaultgemma",),
)
# Families with one quick comparison each (`test_verified.py`); those that are in neither table take the base and `MOE`.
MORE_FAMILIES: dict[str, dict[str, Any]] = {
    **{kind: {**MOE, **SLIDING} for kind in WINDOWED},
    "axk1": {**MOE, **MLA, "head_dim": 8},
    "bailing_hybrid": FAMILIES["kimi_linear"],
    "bamba": {**MAMBA, "attn_layer_indices": [1, 3]},
    "ctrl": {**GPT, "dff": 96},
    "dbrx": {
        "d_model": 64,
        "n_heads": 4,
        "n_layers": 4,
        "max_seq_len": 512,
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64},
    },
    "dots1": {
        **MOE,
        **HALF_SLIDING,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    },
    "falcon_h1": {**MAMBA, "num_hidden_layers": 2},
    "gemma3n_text": {
        **SLIDING,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 128,
        "laurel_rank": 8,
        "altup_num_inputs": 2,
        "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
        "intermediate_size": [96] * 4,
    },
    "gemma4_unified_text": FAMILIES["gemma4_text"],
    "glm4_moe_lite": {**MOE, **MLA, "head_dim": 8},
    "gpt-sw3": GPT,
    "gpt2": GPT,
    "jamba": {**MOE, "mamba_d_state": 8, "attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {**MOE, "layer_types": ["conv", "full_attention", "conv", "conv"], "num_dense_layers": 1},
    "longcat_flash": {
        **MOE,
        **MLA,
        "head_dim": 8,
        "num_layers": 2,
        "ffn_hidden_size": 96,
        "expert_ffn_hidden_size": 32,
        "moe_topk": 2,
        "zero_expert_num": 1,
    },
    "olmo_hybrid": {**DELTA, "layer_types": ["linear_attention", "full_attention"] * 2},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 32},
    "qwen2_moe": {**MOE, **HALF_SLIDING, "shared_expert_intermediate_size": 32},
    "qwen3_5_moe_text": {**DELTA, **MOE},
    "smollm3": HALF_SLIDING,
    "youtu": {**MOE, **MLA, "head_dim": 8},
    "zamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "mamba_d_state": 8,
        "n_mamba_heads": 2,
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
    },
    "zamba2": {
        "mamba_headdim": 16,
        "mamba_d_state": 16,
        "mamba_ngroups": 1,
        "n_mamba_heads": 8,
        "chunk_size": 16,
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
        "num_mem_blocks": 1,
        "adapter_rank": 8,
        "attention_head_dim": 32,
    },
}


def tiny_config(kind: str, **changes: Any) -> dict[str, Any]:
    """The dict of a config.json."""
    return {**BASE, **FAMILIES.get(kind, MORE_FAMILIES.get(kind, MOE)), "model_type": kind, **changes}


def tiny_model(kind: str, seed: int = 0, **changes: Any) -> Any:
    """A model with random weights in fp32."""
    import torch
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    transformers.logging.set_verbosity_error()
    config = CONFIG_MAPPING[kind].from_dict(tiny_config(kind, **changes))
    torch.manual_seed(seed)
    return getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind])(config).float().eval()

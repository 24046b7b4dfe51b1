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


def tiny_config(kind: str, **changes: Any) -> dict[str, Any]:
    """The dict of a config.json."""
    return {**BASE, **FAMILIES[kind], "model_type": kind, **changes}


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

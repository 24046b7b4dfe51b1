"""KV and state by dimensions against the bytes that a tiny real model leaves in its cache."""

from __future__ import annotations

from typing import Any

import pytest

from brim.model.config import read_config
from brim.model.kv import KvStorage, kv_footprint
from brim.records.model import Dtype
from tests.integration.meta_models import known_types

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOKENS, WINDOW = 40, 16

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


EXPANDED_BEFORE = ("deepseek_v32", "glm_moe_dsa")


def cached_bytes(cache: Any) -> tuple[int, int]:
    """(bytes in the cache, bytes of the one token that each sliding layer has dropped ahead of the next step)."""
    held = ahead = 0
    for layer in cache.layers:
        tensors = [part for value in vars(layer).values() for part in _tensors(value)]
        held += sum(part.numel() * part.element_size() for part in tensors if part.dim() >= 2)
        if type(layer).__name__ == "DynamicSlidingWindowLayer":
            ahead += sum(part.numel() // part.shape[-2] * part.element_size() for part in (layer.keys, layer.values))
    return held, ahead


def _tensors(value: Any) -> list[Any]:
    parts = value if isinstance(value, list | tuple) else value.values() if isinstance(value, dict) else [value]
    return [part for part in parts if torch.is_tensor(part)]


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_the_cache_of_a_tiny_model(kind: str) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if kind not in known_types():
        pytest.skip(f"transformers has no {kind}")
    transformers.logging.set_verbosity_error()
    config = {**BASE, **FAMILIES[kind]}
    torch.manual_seed(0)
    model = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind])(CONFIG_MAPPING[kind].from_dict(dict(config)))
    model = model.to(torch.bfloat16).eval()
    with torch.no_grad():
        output = model(input_ids=torch.randint(3, 128, (1, TOKENS)), use_cache=True)
    held, ahead = cached_bytes(output.past_key_values)
    spec = read_config({**config, "model_type": kind}, name=kind)
    expected = {kv_footprint(spec, Dtype.BF16).request_bytes(TOKENS)}
    if kind in EXPANDED_BEFORE:  # older releases kept per-head keys and values where newer ones keep the latent
        expected.add(kv_footprint(spec, Dtype.BF16, storage=KvStorage(keeps_latent=False)).request_bytes(TOKENS))
    assert held + ahead in expected

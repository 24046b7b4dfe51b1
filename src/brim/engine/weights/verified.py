"""Families whose classes give the tokens of `generate` in this engine, tested with every change of it.

In: the configs of a model. Out: whether its family is on the list. Others are checked when they are loaded
(`brim.engine.verify`). The list is of `model_type`s: `tests/integration/test_verified.py` runs each of them.
"""

from __future__ import annotations

from typing import Any

_FAMILIES = """
    afmoe apertus arcee aria_text axk1 bailing_hybrid bamba biogpt bitnet cohere cohere2 cohere2_moe ctrl cwm dbrx
    deepseek_v2 deepseek_v3 dots1 ernie4_5 ernie4_5_moe exaone4 exaone_moe falcon_h1 flex_olmo flint gemma gemma2
    gemma3_text gemma3n_text gemma4_text gemma4_unified_text glm glm4 glm4_moe glm4_moe_lite gpt-sw3 gpt2 gpt_bigcode
    gpt_neox gpt_oss granite granite_swa granitemoe granitemoe_swa granitemoehybrid granitemoeshared helium
    hunyuan_v1_dense hunyuan_v1_moe hy_v3 hyperclovax jais2 jamba jetmoe kimi_linear kolibri1 laguna lfm2 lfm2_moe
    llama longcat_flash mellum mimo_v2_flash minicpm3 minimax_m2 ministral ministral3 mistral mixtral
    modernbert-decoder nanochat nemotron nemotron_h olmo olmo2 olmo3 olmo_hybrid olmoe opt persimmon phi phi3 phimoe
    qwen2 qwen2_moe qwen3 qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next seed_oss smollm3 solar_open stablelm
    starcoder2 vaultgemma youtu zamba zamba2
"""
# Models with towers around a language model: their text too runs through code of their own.
_WITH_TOWERS = """
    gemma3 gemma4 internvl qwen2_5_omni_thinker qwen2_5_vl qwen2_audio qwen2_vl qwen3_5 qwen3_5_moe
    qwen3_omni_moe_thinker qwen3_vl qwen3_vl_moe
"""

VERIFIED = frozenset(_FAMILIES.split())
WITH_TOWERS = frozenset(_WITH_TOWERS.split())


def is_verified(full: Any, text: Any) -> bool:
    """Whether a model is of a verified family, and so is the language model inside it (the same, without towers)."""
    kind, inner = getattr(full, "model_type", ""), getattr(text, "model_type", "")
    if kind in WITH_TOWERS:
        return inner in VERIFIED or inner == f"{kind.removesuffix('_thinker')}_text"
    return kind == inner and kind in VERIFIED

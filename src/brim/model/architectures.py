"""The family of a config that names its class in `architectures` and leaves `model_type` out.

A class is called after its family: "Qwen3MoeForCausalLM" is "qwen3_moe". The few that are not are listed here. A class
of text alone never stands for a family with towers, nor the other way round.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

_NAME = re.compile(r"(?P<stem>\w+)For(?P<task>CausalLM|ConditionalGeneration)")

# Classes that are not called after their family.
_EXCEPTIONS: Mapping[str, str] = {
    "ChatGLMForConditionalGeneration": "chatglm",
    "ChatGLMModel": "chatglm",
    "DFlashDraftModel": "qwen3",
    "DSparkDraftModel": "qwen3",
    "DeciLMForCausalLM": "nemotron-nas",
    "HunYuanDenseV1ForCausalLM": "hunyuan_v1_dense",
    "InternVLChatModel": "internvl_chat",
    "LlamaForCausalLMEagle3": "llama",
    "LlavaLlamaModel": "llava_llama",
    "MiniCPMV": "minicpmv",
    "MiniMaxM3SparseForConditionalGeneration": "minimax_m3_vl",
    "MolmoForCausalLM": "molmo",
    "PEagleDraftModel": "llama",
    "QWenLMHeadModel": "qwen",
    "Step3p7FlashForCausalLM": "step3p7",
}


def family_of(architecture: str, text: Collection[str], multimodal: Collection[str]) -> str | None:
    """The family of a class, out of those that are known; None where it is not one of theirs."""
    if architecture in _EXCEPTIONS:
        return _EXCEPTIONS[architecture]
    found = _NAME.fullmatch(architecture)
    if found is None:
        return None
    stem = _plain(found["stem"])
    if found["task"] == "ConditionalGeneration":
        return _by_plain_name(multimodal).get(stem)
    names = _by_plain_name(text)
    return names.get(f"{stem}text") or names.get(stem)  # the text side of a family with towers comes first


def _by_plain_name(families: Iterable[str]) -> dict[str, str]:
    return {_plain(family): family for family in families}


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()

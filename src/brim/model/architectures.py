"""What the class in `architectures` says: the family, whether it generates text, and whether it is a draft.

A class is called after its family: "Qwen3MoeForCausalLM" is "qwen3_moe". The few that are not are listed here. A class
of text alone never stands for a family with towers, nor the other way round.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

_NAME = re.compile(r"(?P<stem>\w+)For(?P<task>CausalLM|ConditionalGeneration)")
_HEADLESS = re.compile(
    r"(?P<stem>\w+?)(?:For(?P<task>SequenceClassification|TokenClassification|(?:Process)?RewardModel)|Model)"
)
_DRAFT = re.compile(r"eagle|draft|speculator|medusa|mtp(?!t)", re.IGNORECASE)

# Classes that are not called after their family.
_EXCEPTIONS: Mapping[str, str] = {
    "ChatGLMForConditionalGeneration": "chatglm",
    "ChatGLMModel": "chatglm",
    "DFlashDraftModel": "qwen3",
    "DSparkDraftModel": "qwen3",
    "DeciLMForCausalLM": "nemotron-nas",
    "DeepseekVLV2ForCausalLM": "deepseek_vl_v2",
    "DominoDraftModel": "qwen3",
    "Eagle3LlamaForCausalLM": "llama",
    "GPT2LMHeadModel": "gpt2",
    "GPTNeoXForCausalLM": "gpt_neox",
    "HunYuanDenseV1ForCausalLM": "hunyuan_v1_dense",
    "HunYuanMoEV1ForCausalLM": "hunyuan_v1_moe",
    "InternVLChatModel": "internvl_chat",
    "LlamaForCausalLMEagle3": "llama",
    "LlavaLlamaModel": "llava_llama",
    "MiniCPMV": "minicpmv",
    "MiniMaxM3SparseForConditionalGeneration": "minimax_m3_vl",
    "MolmoForCausalLM": "molmo",
    "PEagleDraftModel": "llama",
    "Phi3VForCausalLM": "phi3_v",
    "QWenLMHeadModel": "qwen",
    "RWForCausalLM": "falcon",
    "StableLMEpochForCausalLM": "stablelm",
    "Step3p7FlashForCausalLM": "step3p7",
}


def family_of(architecture: str, text: Collection[str], multimodal: Collection[str]) -> str | None:
    """The family of a class, out of those that are known; None where it is not one of theirs."""
    if architecture in _EXCEPTIONS:
        return _EXCEPTIONS[architecture]
    found = _NAME.fullmatch(architecture) or _HEADLESS.fullmatch(architecture)
    if found is None:
        return None
    stem = _plain(found["stem"])
    if found["task"] == "ConditionalGeneration":
        return _by_plain_name(multimodal).get(stem)
    names = _by_plain_name(text)
    return names.get(f"{stem}text") or names.get(stem)  # the text side of a family with towers comes first


def head_of(architecture: str) -> str | None:
    """What a class has instead of a language head: the name of its task, "" for nothing; None where it has one."""
    found = None if architecture in _EXCEPTIONS else _HEADLESS.fullmatch(architecture)
    return None if found is None or architecture.endswith("LMHeadModel") else found["task"] or ""


def generates(architecture: str) -> bool:
    """Whether a class is called like one that generates text."""
    return architecture.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "Decoder"))


def is_text_alone(architecture: str, family: str) -> bool:
    """Whether a class is the language model of a family with towers, without these."""
    found = None if architecture in _EXCEPTIONS else _NAME.fullmatch(architecture)
    return found is not None and found["task"] == "CausalLM" and _plain(found["stem"]) == _plain(family)


def is_draft(architecture: str) -> bool:
    """Whether a class is called like a draft model of speculative decoding."""
    return bool(_DRAFT.search(architecture))


def _by_plain_name(families: Iterable[str]) -> dict[str, str]:
    return {_plain(family): family for family in families}


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()

"""A config dict to a `ModelSpec`: the table of families, and what every config has besides its dimensions.

In: the dict of a config.json, and with it the quantisation and processor files where there are any. Out: a spec, or
`UnsupportedModel` naming the architecture, or `InvalidConfig` naming the field. An unknown `model_type` is never
treated as a similar one; where there is none, or one that contradicts it, the class in `architectures` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from brim.errors import InvalidConfig, UnsupportedModel
from brim.model.architectures import family_of, generates, head_of, is_draft, is_text_alone
from brim.model.blocks import linear
from brim.model.class_defaults import class_defaults
from brim.model.families import (
    classic,
    convolution,
    delta,
    dense,
    drafts,
    experts,
    gemma,
    latent,
    legacy,
    mamba,
    mixed,
    multimodal,
)
from brim.model.families.common import TextModelSpec
from brim.model.fields import ConfigFields
from brim.model.positions import position_table_bytes
from brim.model.quantisers.quantisation import read_quantisation
from brim.records.model import Dtype, ModelSpec

TEXT: Mapping[str, Callable[[ConfigFields], TextModelSpec]] = {
    "afmoe": mixed.afmoe,
    "baichuan": legacy.baichuan,
    "bailing_moe": experts.bailing_moe,
    "bailing_moe_v2": experts.bailing_moe,
    "bloom": classic.bloom,
    "chatglm": legacy.chatglm,
    "codegen": classic.gptj,
    "cohere": classic.cohere,
    "cohere2": dense.cohere2,
    "dbrx": experts.dbrx,
    "deepseek": experts.deepseek_moe,
    "deepseek_v2": latent.deepseek_v2,
    "deepseek_v3": latent.deepseek_v3,
    "deepseek_v32": latent.deepseek_v32,
    "deepseek_v4": latent.deepseek_v4,
    "dots1": experts.dots1,
    "ernie4_5": dense.ernie4_5,
    "ernie4_5_moe": experts.ernie4_5_moe,
    "exaone": classic.exaone,
    "exaone4": dense.exaone4,
    "falcon": classic.falcon,
    "falcon_h1": mamba.falcon_h1,
    "gemma": gemma.gemma,
    "gemma2": gemma.gemma2,
    "gemma3_text": gemma.gemma3,
    "gemma4_text": gemma.gemma4,
    "glm": dense.glm,
    "glm4": dense.glm4,
    "glm4_moe": experts.glm4_moe,
    "glm_moe_dsa": latent.glm_moe_dsa,
    "gpt2": classic.gpt2,
    "gpt_bigcode": legacy.gpt_bigcode,
    "gpt_neox": classic.gpt_neox,
    "gpt_oss": mixed.gpt_oss,
    "gptj": classic.gptj,
    "granite": dense.llama,
    "granitemoe": experts.granitemoe,
    "granitemoehybrid": mamba.granite_hybrid,
    "hunyuan": experts.hunyuan_moe,
    "hunyuan_v1_dense": dense.hunyuan_dense,
    "hunyuan_v1_moe": experts.hunyuan_moe,
    "internlm2": classic.internlm2,
    "kimi_k2": latent.deepseek_v3,
    "kimi_linear": delta.kimi_linear,
    "lfm2": convolution.lfm2,
    "llama": dense.llama,
    "llama4_text": mixed.llama4,
    "mimo": dense.mimo,
    "mimo_v2_flash": mixed.mimo_v2,
    "minicpm": experts.minicpm,
    "minicpm3": latent.minicpm3,
    "minimax": convolution.minimax,
    "minimax_m1": convolution.minimax,
    "minimax_m2": experts.minimax_m2,
    "minimax_m3": mixed.minimax_m3,
    "minimax_text_01": convolution.minimax,
    "ministral": dense.mistral,
    "ministral3": dense.mistral,
    "mistral": dense.mistral,
    "mixtral": experts.mixtral,
    "mpt": classic.mpt,
    "nemotron": dense.nemotron,
    "nemotron-nas": legacy.nemotron_nas,
    "nemotron_h": mamba.nemotron_h,
    "olmo": dense.olmo,
    "olmo2": dense.olmo2,
    "olmo3": dense.olmo3,
    "olmoe": experts.olmoe,
    "opt": classic.opt,
    "phi": classic.phi,
    "phi-msft": classic.phi,
    "phi3": dense.phi3,
    "phimoe": experts.phimoe,
    "qwen": legacy.qwen1,
    "qwen2": dense.qwen2,
    "qwen2_moe": experts.qwen2_moe,
    "qwen3": dense.qwen3,
    "qwen3_5_moe_text": delta.qwen3_5_moe,
    "qwen3_5_text": delta.qwen3_5,
    "qwen3_moe": experts.qwen3_moe,
    "qwen3_next": delta.qwen3_next,
    "sarvam_moe": experts.bailing_moe,
    "seed_oss": dense.seed_oss,
    "smollm3": dense.smollm3,
    "stablelm": classic.stablelm,
    "starcoder2": dense.starcoder2,
}

MULTIMODAL: Mapping[str, Callable[[ConfigFields, ConfigFields], multimodal.Multimodal]] = {
    "deepseek_vl_v2": multimodal.deepseek_vl2,
    "gemma3": multimodal.gemma3,
    "gemma4": multimodal.gemma4,
    "glm4v": multimodal.glm4v,
    "glm4v_moe": multimodal.glm4v_moe,
    "internvl": multimodal.internvl,
    "internvl_chat": multimodal.internvl_chat,
    "kimi_k25": multimodal.kimi_k25,
    "kimi_k3": multimodal.kimi_k3,
    "kimi_vl": multimodal.kimi_vl,
    "lfm2_vl": multimodal.lfm2_vl,
    "llama4": multimodal.llama4,
    "llava": multimodal.llava,
    "llava_llama": multimodal.vila,
    "llava_next": multimodal.llava_next,
    "minicpmv": multimodal.minicpmv,
    "minicpmv4_6": multimodal.minicpmv4_6,
    "minimax_m3_vl": multimodal.minimax_m3_vl,
    "mistral3": multimodal.mistral3,
    "mllama": multimodal.mllama,
    "molmo": multimodal.molmo,
    "phi3_v": multimodal.phi3_v,
    "qwen2_5_omni": multimodal.qwen2_5_omni,
    "qwen2_5_omni_thinker": multimodal.qwen2_5_omni,
    "qwen2_5_vl": multimodal.qwen2_5_vl,
    "qwen2_audio": multimodal.qwen2_audio,
    "qwen2_vl": multimodal.qwen2_vl,
    "qwen3_5": multimodal.qwen3_5,
    "qwen3_5_moe": multimodal.qwen3_5_moe,
    "qwen3_asr": multimodal.qwen3_asr,
    "qwen3_omni_moe": multimodal.qwen3_omni_moe,
    "qwen3_omni_moe_thinker": multimodal.qwen3_omni_moe,
    "qwen3_vl": multimodal.qwen3_vl,
    "qwen3_vl_moe": multimodal.qwen3_vl_moe,
    "step3p7": multimodal.step3p7,
}

# Architectures that are more specific than their model_type.
BY_ARCHITECTURE: Mapping[str, Callable[[ConfigFields], TextModelSpec]] = {
    "DFlashDraftModel": drafts.dflash,
    "DSparkDraftModel": drafts.dflash,
    "DeepseekV4ForCausalLM": latent.deepseek_v4,
    "DominoDraftModel": drafts.domino,
    "Eagle3DraftModel": drafts.eagle3,
    "Eagle3LlamaForCausalLM": drafts.eagle3,
    "Eagle3Speculator": drafts.eagle3,
    "LlamaForCausalLMEagle3": drafts.eagle3,
    "PEagleDraftModel": drafts.eagle3,
}

# Families whose readers look at `per_layer_config`.
LAYERS_APART = frozenset({"gemma4", "gemma4_text", "step3p7"})

# Families that say of every layer whether it is a mixture: a count of experts alone says nothing there.
EXPERTS_BY_LAYER = frozenset({"nemotron_h"})

# Known, and not generative: refused with that reason instead of as unknown.
NOT_GENERATIVE = frozenset(
    {"xlm-roberta", "bert", "roberta", "modernbert", "deberta-v2", "distilbert", "nomic_bert", "t5"}
)

# Reads the config of a family that is not in these tables.
UnlistedReader = Callable[[Mapping[str, Any]], multimodal.Multimodal]

_DTYPES = {
    "float32": Dtype.FP32,
    "float": Dtype.FP32,
    "bfloat16": Dtype.BF16,
    "float16": Dtype.FP16,
    "half": Dtype.FP16,
}
_WRAPPERS = ("text_config", "llm_config", "thinker_config", "llm_cfg", "language_config")


def read_config(
    config: Mapping[str, Any],
    *,
    name: str,
    quantisation: Mapping[str, Any] | None = None,
    processor: Mapping[str, Any] | None = None,
    unlisted: UnlistedReader | None = None,
) -> ModelSpec:
    """A spec from the dict of a config.json and the files beside it. `unlisted` reads families that are not here."""
    family, architecture, contradiction = _identify(ConfigFields(config))
    fields = ConfigFields(config, defaults=class_defaults(family, config))
    side = ConfigFields(processor or {}, "preprocessor_config")
    if unlisted is not None and not _is_listed(family, architecture):
        found = unlisted(config)
        text, towers, notes = found.text, found.towers, found.warnings
    else:
        _refuse_layers_apart(fields, family)
        text, towers, notes = _read_family(fields, family, architecture, side)
        text = _with_its_head(text, fields, architecture)
        _refuse_unread_experts(fields, family, text)
    if not any(layer.kv or layer.state for layer in text.layers):
        raise InvalidConfig("layer_types", "gives a model whose layers keep nothing", "there is nothing to plan")
    return ModelSpec(
        name=name,
        family=family,
        architecture=architecture,
        dtype=_read_dtype(fields),
        hidden=text.hidden,
        vocab=text.vocab,
        max_positions=text.max_positions,
        layers=text.layers,
        tensors=text.tensors,
        towers=towers,
        quantisation=read_quantisation(
            _quantisation_fields(fields),
            ConfigFields(quantisation or {}, "hf_quant_config"),
            fields.text("expert_dtype"),
        ),
        logits_softcap=text.logits_softcap,
        wide_residual=text.wide_residual,
        held_hidden=text.held_hidden,
        lent_kv_elements=text.lent_kv_elements,
        layer_input_width=text.layer_input_width,
        position_table_bytes=position_table_bytes(
            _language_model({"model_type": family, **config}), text.layers, text.max_positions
        ),
        draft_only=text.draft_only,
        warnings=(*contradiction, *text.warnings, *notes),
    )


def _is_listed(family: str, architecture: str) -> bool:
    encodes = family in NOT_GENERATIVE and not generates(architecture)
    return architecture in BY_ARCHITECTURE or family in TEXT or family in MULTIMODAL or encodes


def _identify(fields: ConfigFields) -> tuple[str, str, tuple[str, ...]]:
    """(family, architecture, what they contradict each other in). The class decides where they do."""
    family = fields.text("model_type")
    architecture = next(iter(fields.texts("architectures")), "")
    if not family and not architecture:
        raise InvalidConfig("model_type", "missing", "it says which family the dimensions belong to")
    if architecture in BY_ARCHITECTURE:
        return family or family_of(architecture, TEXT, MULTIMODAL) or "llama", architecture, ()
    if is_draft(architecture):
        raise UnsupportedModel(
            f"config field 'architectures': {architecture[:60]!r} is a draft model of a kind that is not supported "
            f"(those that are: {', '.join(sorted(name for name in BY_ARCHITECTURE if is_draft(name)))})"
        )
    found = family_of(architecture, TEXT, MULTIMODAL) if architecture else None
    if not family and found is None:
        raise UnsupportedModel(
            f"config field 'architectures': {architecture[:60]!r} is not a class of a supported family, and model_type "
            "is missing; `brim models --families` lists the families"
        )
    if not family or found is None or not _contradicts(fields, family, found):
        return family or str(found), architecture, ()
    note = f"model_type is {family[:60]!r}, architectures {architecture[:60]!r}: read as {found!r}, as the class says"
    return found, architecture, (note,)


def _contradicts(fields: ConfigFields, family: str, found: str) -> bool:
    """Whether a config is of the family of its class and not of the one it names."""
    if family == found or (family in TEXT and TEXT[family] is TEXT.get(found)):
        return False
    if family in MULTIMODAL and found in TEXT:
        return not any(wrapper in fields for wrapper in _WRAPPERS)  # a language model's own config under another name
    if family in TEXT and found in MULTIMODAL:
        return any(wrapper in fields for wrapper in _WRAPPERS)
    return family in TEXT or family in MULTIMODAL or family not in NOT_GENERATIVE


def _with_its_head(text: TextModelSpec, fields: ConfigFields, architecture: str) -> TextModelSpec:
    """The model as its class ends: classes that score or embed have no language head."""
    task = head_of(architecture)
    if task is None:
        return text
    kept = [tensor for tensor in text.tensors if not tensor.name.startswith(("lm_head", "transformer.output_layer"))]
    labels = fields.optional_integer("num_labels") or len(fields.child("id2label")) or 2
    if task.endswith("RewardModel"):
        kept += linear("score.0", text.hidden, text.hidden, bias=True) + linear(
            "score.2", labels, text.hidden, bias=True
        )
    elif task:
        kept += linear("score", labels, text.hidden, bias=task == "TokenClassification")
    return replace(text, tensors=tuple(kept))


def _refuse_unread_experts(fields: ConfigFields, family: str, text: TextModelSpec) -> None:
    """A config that counts experts is never planned as a dense model."""
    if family in EXPERTS_BY_LAYER or any(layer.feed_forward and layer.feed_forward.experts for layer in text.layers):
        return
    for place in _places(fields):
        for name in ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"):
            count = place.stated(name)
            if isinstance(count, int) and count > 1 and place.raw("enable_moe_block") is not False:
                raise UnsupportedModel(
                    f"config field '{place.where(name)}': is {count}, but models of {family[:60]!r} are read without "
                    "experts; correct model_type or architectures"
                )


def _refuse_layers_apart(fields: ConfigFields, family: str) -> None:
    """`transformers` may save what single layers have of their own; only some readers look at it."""
    for place in _places(fields):
        if place.raw("per_layer_config") and family not in LAYERS_APART:
            raise UnsupportedModel(
                f"config field '{place.where('per_layer_config')}': layers of {family[:60]!r} that differ one by one "
                "are not supported"
            )


def _read_family(
    fields: ConfigFields, family: str, architecture: str, processor: ConfigFields
) -> tuple[TextModelSpec, tuple[Any, ...], tuple[str, ...]]:
    if architecture in BY_ARCHITECTURE:
        return BY_ARCHITECTURE[architecture](fields), (), ()
    if family in TEXT:
        return TEXT[family](fields), (), ()
    if family in MULTIMODAL:
        model = MULTIMODAL[family](fields, processor)
        return model.text, () if is_text_alone(architecture, family) else model.towers, model.warnings
    if family in NOT_GENERATIVE:
        raise UnsupportedModel(
            f"config field 'model_type': {family!r} is an encoder, not a generative model; it has no KV cache to plan "
            "(`brim fit` and `brim serve` size the batches of models that embed or score)"
        )
    named = f" ({architecture[:60]})" if architecture else ""
    raise UnsupportedModel(
        f"config field 'model_type': {family[:60]!r}{named} is not a supported family; "
        "`brim models --families` lists those that are"
    )


def _language_model(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config that describes the language model: all of it, or what a wrapper holds."""
    inner = next((config[name] for name in _WRAPPERS if isinstance(config.get(name), dict)), None)
    return config if inner is None else _language_model(inner)


def _quantisation_fields(fields: ConfigFields) -> ConfigFields:
    """Where a config keeps its quantisation: at the top, or with the language model inside."""
    for place in _places(fields):
        for name in ("quantization", "quantization_config", "compression_config"):
            if isinstance(place.raw(name), dict) or (name in place and name != "quantization"):
                return place.child(name)
    return ConfigFields({}, "quantization_config")


def _places(fields: ConfigFields, depth: int = 2) -> Iterator[ConfigFields]:
    """A config, and the language model's inside it, which may be inside a thinker's."""
    yield fields
    for wrapper in _WRAPPERS if depth else ():
        if isinstance(fields.raw(wrapper), dict):
            yield from _places(fields.child(wrapper), depth - 1)


def _read_dtype(fields: ConfigFields) -> Dtype:
    """The type the weights are in; bf16, which is what engines load, where the config does not say."""
    for place in _places(fields):
        for name in ("dtype", "torch_dtype", "model_dtype"):
            value = place.raw(name)
            if value is None or value == "auto":
                continue
            if not isinstance(value, str) or value.removeprefix("torch.") not in _DTYPES:
                raise InvalidConfig(place.where(name), f"is {str(value)[:40]!r}, not one of {', '.join(_DTYPES)}")
            return _DTYPES[value.removeprefix("torch.")]
    return Dtype.BF16

"""The class in `architectures` tells the family where `model_type` is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brim.errors import InvalidConfig, UnsupportedModel
from brim.model.architectures import family_of
from brim.model.config import MULTIMODAL, TEXT, read_config
from tests.conftest import CONFIGS, needs_configs, read_json, shared_config_names
from tests.unit.model.test_config import ENCODERS, LLAMA


def without_type(**fields: object) -> dict[str, object]:
    return {**{name: value for name, value in LLAMA.items() if name != "model_type"}, **fields}


def test_a_config_without_model_type() -> None:
    named = read_config({**LLAMA, "architectures": ["LlamaForCausalLM"]}, name="x")
    assert read_config(without_type(architectures=["LlamaForCausalLM"]), name="x") == named
    assert read_config(without_type(architectures=["LlamaForCausalLM"], model_type=""), name="x") == named


@pytest.mark.parametrize("architecture", ["LlamaNextForCausalLM", "LlamaNextModel", "ForCausalLM", "Llama4", "日本"])
def test_a_class_of_no_family_is_named(architecture: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"'architectures': '{architecture}'"):
        read_config(without_type(architectures=[architecture]), name="x")


@pytest.mark.parametrize("nothing", [None, []])
def test_neither_is_there(nothing: object) -> None:
    with pytest.raises(InvalidConfig, match="'model_type': missing"):
        read_config(without_type(architectures=nothing), name="x")


def test_a_text_class_is_not_a_family_with_towers() -> None:
    assert family_of("Gemma3ForCausalLM", TEXT, MULTIMODAL) == "gemma3_text"
    assert family_of("Gemma3ForConditionalGeneration", TEXT, MULTIMODAL) == "gemma3"
    assert family_of("MllamaForCausalLM", TEXT, MULTIMODAL) is None


def test_as_transformers_names_its_classes() -> None:
    modeling = pytest.importorskip("transformers.models.auto.modeling_auto")
    for families, table in ((TEXT, "CAUSAL_LM"), (MULTIMODAL, "IMAGE_TEXT_TO_TEXT"), (MULTIMODAL, "MULTIMODAL_LM")):
        names = getattr(modeling, f"MODEL_FOR_{table}_MAPPING_NAMES")
        for family in families:
            found = names.get(family, ())
            for name in (found,) if isinstance(found, str) else found:
                if name.endswith("ForConditionalGeneration") or families is TEXT:
                    assert family_of(name, TEXT, MULTIMODAL) == family, name


def test_no_class_of_another_family_is_taken_for_one_of_ours() -> None:
    modeling = pytest.importorskip("transformers.models.auto.modeling_auto")
    for family, name in modeling.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        guessed = family_of(name, TEXT, MULTIMODAL) if isinstance(name, str) else None
        same_class = modeling.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(guessed) == name  # GPT-SW3 is a GPT-2
        assert guessed in (None, family, f"{family}_text") or same_class, name


@needs_configs
@pytest.mark.parametrize("name", [name for name in shared_config_names() if name not in ENCODERS])
def test_real_configs_without_their_type(name: str) -> None:
    config = read_json(CONFIGS / name / "config.json")
    if "architectures" not in config:
        pytest.skip("names no class")
    whole = read_config(config, name="x")
    config["model_type"] = None
    found = read_config(config, name="x")
    assert set(whole.warnings) - set(found.warnings) <= {
        one for one in whole.warnings if one.endswith("as the class says")
    }
    assert replace(found, family=whole.family, warnings=whole.warnings) == whole


MIXTURE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512}


def test_the_class_decides_where_it_contradicts_the_type() -> None:
    qwen3 = read_config({**LLAMA, **MIXTURE, "model_type": "qwen3_moe", "head_dim": 128}, name="x")
    odd = read_config(
        {**LLAMA, **MIXTURE, "model_type": "qwen2_moe", "head_dim": 128, "architectures": ["Qwen3MoeForCausalLM"]},
        name="x",
    )
    assert (odd.family, odd.layers, odd.tensors) == ("qwen3_moe", qwen3.layers, qwen3.tensors)
    assert odd.warnings == (
        "model_type is 'qwen2_moe', architectures 'Qwen3MoeForCausalLM': read as 'qwen3_moe', as the class says",
    )


def test_the_class_decides_where_the_type_is_not_listed() -> None:
    assert read_config({**LLAMA, "model_type": "phi4", "architectures": ["Phi3ForCausalLM"]}, name="x").family == "phi3"


@pytest.mark.parametrize("family", ["llama", "qwen3", "glm"])
def test_experts_of_a_dense_family_are_not_passed_over(family: str) -> None:
    with pytest.raises(UnsupportedModel, match=r"'num_experts': is 8, but models of"):
        read_config({**LLAMA, **MIXTURE, "model_type": family}, name="x")


def test_minicpm_with_experts_is_a_mixture() -> None:
    dense = read_config({**LLAMA, "model_type": "minicpm"}, name="x")
    mixture = read_config({**LLAMA, "model_type": "minicpm", "num_experts": 8, "num_experts_per_tok": 2}, name="x")
    one = 3 * LLAMA["hidden_size"] * LLAMA["intermediate_size"]
    router = 8 * LLAMA["hidden_size"]
    assert mixture.parameters - dense.parameters == LLAMA["num_hidden_layers"] * (7 * one + router)


@pytest.mark.parametrize(
    ("architecture", "labels", "instead"),
    [
        ("LlamaForSequenceClassification", {"num_labels": 1}, 4096),
        ("LlamaForSequenceClassification", {"id2label": {"0": "A", "1": "B", "2": "C"}}, 3 * 4096),
        ("LlamaForTokenClassification", {}, 2 * 4096 + 2),
        ("LlamaModel", {}, 0),
        ("LlamaForRewardModel", {"num_labels": 1}, 4096 * 4096 + 4096 + 4096 + 1),
    ],
)
def test_a_class_without_a_language_head(architecture: str, labels: dict[str, object], instead: int) -> None:
    generating = read_config({**LLAMA, "architectures": ["LlamaForCausalLM"]}, name="x")
    other = read_config({**LLAMA, **labels, "architectures": [architecture]}, name="x")
    head = LLAMA["vocab_size"] * LLAMA["hidden_size"]
    assert other.parameters == generating.parameters - head + instead


def test_a_draft_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"'MedusaModel' is a draft model of a kind"):
        read_config({**LLAMA, "architectures": ["MedusaModel"]}, name="x")


def test_the_layers_of_a_speculator_may_be_in_a_dict_of_their_own() -> None:
    eagle = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 32000}
    flat = read_config({**LLAMA, "num_hidden_layers": 1, **eagle}, name="x")
    nested = {"transformer_layer_config": {**LLAMA, "num_hidden_layers": 1}, "architectures": ["Eagle3Speculator"]}
    found = read_config({**nested, "draft_vocab_size": 32000}, name="x")
    assert found.draft_only
    assert (found.layers, found.tensors) == (flat.layers, flat.tensors)

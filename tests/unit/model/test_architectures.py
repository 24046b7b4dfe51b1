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


@pytest.mark.parametrize("architecture", ["LlamaNextForCausalLM", "LlamaModel", "ForCausalLM", "Llama4", "日本"])
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
        assert guessed in (None, family, f"{family}_text"), name


@needs_configs
@pytest.mark.parametrize("name", [name for name in shared_config_names() if name not in ENCODERS])
def test_real_configs_without_their_type(name: str) -> None:
    config = read_json(CONFIGS / name / "config.json")
    if "architectures" not in config:
        pytest.skip("names no class")
    whole = read_config(config, name="x")
    config["model_type"] = None
    assert replace(read_config(config, name="x"), family=whole.family) == whole

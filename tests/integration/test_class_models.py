"""Families without a reader: their parameters are those of the class, their caches what its decoder keeps."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from brim.errors import UnsupportedModel
from brim.model.kv import kv_footprint
from brim.records.model import Dtype, MediaType
from brim.trace.loading import load_model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def spec_of(config: Any, folder: Path) -> Any:
    (folder / "config.json").write_text(config.to_json_string(use_diff=False))
    return load_model(str(folder))


def parameters_of(config: Any, name: str) -> int:
    with torch.device("meta"):
        model = getattr(transformers, name)._from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ("GPTNeoConfig", "GPTNeoForCausalLM"),
        ("BloomConfig", "BloomForCausalLM"),
        ("XGLMConfig", "XGLMForCausalLM"),
        ("ApertusConfig", "ApertusForCausalLM"),
        ("Zamba2Config", "Zamba2ForCausalLM"),
        ("JambaConfig", "JambaForCausalLM"),
        ("RwkvConfig", "RwkvForCausalLM"),
        ("Mamba2Config", "Mamba2ForCausalLM"),
        ("WhisperConfig", "WhisperForConditionalGeneration"),
        ("PaliGemmaConfig", "PaliGemmaForConditionalGeneration"),
        ("SmolVLMConfig", "SmolVLMForConditionalGeneration"),
        ("VoxtralConfig", "VoxtralForConditionalGeneration"),
    ],
)
def test_the_parameters_are_those_of_the_class(config: str, name: str, tmp_path: Path) -> None:
    made = getattr(transformers, config)()
    assert spec_of(made, tmp_path).parameters == parameters_of(made, name)


def test_windows_and_whole_layers_are_told_apart(tmp_path: Path) -> None:
    config = transformers.AfmoeConfig(num_hidden_layers=8)
    spec = spec_of(config, tmp_path)
    width = 2 * config.num_key_value_heads * config.head_dim
    kept = Counter((cache.kind, cache.elements_per_token, cache.window) for layer in spec.layers for cache in layer.kv)
    assert kept == {("sliding", width, config.sliding_window): 6, ("full", width, None): 2}


def test_a_recurrent_model_keeps_states_and_no_keys(tmp_path: Path) -> None:
    config = transformers.Mamba2Config(num_hidden_layers=2)
    footprint = kv_footprint(spec_of(config, tmp_path), Dtype.BF16)
    inner = config.num_heads * config.head_dim
    conv = (inner + 2 * config.n_groups * config.state_size) * config.conv_kernel
    assert footprint.kv_bytes(8192) == 0
    assert footprint.state_bytes_per_request == 2 * (conv * 2 + inner * config.state_size * 4)


def test_an_encoder_of_sound_is_a_tower_and_its_keys_are_kept_once(tmp_path: Path) -> None:
    config = transformers.WhisperConfig()
    spec = spec_of(config, tmp_path)
    assert [tower.media for tower in spec.towers] == [MediaType.AUDIO]
    crossing = [cache for layer in spec.layers for cache in layer.kv if cache.kind == "image"]
    assert [cache.window for cache in crossing] == [config.max_source_positions] * config.decoder_layers


def test_the_class_that_the_config_names_is_built(tmp_path: Path) -> None:
    config = transformers.GPTNeoConfig(architectures=["GPTNeoForSequenceClassification"])
    assert spec_of(config, tmp_path).parameters == parameters_of(config, "GPTNeoForSequenceClassification")


def test_an_encoder_is_refused_as_one(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"'camembert' is an encoder"):
        spec_of(transformers.CamembertConfig(architectures=["CamembertForMaskedLM"]), tmp_path)


def test_a_class_that_generates_is_planned_though_its_family_encodes(tmp_path: Path) -> None:
    config = transformers.BertConfig(architectures=["BertLMHeadModel"])
    spec = spec_of(config, tmp_path)
    assert spec.parameters == parameters_of(config, "BertLMHeadModel")
    assert {cache.elements_per_token for layer in spec.layers for cache in layer.kv} == {2 * config.hidden_size}


def test_a_decoder_that_cannot_run_without_its_inputs_has_its_heads_cache(tmp_path: Path) -> None:
    config = transformers.XLNetConfig()
    spec = spec_of(config, tmp_path)
    assert kv_footprint(spec, Dtype.BF16).kv_bytes(1000) == config.n_layer * 2 * config.d_model * 2 * 1000


def test_a_family_that_nobody_knows_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "unheard_of", "hidden_size": 64}))
    with pytest.raises(UnsupportedModel, match=r"'model_type': 'unheard_of'"):
        load_model(str(tmp_path))

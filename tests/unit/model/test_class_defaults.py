"""What a config leaves out is what `transformers` would fill in, or an error that names the field."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

import brim.model.class_defaults
from brim.errors import InputError, InvalidConfig, UnsupportedModel
from brim.model.catalogue import entries
from brim.model.config import MULTIMODAL, TEXT, read_config
from brim.records.model import ModelSpec
from tests.conftest import CONFIGS, read_json, shared_config_names

pytest.importorskip("transformers")

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

PARTS = ("thinker_config", "talker_config", "text_config", "vision_config", "audio_config")
NOT_COMPARED = ("quantization_config", "compression_config", "architectures", "talker_config", "token2wav_config")
KNOWN_FAMILIES = sorted(family for family in {**TEXT, **MULTIMODAL} if family in CONFIG_MAPPING)
# Flat configs of these two, which `transformers` reads as if their parts were empty.
FLAT = {"glm4v", "step3p7"}


def real_configs() -> dict[str, dict[str, Any]]:
    """The first config of every family, from the catalogue or from outside."""
    configs = [entry.config for entry in entries().values()]
    configs += [read_json(CONFIGS / name / "config.json") for name in shared_config_names()]
    found: dict[str, dict[str, Any]] = {}
    for config in configs:
        found.setdefault(str(config.get("model_type")), config)
    return {family: config for family, config in found.items() if family in KNOWN_FAMILIES and family not in FLAT}


REAL = real_configs()
TABLE = read_json(Path(brim.model.class_defaults.__file__).with_suffix(".json"))
WRITTEN_WITH = TABLE["written_with"]["transformers"]["version"]
as_written = pytest.mark.skipif(
    Version(transformers.__version__) < Version(WRITTEN_WITH),
    reason=f"the defaults are those of transformers {WRITTEN_WITH}; some classes had others before",
)
READ = {*PARTS, "tie_word_embeddings", *(name for defaults in TABLE["defaults"].values() for name in defaults)}


def filled_in(config: dict[str, Any]) -> dict[str, Any] | None:
    """The config with everything that its class fills in; None where the class refuses it."""
    try:
        made = CONFIG_MAPPING[config["model_type"]].from_dict(copy.deepcopy(config))
    except Exception:  # noqa: BLE001 - whatever the library raises on a bad config
        return None
    filled: dict[str, Any] = made.to_dict()
    return filled


def comparable(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in NOT_COMPARED}


def spec_of(config: dict[str, Any]) -> ModelSpec | InputError:
    try:
        return replace(read_config(config, name="x"), warnings=(), architecture="")
    except InputError as error:
        return error


def sources(family: str) -> list[dict[str, Any]]:
    made: dict[str, Any] = CONFIG_MAPPING[family]().to_dict()
    return [comparable(made), *([comparable(REAL[family])] if family in REAL else [])]


def places(config: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where a config has something that a reader may look at."""
    for name, value in config.items():
        if name in READ:
            yield (*path, name)
        if isinstance(value, dict) and name in PARTS:
            yield from places(value, (*path, name))


@as_written
@pytest.mark.parametrize("family", KNOWN_FAMILIES)
@pytest.mark.parametrize("how", ["left out", "null"])
def test_a_field_left_out_is_filled_in_or_named(family: str, how: str) -> None:
    for config in sources(family):
        for place in list(places(config)):
            damaged = copy.deepcopy(config)
            node = damaged
            for name in place[:-1]:
                node = node[name]
            if how == "null":
                node[place[-1]] = None
            else:
                del node[place[-1]]
            ours = spec_of(damaged)
            if isinstance(ours, InputError):
                assert "config field '" in str(ours), place
                continue
            filled = filled_in(damaged)
            assert filled is None or ours == spec_of(comparable(filled)), f"{family}: {'.'.join(place)} {how}"


@pytest.mark.parametrize("family", sorted(set(MULTIMODAL) & set(CONFIG_MAPPING)))
def test_parts_without_what_equals_their_defaults(family: str) -> None:
    """As `transformers` saves them: a part has only what its class would not fill in."""
    for config in sources(family):
        whole = filled_in(config)
        assert whole is not None
        saved = CONFIG_MAPPING[family].from_dict(copy.deepcopy(config)).to_diff_dict()
        assert _shown(spec_of(comparable(saved))) == _shown(spec_of(comparable(whole)))


@as_written
@pytest.mark.parametrize("family", sorted(set(MULTIMODAL) & set(CONFIG_MAPPING)))
def test_empty_parts(family: str) -> None:
    config: dict[str, Any] = {"model_type": family}
    parts = [part for part in PARTS if part not in NOT_COMPARED]
    config |= {part: {} for part in parts if part in CONFIG_MAPPING[family].sub_configs}
    whole = filled_in(config)
    assert whole is not None
    assert _shown(spec_of(config)) == _shown(spec_of(comparable(whole)))


def _shown(found: ModelSpec | InputError) -> ModelSpec | str:
    return str(found) if isinstance(found, InputError) else found


@as_written
def test_the_table_is_what_the_classes_declare() -> None:
    classes = {kind.model_type: kind for kind in _all_classes()}
    assert set(TABLE["defaults"]) <= set(classes)
    for kind, defaults in TABLE["defaults"].items():
        declared = {field.name: field for field in dataclasses.fields(classes[kind])}
        for name, value in defaults.items():
            own = declared[name].default
            own = declared[name].default_factory() if own is dataclasses.MISSING else own
            assert value == (list(own) if isinstance(own, tuple) else own), f"{kind}.{name}"


def _all_classes() -> Iterator[Any]:
    waiting = list(CONFIG_MAPPING.values())
    while waiting:
        kind = waiting.pop()
        yield kind
        waiting += [part for part in kind.sub_configs.values() if part.__name__ != "AutoConfig"]


def test_layers_that_differ_one_by_one() -> None:
    """Newer releases save Gemma 4's global layers one by one."""
    published = entries()["gemma-4-12b"].config
    saved = comparable(filled_in(published) or {})
    assert "per_layer_config" in saved["text_config"]
    assert spec_of(saved) == spec_of(comparable(published))
    saved["text_config"]["per_layer_config"] = {"0005": {"intermediate_size": 8}}
    with pytest.raises(UnsupportedModel, match=r"per_layer_config\.0005\.intermediate_size"):
        read_config(saved, name="x")
    saved["text_config"]["per_layer_config"] = {"999": {"head_dim": 8}}
    with pytest.raises(InvalidConfig, match="999"):
        read_config(saved, name="x")


def test_sliding_layers_with_more_heads() -> None:
    """Step 3.7's several ways to say that sliding layers have heads of their own."""
    base = {**entries()["step-3.7-flash"].config, "layer_types": ["full_attention", "sliding_attention"] * 23}
    other = {**base, "attention_other_setting": {"num_attention_heads": 96}}
    spec = read_config(other, name="x")
    assert [layer.mixer.heads for layer in spec.layers[:2]] == [64, 96]  # type: ignore[union-attr]
    assert spec == read_config({**base, "num_sliding_attention_heads": 96}, name="x")
    one_by_one = {str(index): {"num_attention_heads": 96} for index in range(1, 45, 2)}
    assert spec == read_config({**base, "per_layer_config": one_by_one}, name="x")


def test_another_kind_of_part_is_refused() -> None:
    config = copy.deepcopy(entries()["gemma-3-4b"].config)
    config["vision_config"]["model_type"] = "clip_vision_model"
    with pytest.raises(UnsupportedModel, match=r"vision_config\.model_type.*clip_vision_model"):
        read_config(config, name="x")
    with pytest.raises(UnsupportedModel, match=r"text_config\.model_type.*'mixtral'"):
        read_config({"model_type": "mistral3", "text_config": {"model_type": "mixtral"}}, name="x")
    with pytest.raises(InvalidConfig, match="'text_config': missing"):
        read_config({"model_type": "mistral3"}, name="x")


def test_layers_apart_are_refused_where_nobody_reads_them() -> None:
    config = {**entries()["llama-3.1-8b"].config, "per_layer_config": {"3": {"num_key_value_heads": 2}}}
    with pytest.raises(UnsupportedModel, match=r"'per_layer_config'.*'llama'"):
        read_config(config, name="x")

from __future__ import annotations

import math

import pytest

from brim.errors import InvalidConfig
from brim.model.fields import ConfigFields


@pytest.mark.parametrize("value", [0, -1, 10**18, 1.5, "4096", True, [4096], {"a": 1}, math.nan])
def test_an_integer_that_is_none_is_named(value: object) -> None:
    with pytest.raises(InvalidConfig, match=r"text_config\.hidden_size"):
        ConfigFields({"hidden_size": value}, "text_config").integer("hidden_size")


def test_missing_and_null() -> None:
    fields = ConfigFields({"q_lora_rank": None, "head_dim": 64})
    assert fields.is_null("q_lora_rank")
    assert not fields.is_null("kv_lora_rank")
    assert fields.integer("q_lora_rank", default=7) == 7
    with pytest.raises(InvalidConfig, match="'hidden_size': missing"):
        fields.integer("hidden_size")


def test_several_spellings() -> None:
    assert ConfigFields({"n_embd": 8}).integer("hidden_size", "n_embd") == 8
    assert ConfigFields({"image_size": [448, 336]}).edge("image_size") == 448


def test_lists_by_layer() -> None:
    fields = ConfigFields({"layer_types": ["a", "b", "c"]})
    assert fields.per_layer("layer_types", 2) == ("a", "b")
    with pytest.raises(InvalidConfig, match="3 entries for 4 layers"):
        fields.per_layer("layer_types", 4)
    with pytest.raises(InvalidConfig, match="must be a list"):
        ConfigFields({"layer_types": "full"}).per_layer("layer_types", 1)


def test_children() -> None:
    nested = ConfigFields({"text_config": {"hidden_size": "x"}}).child("text_config")
    with pytest.raises(InvalidConfig, match=r"text_config\.hidden_size"):
        nested.integer("hidden_size")
    with pytest.raises(InvalidConfig, match="'vision_config': must be an object"):
        ConfigFields({"vision_config": 3}).child("vision_config")

"""Layers of a tower are not those of the language model, whatever their numbers."""

from __future__ import annotations

from brim.model.quantisers.module_rules import RuleBook
from brim.model.quantisers.weight_formats import FP8_CHANNEL
from brim.records.model import Quantisation

TOWER = [
    f"vision_tower.vision_model.encoder.layers.{layer}.{module}"
    for layer in range(2)
    for module in ("self_attn.q_proj", "self_attn.out_proj", "mlp.fc1", "mlp.fc2")
]


def book(*excluded: str) -> RuleBook:
    return RuleBook(Quantisation("compressed-tensors", FP8_CHANNEL, excluded, towers=True))


def test_what_names_a_layer_of_a_tower_says_nothing_of_the_text() -> None:
    rules = book(*TOWER)
    assert rules.in_layer(0, "self_attn.q_proj") == rules.in_layer(1, "mlp.down_proj") == FP8_CHANNEL
    for name in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.down_proj"):
        assert rules.in_tower(f"vision_tower.encoder.layers.{name}") is None


def test_modules_of_a_tower_that_are_not_named_are_quantised() -> None:
    rules = book("vision_tower.encoder.layers.0.self_attn.q_proj")
    assert rules.in_tower("vision_tower.encoder.layers.attn.qkv") is None
    assert rules.in_tower("vision_tower.encoder.layers.mlp.fc1") == FP8_CHANNEL
    assert rules.in_tower("multi_modal_projector.linear_1") == FP8_CHANNEL


def test_blocks_of_a_tower_are_layers_too() -> None:
    rules = book("model.visual.blocks.3.attn.qkv", "model.visual.blocks.3.mlp.linear_fc1")
    assert rules.in_tower("visual.blocks.attn.qkv") is None
    assert rules.in_tower("visual.blocks.mlp.fc1") is None
    assert rules.in_layer(3, "self_attn.q_proj") == FP8_CHANNEL


def test_what_names_a_layer_of_the_text_still_does() -> None:
    rules = book("model.language_model.layers.1.self_attn.q_proj", "model.layers.0.mlp")
    assert rules.in_layer(1, "self_attn.q_proj") is None
    assert rules.in_layer(1, "mlp.down_proj") == FP8_CHANNEL
    assert rules.in_layer(0, "mlp.down_proj") is None

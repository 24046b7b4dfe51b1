"""Whose a tensor is, by the words of its module's path."""

from __future__ import annotations

import pytest

from brim.cli.show.drawing.owners import ModelComponent, Owner, layer_of, op_word, owner_of, part_of
from brim.records.trace import Allocation

LAST = 100


def made(module: str, op: str = "aten.mm.default", freed_at: int = 9) -> Allocation:
    return Allocation(512, op, module, (1,), 3, freed_at)


@pytest.mark.parametrize(
    ("module", "part"),
    [
        ("model.layers.3.self_attn.q_proj", ModelComponent.ATTENTION),
        ("model.layers.3.self_attn.q_norm", ModelComponent.NORM),
        ("model.layers.3.linear_attn", ModelComponent.RECURRENT),
        ("model.layers.3.mixer.in_proj", ModelComponent.RECURRENT),
        ("model.layers.3.mlp.experts.7.up_proj", ModelComponent.EXPERTS),
        ("model.layers.3.mlp.shared_experts", ModelComponent.EXPERTS),
        ("model.layers.3.mlp", ModelComponent.FEED_FORWARD),
        ("model.layers.3", ModelComponent.RESIDUAL),
        ("model.layers.3.mystery", ModelComponent.OTHER),
        ("model.embed_tokens", ModelComponent.RESIDUAL),
        ("model.rotary_emb", ModelComponent.INPUTS),
        ("model.visual.blocks.7.attn.qkv", ModelComponent.ATTENTION),
        ("model.visual.merger.mlp", ModelComponent.HEAD),
        ("model.norm", ModelComponent.NORM),
        ("lm_head", ModelComponent.HEAD),
        ("", ModelComponent.HEAD),
    ],
)
def test_parts(module: str, part: ModelComponent) -> None:
    assert part_of(made(module), LAST) is part


def test_what_attention_keeps_to_the_end_is_kv() -> None:
    assert part_of(made("model.layers.3.self_attn", freed_at=LAST + 1), LAST) is ModelComponent.CACHE
    assert part_of(made("model.layers.3.mlp", freed_at=LAST + 1), LAST) is ModelComponent.FEED_FORWARD


@pytest.mark.parametrize(
    ("module", "op", "name"),
    [
        ("model.layers.1.mlp.up_proj", "aten.mm.default", "mlp.up_proj"),
        ("model.layers.1.mlp", "aten.mul.Tensor", "mlp · mul"),
        ("model.layers.1.norm", "aten._to_copy.default", "norm"),
        ("model.layers.1", "aten.add.Tensor", "residual"),
        ("model.layers.1", "aten.mul.Tensor", "layer · mul"),
        ("model.layers.0", "aten.add.Tensor", "residual"),
        ("model.layers.0.mlp", "aten.mul.Tensor", "mlp · mul (layer 0)"),
        ("model.embed_tokens", "aten.embedding.default", "embed_tokens"),
        ("", "aten.mul.Tensor", "model · mul"),
    ],
)
def test_names_as_seen_from_a_layer(module: str, op: str, name: str) -> None:
    assert owner_of(made(module, op), LAST, "model.layers.1") == Owner(name, part_of(made(module, op), LAST))


def test_layers_and_operations() -> None:
    assert layer_of("model.layers.12.mlp.experts.3") == "model.layers.12"
    assert layer_of("model.layers.12") == "model.layers.12"
    assert layer_of("model.norm2") == layer_of("model.norm2.weight") == layer_of("") == ""
    assert op_word("aten.mul.Tensor") == "mul"
    assert op_word("aten._to_copy.default") == "cast"
    assert op_word("strange") == "strange"

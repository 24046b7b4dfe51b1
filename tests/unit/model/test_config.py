"""Every real config yields a spec, or an error that names what is not supported."""

from __future__ import annotations

from typing import Any

import pytest

from brim.errors import InvalidConfig, UnsupportedModel
from brim.model.catalogue import entries
from brim.model.config import read_config
from brim.model.source import load_model
from brim.records.model import Attention, Dtype
from tests.conftest import CONFIGS, needs_configs, shared_config_names

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
ENCODERS = {"BAAI--bge-reranker-v2-m3", "ibm-granite--granite-embedding-278m-multilingual"}


@needs_configs
@pytest.mark.parametrize("name", shared_config_names())
def test_every_real_config_is_read(name: str) -> None:
    if name in ENCODERS:
        with pytest.raises(UnsupportedModel, match="xlm-roberta"):
            load_model(str(CONFIGS / name))
        return
    spec = load_model(str(CONFIGS / name))
    assert spec.layers
    assert spec.parameters > 10**8
    assert spec.max_positions >= 512


def test_the_catalogue_is_read() -> None:
    assert len(entries()) >= 40
    for name in entries():
        assert load_model(name).parameters > 10**8


def test_llama_3_1_8b() -> None:
    spec = read_config(LLAMA, name="llama")
    assert spec.parameters == 8_030_261_248
    assert spec.dtype is Dtype.BF16
    assert len(spec.layer_groups) == 1
    assert spec.layers[0].mixer == Attention(heads=32, kv_heads=8, head_dim=128, value_dim=128)


def test_an_unknown_type_is_not_read_as_llama() -> None:
    with pytest.raises(UnsupportedModel, match="'llama_next'"):
        read_config({**LLAMA, "model_type": "llama_next"}, name="x")
    with pytest.raises(InvalidConfig, match="'model_type': missing"):
        read_config({key: value for key, value in LLAMA.items() if key != "model_type"}, name="x")


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
@pytest.mark.parametrize("value", [None, 0, -5, 10**18, "big", 2.5, float("nan"), True, []])
def test_a_bad_dimension_is_named(field: str, value: object) -> None:
    with pytest.raises(InvalidConfig, match=field):
        read_config({**LLAMA, field: value}, name="x")


def test_class_defaults_of_a_sparse_config() -> None:
    """Gemma 3 4B publishes little more than its widths; the rest is its class's defaults."""
    sparse = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    spec = read_config(sparse, name="gemma")
    mixers = [layer.mixer for layer in spec.layers]
    assert all(isinstance(m, Attention) and (m.heads, m.kv_heads, m.head_dim) == (8, 4, 256) for m in mixers)
    windows = [layer.kv[0].window for layer in spec.layers]
    assert windows == [None if (index + 1) % 6 == 0 else 1024 for index in range(34)]
    assert spec.vocab == 262208
    assert not [tensor for tensor in spec.tensors if tensor.name == "lm_head"]


def test_missing_and_null_differ_for_the_query_rank() -> None:
    base = dict(entries()["deepseek-v2-lite"].config)
    assert base["q_lora_rank"] is None
    direct = read_config(base, name="x")
    del base["q_lora_rank"]
    ranked = read_config(base, name="x")
    assert any(t.name == "self_attn.q_proj" for t in direct.layers[0].tensors)
    assert any(t.name == "self_attn.q_a_proj" for t in ranked.layers[0].tensors)


def test_unknown_layer_types_are_refused() -> None:
    config = {**LLAMA, "model_type": "qwen3_next", "layer_types": ["full_attention", "quantum_attention"] * 16}
    with pytest.raises(UnsupportedModel, match="quantum_attention"):
        read_config({**config, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}, name="x")


def test_more_visits_than_experts() -> None:
    config = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 9}
    with pytest.raises(InvalidConfig, match="num_experts_per_tok"):
        read_config(config, name="x")

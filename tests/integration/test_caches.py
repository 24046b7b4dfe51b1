"""KV and state by dimensions against the bytes that a tiny real model leaves in its cache."""

from __future__ import annotations

from typing import Any

import pytest

from brim.model.config import read_config
from brim.model.kv import KvStorage, kv_footprint
from brim.records.model import Dtype
from tests.integration.meta_models import known_types
from tests.integration.tiny_models import FAMILIES, tiny_config, tiny_model

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

TOKENS = 40
EXPANDED_BEFORE = ("deepseek_v32", "glm_moe_dsa")


def cached_bytes(cache: Any) -> tuple[int, int]:
    """(bytes in the cache, bytes of the one token that each sliding layer has dropped ahead of the next step)."""
    held = ahead = 0
    for layer in cache.layers:
        tensors = [part for value in vars(layer).values() for part in _tensors(value)]
        held += sum(part.numel() * part.element_size() for part in tensors if part.dim() >= 2)
        if type(layer).__name__ == "DynamicSlidingWindowLayer":
            ahead += sum(part.numel() // part.shape[-2] * part.element_size() for part in (layer.keys, layer.values))
    return held, ahead


def _tensors(value: Any) -> list[Any]:
    parts = value if isinstance(value, list | tuple) else value.values() if isinstance(value, dict) else [value]
    return [part for part in parts if torch.is_tensor(part)]


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_the_cache_of_a_tiny_model(kind: str) -> None:
    if kind not in known_types():
        pytest.skip(f"transformers has no {kind}")
    model = tiny_model(kind).to(torch.bfloat16)
    with torch.no_grad():
        output = model(input_ids=torch.randint(3, 128, (1, TOKENS)), use_cache=True)
    held, ahead = cached_bytes(output.past_key_values)
    spec = read_config(tiny_config(kind), name=kind)
    expected = {kv_footprint(spec, Dtype.BF16).request_bytes(TOKENS)}
    if kind in EXPANDED_BEFORE:  # older releases kept per-head keys and values where newer ones keep the latent
        expected.add(kv_footprint(spec, Dtype.BF16, storage=KvStorage(keeps_latent=False)).request_bytes(TOKENS))
    assert held + ahead in expected

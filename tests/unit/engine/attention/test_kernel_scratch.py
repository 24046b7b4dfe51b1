"""How decoding is cut into parts: the scratch fits every call, and stays small whatever the model."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from brim.engine.attention.triton_backend import TritonAttention  # noqa: E402
from brim.engine.kv.geometry import LayerGeometry  # noqa: E402


@pytest.mark.parametrize(
    "layer",
    [
        LayerGeometry(8, 128, 128, query_heads=32),
        LayerGeometry(1, 576, 512, query_heads=128, value_in_key=True),
        LayerGeometry(4, 256, 256, window=1024, query_heads=16),
    ],
)
def test_the_scratch_is_bounded_and_large_enough(layer: LayerGeometry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132))
    attention = TritonAttention((layer,), 256, 160_000, torch.device("cpu"))
    held = attention._scratch.partials.numel()
    assert held * 4 <= 256 << 20
    for batch in (1, 3, 64, 256):
        splits = attention._splits(batch, layer.query_heads, layer.kv_heads, layer.value_dim, layer.window)
        assert splits == 1 or batch * layer.query_heads * splits * layer.value_dim <= held

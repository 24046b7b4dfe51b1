"""KV of the models that other planners get wrong, worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.model.catalogue import entries
from brim.model.kv import KvStorage, kv_footprint
from brim.model.source import load_model
from brim.records.model import Dtype

TOKENS = 8192
BF16 = 2


def kv_at(model: str, tokens: int = TOKENS, **how: object) -> int:
    return kv_footprint(load_model(model), Dtype.BF16, **how).kv_bytes(tokens)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        # 61 layers, a latent of 512 and a rotary key of 64
        ("deepseek-v3", 61 * (512 + 64) * BF16 * TOKENS),
        # 62 layers, every sixth sees everything, the others 1,024 tokens; 16 heads of 128, keys and values
        ("gemma-3-27b", 2 * 16 * 128 * BF16 * (10 * TOKENS + 52 * 1024)),
        # 60 layers; 10 global ones with 4 heads of 512, 50 sliding ones with 16 heads of 256
        ("gemma-4-31b", BF16 * (10 * 2 * 4 * 512 * TOKENS + 50 * 2 * 16 * 256 * 1024)),
        # 24 layers, half of them 128 tokens; 8 heads of 64
        ("gpt-oss-20b", 2 * 8 * 64 * BF16 * (12 * TOKENS + 12 * 128)),
        # 64 layers, every fourth has KV: 4 heads of 256
        ("qwen3.5-27b", 16 * 2 * 4 * 256 * BF16 * TOKENS),
        # 52 layers, one head of 128
        ("granite-20b-code", 52 * 2 * 1 * 128 * BF16 * TOKENS),
        # 80 layers of which 49 attend, with 8 heads of 128
        ("nemotron-super-49b", 49 * 2 * 8 * 128 * BF16 * TOKENS),
    ],
)
def test_kv_at_8192_tokens(model: str, expected: int) -> None:
    assert kv_at(model) == expected


def test_state_of_a_hybrid() -> None:
    """48 layers of 48 heads, a 128 × 128 state in fp32 and a convolution over 10,240 channels, four wide."""
    footprint = kv_footprint(load_model("qwen3.5-27b"), Dtype.BF16)
    assert footprint.state_bytes_per_request == 48 * (48 * 128 * 128 * 4 + 10240 * 4 * BF16)


def test_types_of_cache() -> None:
    spec = load_model("llama-3.1-8b")
    plain = kv_footprint(spec, Dtype.BF16)
    assert plain.bytes_per_token == 131072
    assert plain.scale_bytes == 0
    for small in (Dtype.FP8, Dtype.INT8):
        footprint = kv_footprint(spec, small)
        assert footprint.bytes_per_token == 65536
        assert footprint.scale_bytes == 32 * 2 * 4


def test_ranks_share_heads_and_replicate_when_there_are_fewer() -> None:
    spec = load_model("llama-3.1-8b")  # 8 KV heads
    assert kv_footprint(spec, Dtype.BF16, 4).bytes_per_token == 131072 // 4
    assert kv_footprint(spec, Dtype.BF16, 8).bytes_per_token == 131072 // 8
    assert kv_footprint(spec, Dtype.BF16, 16).bytes_per_token == 131072 // 8
    assert kv_footprint(load_model("deepseek-v3"), Dtype.BF16, 8).bytes_per_token == 61 * 576 * 2


def test_an_engine_may_store_more() -> None:
    assert kv_at("gemma-3-27b", storage=KvStorage(keeps_window=False)) == 62 * 2 * 16 * 128 * BF16 * TOKENS
    expanded = kv_at("deepseek-v3", storage=KvStorage(keeps_latent=False))
    assert expanded == 61 * 128 * (192 + 128) * BF16 * TOKENS
    slack = kv_at("gpt-oss-20b", storage=KvStorage(window_slack=512))
    assert slack == 2 * 8 * 64 * BF16 * (12 * TOKENS + 12 * (128 + 512))


def test_borrowed_kv_is_kept_once() -> None:
    """Gemma 4 E2B: the last 20 of 35 layers read the KV of earlier ones."""
    kinds = {kind.kind: kind.layers for kind in kv_footprint(load_model("gemma-4-e2b"), Dtype.BF16).kinds}
    assert kinds == {"sliding": 12, "full": 3}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(entries())), st.integers(1, 1 << 20), st.integers(1, 4096))
def test_longer_requests_keep_no_less(model: str, tokens: int, more: int) -> None:
    footprint = kv_footprint(load_model(model), Dtype.BF16)
    assert footprint.kv_bytes(tokens) <= footprint.kv_bytes(tokens + more)
    assert footprint.kv_bytes(tokens) <= footprint.bytes_per_token * tokens + footprint.kv_bytes(1) * 128


def test_q8_0_takes_34_bytes_for_32_values() -> None:
    found = kv_footprint(load_model("llama-3.1-8b"), Dtype.INT8, storage=KvStorage(q8_0=True))
    assert found.bytes_per_token == 32 * 2 * 8 * 128 // 32 * 34
    assert found.scale_bytes == 0
    plain = kv_footprint(load_model("llama-3.1-8b"), Dtype.INT8)
    assert (plain.bytes_per_token, plain.scale_bytes) == (32 * 2 * 8 * 128, 32 * 2 * 4)


@pytest.mark.parametrize(("dtype", "latent"), [(Dtype.BF16, 2 * (512 + 64)), (Dtype.FP8, 512 + 4 * 4 + 2 * 64)])
def test_an_indexer_keeps_fp8_keys_with_their_scales(dtype: Dtype, latent: int) -> None:
    """DeepSeek V3.2 as vLLM and SGLang store it: 132 bytes of index keys, and 656 of a packed fp8 latent."""
    found = kv_footprint(load_model("deepseek-v3.2"), dtype, storage=KvStorage(packed_sparse=True))
    assert {kind.kind: kind.bytes_per_token // kind.layers for kind in found.kinds} == {
        "latent": latent,
        "index": 128 + 4,
    }


def test_a_latent_without_an_indexer_is_not_packed() -> None:
    storage = KvStorage(packed_sparse=True)
    found = kv_footprint(load_model("deepseek-v3"), Dtype.FP8, storage=storage)
    assert found.bytes_per_token == 61 * (512 + 64)

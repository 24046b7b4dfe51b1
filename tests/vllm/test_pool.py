"""The pool that plans for vLLM count with, against vLLM's own grouping of layers."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from brim.model.source import load_model
from brim.planning.devices import find_device
from brim.planning.vllm.pool import kv_pool
from brim.planning.vllm.run import plan_run
from brim.records.model import Dtype, ModelSpec
from tests.vllm.starts import MODEL

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="make test-vllm installs it")

LENGTH, STEP = 2048, 256
MODELS = (
    *("gemma-2-9b", "gemma-3-1b", "gemma-3-12b", "gemma-3-27b", "gpt-oss-20b", "gpt-oss-120b"),
    *("nemotron-nano-12b-v2", "qwen3-next-80b", "llama-3.1-8b"),
)


@pytest.mark.parametrize("model", MODELS)
def test_blocks_and_what_a_request_takes_are_those_of_vllm(model: str) -> None:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.core.kv_cache_utils import (
        _max_memory_usage_bytes_from_groups,
        _pool_bytes_per_block,
        get_kv_cache_groups,
    )

    config = EngineArgs(model=str(MODEL), max_model_len=LENGTH, max_num_batched_tokens=STEP).create_engine_config()
    config.scheduler_config.async_scheduling = True  # as on a GPU
    config.cache_config.kv_cache_layout = "LBNHC"  # newer versions resolve one before they group
    spec = load_model(model)
    groups = get_kv_cache_groups(config, specs_of(spec))
    size = _pool_bytes_per_block(config, groups)
    pool = kv_pool(spec, Dtype.BF16, 1)
    run = plan_run(spec, find_device("h200"), Dtype.BF16, batch_tokens=STEP, max_len=LENGTH)
    assert pool.block_bytes == size
    assert (pool.blocks_of_request(run) - 1) * size == _max_memory_usage_bytes_from_groups(config, groups)


def specs_of(spec: ModelSpec) -> dict[str, Any]:
    """The caches of every layer as vLLM describes them; a state fills a block of attention beside it."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec

    kinds = kv_pool(spec, Dtype.BF16, 1).kinds
    recurrent = next((kind for kind in kinds if kind.recurrent), None)
    tokens = recurrent.block_tokens if recurrent else 16
    found: dict[str, Any] = {}
    for number, layer in enumerate(spec.layers):
        for cache in layer.kv:
            shape = {"num_kv_heads": cache.heads, "head_size": cache.elements_per_head // 2, "dtype": torch.bfloat16}
            window = {"sliding_window": cache.window} if cache.window else {}
            kind: Any = SlidingWindowSpec if window else FullAttentionSpec
            found[f"layers.{number}.attention"] = kind(block_size=tokens, **shape, **window)
        if layer.state and recurrent is not None:
            shapes = ((recurrent.page_bytes // 2,),)
            found[f"layers.{number}.state"] = MambaSpec(block_size=LENGTH, shapes=shapes, dtypes=(torch.bfloat16,))
    return found

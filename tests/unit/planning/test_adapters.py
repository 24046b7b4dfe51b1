"""LoRA adapters: bytes as vLLM makes room for them, and as it was measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import brim
from brim.errors import InvalidRequest
from brim.model.source import load_model
from brim.model.weights import weight_bytes
from brim.planning.placement.adapters import adapter_bytes
from brim.planning.placement.record import Adapters

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"


def measured_beyond_weights(name: str, layers: int | None) -> int:
    """What vLLM 0.26 held after loading beyond the model and its table of positions, on an H200."""
    result = json.loads((RESULTS / f"inside_vllm_{name}_h200.json").read_text(encoding="utf-8"))
    spec = load_model("llama-3.1-8b")
    held = next(item["measured_bytes"] for item in result["fit"]["items"] if item["name"] == "weights")
    own = weight_bytes(replace(spec, layers=spec.layers[:layers])).total_bytes
    seqs = result["options"]["max_seqs"]
    tables = seqs * 4 * spec.vocab  # the largest of what is kept for each request: counts of its tokens
    return int(held - own - spec.position_table_bytes - tables)


def test_four_adapters_of_rank_64_take_what_was_measured() -> None:
    spec = load_model("llama-3.1-8b")
    planned = adapter_bytes(replace(spec, layers=spec.layers[:2]), Adapters(rank=64, count=4), ranks=1)
    modules = 2 * (8192 + 5120 + 5120 + 8192 + 3 * 18432)  # q, k, v, o; gate, up and down of two layers
    assert planned == (modules + 2 * (4096 + 128256)) * 64 * 4 * 2
    with_adapters = measured_beyond_weights("lora_two_layers", 2)
    without = measured_beyond_weights("llama_3.1_8b", None)
    assert abs(with_adapters - without - planned) < 0.06 * planned  # other tables, of 64 requests and of 256


def test_ranks_hold_whole_inputs_of_rows_and_whole_outputs_of_columns() -> None:
    spec = load_model("llama-3.1-8b")
    vocabulary = 2 * (4096 + 128256)
    each = 4096 + 4096 // 4 + 2 * (4096 + 1024 // 4) + 4096 // 4 + 4096  # q, k, v; o by columns
    each += 2 * (4096 + 14336 // 4) + 14336 // 4 + 4096
    assert adapter_bytes(spec, Adapters(16, 1), ranks=4) == (32 * each + vocabulary) * 16 * 2


def test_experts_have_adapters_too_and_a_class_without_vocabulary_none_there() -> None:
    mixture, dense = load_model("qwen3-30b-a3b"), load_model("qwen2.5-7b")
    attention = (2048 + 4096) + 2 * (2048 + 512) + (4096 + 2048)
    experts = 128 * 3 * (2048 + 768)
    vocabulary = 2 * (2048 + 151936)
    each = attention + experts + 2048 + 128  # and the router
    assert adapter_bytes(mixture, Adapters(8, 2), ranks=1) == (48 * each + vocabulary) * 8 * 2 * 2
    assert adapter_bytes(dense, Adapters(8, 1), ranks=1) % (8 * 2 * 28) == 0


def test_the_ledger_and_the_command_have_them() -> None:
    plain = brim.plan("llama-3.1-8b", gpu="h200", engine="vllm", max_len=8192, trace=False)
    plan = brim.plan("llama-3.1-8b", gpu="h200", engine="vllm", max_len=8192, lora_rank=32, loras=8, trace=False)
    more = adapter_bytes(load_model("llama-3.1-8b"), Adapters(32, 8), ranks=1)
    assert plan.item("weights").bytes == plain.item("weights").bytes + more
    assert plan.weights_bytes == plain.weights_bytes
    assert "8 LoRA adapters of rank 32" in plan.item("weights").detail
    at = plan.command.index("--max-loras")
    assert plan.command[at - 1 : at + 4] == ("--enable-lora", "--max-loras", "8", "--max-lora-rank", "32")
    assert plan.engine_default is not None
    assert plain.engine_default is not None
    assert plan.engine_default.kv_tokens < plain.engine_default.kv_tokens


def test_stages_share_the_adapters() -> None:
    spec = load_model("llama-3.1-8b")
    plans = [
        brim.plan(spec, gpu="h200", engine="vllm", pp=pp, lora_rank=64, loras=2, max_len=8192, trace=False)
        for pp in (1, 4)
    ]
    whole, stages = plans
    held = [next(item.bytes for item in one.items if item.name == "weights") for one in stages.rank_ledgers]
    assert sum(held) == whole.item("weights").bytes


def test_a_vocabulary_that_vllm_refuses_is_refused() -> None:
    large = replace(load_model("llama-3.1-8b"), vocab=262_144)
    with pytest.raises(InvalidRequest, match="vocabulary of 262,144"):
        brim.plan(large, gpu="h200", engine="vllm", lora_rank=16)

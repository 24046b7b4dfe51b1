"""What a plan prints for vLLM, against every size that Brim's fit has proven inside vLLM on an H200."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import brim
from brim.model.source import load_model
from brim.model.weights import weight_bytes
from brim.planning.devices import find_device
from brim.planning.vllm.attention import most_splits
from brim.planning.vllm.held import Held, held_under_worst_load
from brim.planning.vllm.run import VllmRun, plan_run
from brim.planning.vllm.worst import scored_chunk
from brim.records.model import Dtype, ModelSpec
from brim.records.plan import MemoryPlan
from brim.units import GIB, MIB

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
BELOW_BAR = 0.02
DIED_BYTES = 130_751_982_306  # of KV, for the 8B: stock vLLM 0.26 was out of memory after 10 s of load
PRINTED = {
    "llama_3.1_8b": "llama-3.1-8b",
    "start_cold": "llama-3.1-8b",
    "start_warm": "llama-3.1-8b",
    "start_stored": "llama-3.1-8b",
    "thief": "llama-3.1-8b",
    "qwen3_30b_a3b": "qwen3-30b-a3b",
    "nemotron_nano_12b_v2": "nemotron-nano-12b-v2",
    "gemma_3_27b": "gemma-3-27b",
}
NOT_PRINTED = {"llama_3.1_8b_v1", "drafts_two_layers", "lora_two_layers"}  # settings that `brim plan` does not have
WITHOUT_FIT = {"llama_3.1_8b_stock_same_size", "start_stock", "thief_stock", "throughput"}


def stored(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"inside_vllm_{name}_h200.json").read_text())
    return found


def measured(row: dict[str, Any]) -> dict[str, int]:
    return {item["name"]: item["measured_bytes"] for item in row["fit"]["items"]}


def printed_bytes(plan: MemoryPlan) -> int:
    return int(plan.flags[plan.flags.index("--kv-cache-memory-bytes") + 1])


def limits(row: dict[str, Any]) -> dict[str, int]:
    return {name: row["options"][name] for name in ("max_len", "max_seqs", "batch_tokens")}


def test_every_stored_fit_is_compared() -> None:
    files = {
        path.name.removeprefix("inside_vllm_").removesuffix("_h200.json") for path in RESULTS.glob("inside_vllm_*")
    }
    assert files == {*PRINTED, *NOT_PRINTED, *WITHOUT_FIT}


@pytest.mark.parametrize("name", PRINTED)
def test_what_is_printed_is_proven_and_no_more_than_a_little_less(name: str) -> None:
    row = stored(name)
    images = {"images_per_prompt": 0} if name == "gemma_3_27b" else {}
    neighbours = max(0, measured(row)["neighbours"] - 9_240_576)  # of a thief, beyond what every H200 there had
    plan = brim.plan(PRINTED[name], gpu="h200", engine="vllm", reserve=neighbours, **limits(row), **images)
    proven = row["fit"]["kv_cache_memory_bytes"]
    assert proven * (1 - BELOW_BAR) <= printed_bytes(plan) <= proven
    assert plan.proof is not None
    assert plan.proof.to_json() == {"proven": True, "unproven": [], "margin_bytes": 0}


@pytest.mark.parametrize("name", sorted(NOT_PRINTED))
def test_the_same_rules_hold_for_fits_of_other_settings(name: str) -> None:
    """A runner that was forced, prompt lookup, LoRA: KV is what is left beside weights, these and the canary."""
    row = stored(name)
    spec, run = started(row)
    held = held_under_worst_load(spec, find_device("h200"), run)
    adapters = lora_bytes(spec, **row["options"]["extra"]) if "lora" in name else 0
    left = row["fit"]["total_bytes"] - weight_bytes(spec).rank_bytes - adapters - held.total - 256 * MIB
    assert row["fit"]["kv_bytes"] * (1 - BELOW_BAR) <= left <= row["fit"]["kv_bytes"]


def lora_bytes(spec: ModelSpec, *, max_loras: int, max_lora_rank: int, **_: object) -> int:
    """Two matrices for every projection of a dense layer, the embedding and the head."""
    hidden, inner, (heads, kv_heads, head) = 4096, 14336, (32, 8, 128)
    attention = 4 * hidden + (2 * heads + 2 * kv_heads) * head
    layer = attention + 2 * (hidden + inner) + inner + hidden
    return max_loras * max_lora_rank * (len(spec.layers) * layer + 2 * (spec.vocab + hidden)) * 2


@pytest.mark.parametrize("name", sorted({*PRINTED, *NOT_PRINTED} - {"thief"}))
def test_each_line_is_about_what_was_measured(name: str) -> None:
    """The worst step, what stands outside torch, what was made before the step; and together never less."""
    row = stored(name)
    spec, run = started(row)
    held, seen = held_under_worst_load(spec, find_device("h200"), run), measured(row)
    assert 0.995 * seen["activation"] <= held.step <= 1.31 * seen["activation"]
    outside = held.context + held.libraries + held.driver_graphs
    assert outside == pytest.approx(seen["context"] + seen["neighbours"], abs=40 * MIB)
    if "lora" not in name:
        made = held.made_at_load + held.kept
        assert made == pytest.approx(seen["weights"] - weight_bytes(spec).rank_bytes, abs=50 * MIB)
    assert held.step + held.slack + held.graph_pool >= seen["activation"] + seen["workspace"] + seen["graphs"]


def started(row: dict[str, Any]) -> tuple[ModelSpec, VllmRun]:
    """The model and the run of a stored fit, as vLLM chose them."""
    names = {
        "llama31-8b": "llama-3.1-8b",
        "google--gemma-3-27b-it": "gemma-3-27b",
        "Qwen--Qwen3-30B-A3B": "qwen3-30b-a3b",
    }
    spec = load_model(names.get(row["model"], "nemotron-nano-12b-v2"))
    spec = replace(spec, layers=spec.layers[: row["options"]["layers"]], towers=())
    speculation = row["options"]["extra"].get("speculative_config", {})
    run = plan_run(
        spec,
        find_device("h200"),
        Dtype.BF16,
        draft_tokens=speculation.get("num_speculative_tokens", 0),
        first_runner=row["runner"] == "vllm.v1.worker.gpu_model_runner",
        **limits(row),
    )
    return spec, run


def test_the_size_that_died_is_not_printed_again() -> None:
    plan = brim.plan("llama-3.1-8b", gpu="h200", engine="vllm", max_len=8192, max_seqs=256, batch_tokens=8192)
    assert printed_bytes(plan) < DIED_BYTES - GIB


def test_the_command_sets_the_allocator_that_the_size_counts_on() -> None:
    one = brim.plan("llama-3.1-8b", gpu="h200", engine="vllm", max_len=8192)
    assert one.commands[0].env == (("PYTORCH_ALLOC_CONF", "expandable_segments:True"),)
    assert one.commands[0].to_json()["env"] == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert (one.shell or "").startswith("PYTORCH_ALLOC_CONF=expandable_segments:True vllm serve ")
    ranks = brim.plan("llama-3.1-8b", gpu="2xh200", engine="vllm", max_len=8192)
    assert ranks.commands[0].env == ()  # ranks open each other's memory by handles
    other = brim.plan("llama-3.1-8b", gpu="mi300x", engine="vllm", max_len=8192)
    assert other.commands[0].env == ()  # segments grow with CUDA only


def test_the_first_runner_is_told_to_cut_prompts_that_may_be_scored() -> None:
    asked = {"gpu": "h200", "engine": "vllm", "max_len": 8192, "max_seqs": 256, "batch_tokens": 8192}
    first, second = brim.plan("qwen3-30b-a3b", **asked), brim.plan("llama-3.1-8b", **asked)
    assert "--long-prefill-token-threshold" not in second.flags
    chunk = int(first.flags[first.flags.index("--long-prefill-token-threshold") + 1])
    logits = chunk * load_model("qwen3-30b-a3b").vocab * (2 + 4 + 4)
    assert 1024 <= chunk < 8192
    assert logits <= first.activation_bytes
    assert any("--long-prefill-token-threshold" in warning for warning in first.warnings)
    short = brim.plan("qwen3-30b-a3b", **{**asked, "max_len": 1024})
    assert "--long-prefill-token-threshold" not in short.flags  # no prompt is longer


def test_a_chunk_is_never_less_than_a_block_of_a_hybrid() -> None:
    """Prompts of hybrids advance by whole blocks: less would stop them."""
    spec = load_model("nemotron-nano-12b-v2")
    run = plan_run(spec, find_device("h200"), Dtype.BF16, batch_tokens=2048, max_seqs=1, max_len=8192)
    assert scored_chunk(spec, run) >= 1024


@pytest.mark.parametrize(
    ("tiles", "context", "splits"),
    [(8, 64, 15), (8, 16, 14), (16, 64, 8), (106, 64, 1), (8, 4, 1), (1, 1024, 109)],
)
def test_splits_are_the_fewest_that_nearly_fill_the_device(tiles: int, context: int, splits: int) -> None:
    assert most_splits(tiles, context) == splits


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"model": "deepseek-v2-lite", "gpu": "h200"}, "MLA"),
        ({"model": "qwen2.5-vl-7b", "gpu": "h200"}, "images or audio"),
        ({"model": "llama-3.1-8b", "gpu": "2xh200"}, "several ranks"),
        ({"model": "llama-3.1-8b", "gpu": "h200", "weights": "fp8"}, "quantised weights"),
        ({"model": "llama-3.1-8b", "gpu": "h200", "kv_dtype": "fp8"}, "a KV cache in fp8"),
        ({"model": "llama-3.1-8b", "gpu": "rtx-4090"}, "this GPU"),
        ({"model": "llama-3.1-8b", "gpu": "h200", "draft": "llama-3.2-1b"}, "a draft model"),
    ],
)
def test_what_was_never_proven_is_said_and_has_a_margin(asked: dict[str, Any], words: str) -> None:
    plan = brim.plan(engine="vllm", max_len=4096, max_seqs=16, batch_tokens=2048, **asked)
    assert plan.proof is not None
    assert words in plan.proof.unproven
    assert plan.proof.margin_bytes == plan.activation_bytes // 4 > 0
    assert any("no fit of this kind" in warning and words in warning for warning in plan.warnings)


@settings(max_examples=150, deadline=None)
@given(
    model=st.sampled_from(
        ["llama-3.1-8b", "qwen3-30b-a3b", "gemma-2-9b", "nemotron-nano-12b-v2", "deepseek-v2-lite", "qwen3-next-80b"]
    ),
    gpus=st.tuples(st.integers(30, 400), st.integers(30, 400)),
    steps=st.tuples(st.integers(256, 32768), st.integers(256, 32768)),
    seqs=st.tuples(st.integers(1, 256), st.integers(1, 256)),
    length=st.sampled_from([64, 2048, 8192, 32768]),
)
def test_a_larger_device_prints_no_less_and_a_larger_load_no_more(
    model: str, gpus: tuple[int, int], steps: tuple[int, int], seqs: tuple[int, int], length: int
) -> None:
    def size(gpu: int, step: int, running: int) -> int | None:
        plan = brim.plan(
            model, gpu=f"{gpu}GiB", engine="vllm", max_len=length, batch_tokens=step, max_seqs=running, graphs=True
        )
        return printed_bytes(plan) if plan.fits else None

    (small, large), (short, long), (few, many) = sorted(gpus), sorted(steps), sorted(seqs)
    base = size(small, short, few)
    assume(base is not None)
    assert base is not None
    assert (size(large, short, few) or 0) >= base
    assert (size(small, long, few) or 0) <= base
    assert (size(small, short, many) or 0) <= base


def test_lines_add_up() -> None:
    assert Held(1, 2, 3, 4, 5, 6, 7, 8, 9).total == 45

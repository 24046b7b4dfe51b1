"""What vLLM does by itself, against real starts: its own figures on an H200, and rules that hold for any device."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import brim
from brim.model.catalogue import entries
from brim.model.source import load_model
from brim.model.weights import weight_bytes
from brim.planning.devices import catalogue, find_device
from brim.planning.vllm.default import engine_default
from brim.planning.vllm.pool import kv_pool
from brim.planning.vllm.run import plan_run
from brim.records.model import Dtype, ModelSpec
from brim.records.plan import EngineDefault
from brim.units import GIB
from tests.conftest import CONFIGS, needs_configs

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
RECORDED = json.loads((RESULTS / "vllm_rows_h200.json").read_text())
TRUTH = CONFIGS.parent / "truth" / "vllm_h200.json"
KV_BAR, ACTIVATION_BAR, FRACTION_BAR = 0.003, 0.10, 0.01


def predicted(row: dict[str, Any], source: str) -> EngineDefault:
    """The prediction for a recorded start, which may have had fewer layers and no images."""
    spec = load_model(source)
    spec = replace(spec, layers=spec.layers[: row["layers"]], towers=spec.towers if row.get("media") else ())
    kv_dtype = Dtype.FP8 if row.get("kv_dtype") == "fp8" else Dtype.BF16
    return default_of(spec, kv_dtype, row["max_num_batched_tokens"], row["max_num_seqs"], row["max_model_len"])


def default_of(
    spec: ModelSpec, kv_dtype: Dtype, tokens: int, seqs: int, length: int, gpu: str = "h200"
) -> EngineDefault:
    device = find_device(gpu)
    run = plan_run(spec, device, kv_dtype, batch_tokens=tokens, max_seqs=seqs, max_len=length)
    return engine_default(spec, device, weight_bytes(spec).rank_bytes, run)


def named(row: dict[str, Any]) -> str:
    return f"{row['model']}-{row['max_num_batched_tokens']}-{row['layers']}" + ("-media" if row.get("media") else "")


@pytest.mark.parametrize("row", RECORDED["rows"], ids=named)
def test_recorded_starts_are_predicted(row: dict[str, Any]) -> None:
    found = predicted(row, row["model"])
    assert found.kv_tokens == pytest.approx(row["kv_tokens"], rel=KV_BAR)
    assert found.activation_bytes == pytest.approx(row["profiled_peak_activation_bytes"], rel=ACTIVATION_BAR)
    assert found.starts


@needs_configs
@pytest.mark.skipif(not TRUTH.exists(), reason="the measured truth is not here")
def test_the_known_starts_and_the_known_death_are_predicted() -> None:
    truth = json.loads(TRUTH.read_text())
    for row in truth["rows"]:
        found = predicted(row, str(CONFIGS / row["model"]))
        assert found.kv_tokens == pytest.approx(row["kv_tokens"], rel=KV_BAR)
        assert found.activation_bytes == pytest.approx(row["profiled_peak_activation_bytes"], rel=ACTIVATION_BAR)
    death = truth["dies_under_load"]
    at = predicted({**death, "layers": None}, str(CONFIGS / death["model"])).dies_from_fraction
    assert max(death["survives_at"]) < at <= min(death["dies_at"])


def test_a_start_under_load_left_what_the_fraction_says() -> None:
    """Memory that stayed free under load, given to KV instead, is the fraction from which the load does not fit."""
    row = next(row for row in RECORDED["rows"] if "under_load" in row)
    least_free = min(reading["free"] for reading in row["under_load"].values())
    measured = row["gpu_memory_utilization"] + least_free / row["total_bytes"]
    assert predicted(row, row["model"]).dies_from_fraction == pytest.approx(measured, abs=FRACTION_BAR)


def test_limits_of_none_are_those_of_the_server_on_such_a_device() -> None:
    spec = load_model("llama-3.1-8b")
    large, small = (plan_run(spec, find_device(gpu), Dtype.BF16) for gpu in ("h200", "l40s"))
    a100 = plan_run(spec, find_device("a100"), Dtype.BF16)
    assert (large.batch_tokens, large.max_seqs, large.max_len) == (8192, 1024, 131072)
    assert (small.batch_tokens, small.max_seqs) == (a100.batch_tokens, a100.max_seqs) == (2048, 256)


def test_a_context_that_does_not_fit_is_said() -> None:
    spec, device = load_model("llama-3.1-8b"), find_device("24GiB")
    weights = weight_bytes(spec).rank_bytes
    whole = engine_default(spec, device, weights, plan_run(spec, device, Dtype.BF16))
    shorter = engine_default(spec, device, weights, plan_run(spec, device, Dtype.BF16, max_len=8192))
    assert not whole.starts
    assert whole.kv_tokens < whole.max_len == spec.max_positions
    assert shorter.starts


def test_an_indexer_shares_the_blocks_of_the_layers_it_serves() -> None:
    """One block table for both: a request takes as many blocks as its tokens fill."""
    spec = load_model("glm-5.3-fp8")
    run = plan_run(spec, find_device("h200"), Dtype.BF16, max_len=200_000, ranks=8)
    assert kv_pool(spec, Dtype.BF16, 8).blocks_of_request(run) == 1 + 200_000 // 16
    default = brim.plan("glm-5.3-fp8", gpu="8xh200", max_len=200_000, engine="vllm").engine_default
    assert default is not None
    assert default.starts
    assert default.kv_tokens > 200_000


def test_a_model_that_does_not_fit_takes_no_tokens() -> None:
    spec = load_model("llama-3.1-70b")
    device = find_device("24GiB")
    found = engine_default(spec, device, weight_bytes(spec).rank_bytes, plan_run(spec, device, Dtype.BF16))
    assert found.kv_tokens == 0
    assert not found.starts


@settings(max_examples=200, deadline=None)
@given(
    model=st.sampled_from(sorted(entries())),
    gpus=st.tuples(*[st.sampled_from([device.key for device in catalogue()])] * 2),
    tokens=st.tuples(*[st.integers(1, 65536)] * 2),
    seqs=st.tuples(*[st.integers(1, 2048)] * 2),
    length=st.integers(16, 1 << 18),
    kv_dtype=st.sampled_from([Dtype.BF16, Dtype.FP8]),
)
def test_more_memory_gives_no_fewer_tokens_and_larger_steps_no_more(
    model: str, gpus: tuple[str, str], tokens: tuple[int, int], seqs: tuple[int, int], length: int, kv_dtype: Dtype
) -> None:
    spec = load_model(model)
    smaller, larger = sorted(gpus, key=lambda gpu: find_device(gpu).usable_bytes)
    fewer, more = sorted(tokens)
    base = default_of(spec, kv_dtype, fewer, seqs[0], length, smaller)
    assert default_of(spec, kv_dtype, fewer, seqs[0], length, larger).kv_tokens >= base.kv_tokens
    assert default_of(spec, kv_dtype, more, seqs[0], length, smaller).kv_tokens <= base.kv_tokens
    assert default_of(spec, kv_dtype, fewer, max(seqs), length, smaller).kv_tokens <= base.kv_tokens
    assert 0 <= base.dies_from_fraction <= 1


@settings(max_examples=100, deadline=None)
@given(model=st.sampled_from(sorted(entries())), kv_bytes=st.integers(0, 140 * GIB))
def test_the_pool_holds_what_it_was_given(model: str, kv_bytes: int) -> None:
    spec = load_model(model)
    assume(any(layer.kv for layer in spec.layers))
    pool = kv_pool(spec, Dtype.BF16, 1)
    blocks = pool.blocks(kv_bytes)
    assert blocks * pool.block_bytes <= kv_bytes < (blocks + 1) * pool.block_bytes
    assert pool.tokens(kv_bytes) == blocks * pool.block_tokens


@pytest.mark.parametrize(
    ("model", "run"),
    [
        ("gemma-3-27b", "gemma_3_27b"),
        ("nemotron-nano-12b-v2", "nemotron_nano_12b_v2"),
        ("llama-3.1-8b", "llama_3.1_8b"),
    ],
)
def test_tokens_of_whole_requests_are_those_that_vllm_said(model: str, run: str) -> None:
    """Of starts on an H200 with layers of several kinds, of one kind, and with states."""
    seen = json.loads((RESULTS / f"inside_vllm_{run}_h200.json").read_text())
    spec, asked = load_model(model), seen["options"]
    limits = {"batch_tokens": asked["batch_tokens"], "max_seqs": asked["max_seqs"], "max_len": asked["max_len"]}
    started = plan_run(spec, find_device("h200"), Dtype.BF16, **limits)
    pool = kv_pool(spec, Dtype.BF16, 1)
    said = pool.request_tokens(seen["fit"]["kv_cache_memory_bytes"], started)
    assert pool.blocks(seen["fit"]["kv_cache_memory_bytes"]) == seen["blocks"]
    assert abs(said - seen["kv_tokens"]) <= 1


@settings(max_examples=60, deadline=None)
@given(
    model=st.sampled_from(["gemma-2-9b", "gemma-3-27b", "gpt-oss-120b", "nemotron-nano-12b-v2", "qwen3-next-80b"]),
    length=st.integers(256, 1 << 17),
    step=st.sampled_from([512, 2048, 8192]),
)
def test_the_requests_of_a_plan_fit_into_blocks_of_all_groups(model: str, length: int, step: int) -> None:
    spec = load_model(model)
    length = min(length, spec.max_positions)
    plan = brim.plan(model, gpu="2xh200", engine="vllm", max_len=length, batch_tokens=step, max_seqs=64)
    assume(plan.fits)
    pool = kv_pool(spec, Dtype.BF16, 2)
    given_bytes = int(plan.flags[plan.flags.index("--kv-cache-memory-bytes") + 1])
    run = plan_run(spec, find_device("h200"), Dtype.BF16, batch_tokens=step, max_len=length, ranks=2)
    windows = sum(pool.groups(kind) for kind in pool.kinds if kind.window is not None)
    of_request = pool.blocks_of_request(run) - 1 - windows  # a window that is not full begins with its request
    assert pool.blocks(given_bytes) - 1 >= plan.concurrency * of_request
    assert pool.blocks(given_bytes) >= pool.blocks_of_request(run) - 1  # what vLLM asks for before it starts


@settings(max_examples=60, deadline=None)
@given(model=st.sampled_from(["gemma-2-9b", "gemma-3-12b", "gpt-oss-20b"]), free=st.integers(24, 60))
def test_vllm_starts_with_the_longest_context_of_a_plan(model: str, free: int) -> None:
    plan = brim.plan(model, gpu=f"{free}GiB", engine="vllm", max_seqs=1)
    assume(plan.fits)
    spec, pool = load_model(model), kv_pool(load_model(model), Dtype.BF16, 1)
    limits = {"batch_tokens": plan.batch_tokens, "max_len": plan.max_len}
    run = plan_run(spec, find_device("h200"), Dtype.BF16, max_seqs=1, **limits)
    given_bytes = int(plan.flags[plan.flags.index("--kv-cache-memory-bytes") + 1])
    assert pool.blocks(given_bytes) >= pool.blocks_of_request(run) - 1

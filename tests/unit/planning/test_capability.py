"""One table says what engines run where: a plan that fits is accepted by it, and what it refuses is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import brim
from brim.cli.main import run
from brim.errors import InvalidRequest
from brim.model.catalogue import entries
from brim.model.source import load_model
from brim.planning.devices import catalogue, find_device
from brim.planning.engines import ENGINES, checkpoint_format, rule
from brim.planning.engines.capability import SUPPORT, runners
from brim.planning.gpus.cards import ARCHITECTURES
from brim.records.model import Dtype

KV = {"bf16": Dtype.BF16, "fp16": Dtype.FP16, "fp8": Dtype.FP8, "int8": Dtype.INT8}


def test_the_table_has_every_engine_and_no_generation_that_is_not_known() -> None:
    assert set(SUPPORT) == set(ENGINES)
    for support in SUPPORT.values():
        assert set(support.generations) <= set(ARCHITECTURES)
    assert all(runners(generation) for generation in ARCHITECTURES)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    model=st.sampled_from(sorted(entries())),
    gpu=st.sampled_from([device.key for device in catalogue()] + ["24GiB", "cpu:64GiB"]),
    engine=st.sampled_from(sorted(ENGINES)),
    kv_dtype=st.sampled_from([None, "fp8", "int8"]),
    weights=st.sampled_from([None, "fp8", "fp8-block", "int8", "awq", "nvfp4", "mxfp4"]),
)
def test_a_plan_that_fits_is_accepted_and_so_is_its_advice(model: str, gpu: str, engine: str, **asked: Any) -> None:
    try:
        plan = brim.plan(model, gpu=gpu, engine=engine, **asked)
    except InvalidRequest:
        assume(False)
        return
    weights = asked["weights"] or checkpoint_format(load_model(model))
    kv = KV[plan.kv_dtype]
    assert rule(ENGINES[engine], find_device(gpu), weights=weights, kv_dtype=kv).refusal is None
    for advice in plan.advice:
        turned = {**asked, "gpu": gpu, "engine": engine}
        if advice.knob in ("gpu", "kv_dtype", "weights"):
            turned[advice.knob] = advice.proposed
            brim.plan(model, **turned)  # is not refused


REFUSED = [
    ("trtllm", "mi300x", {}, "engine trtllm does not run on AMD Instinct MI300X (AMD, cdna3); engines that do: vllm"),
    ("vllm", "p100", {}, "engine vllm does not run on Tesla P100 16GB (NVIDIA, pascal); engines that do: llama.cpp"),
    ("trtllm", "a100", {"weights": "fp8"}, "has no kernels for fp8 weights on NVIDIA A100 80GB (ampere)"),
    ("trtllm", "a100", {"kv_dtype": "fp8"}, "has no kernels for an fp8 KV cache on NVIDIA A100 80GB (ampere)"),
    ("sglang", "t4", {"weights": "nvfp4"}, "has no kernels for nvfp4 weights"),
    ("vllm", "m4-max", {}, "does not run on Apple M4 Max 128GB (Apple, metal)"),
    ("vllm", "cpu:64GiB", {}, "is not planned for the CPU"),
    ("vllm", "v100", {"weights": "awq"}, "has no kernels for awq weights on Tesla V100 16GB (volta); plan for gptq"),
    ("vllm", "arc-b580", {"weights": "fp8"}, "has no kernels for fp8 weights on Intel Arc B580 (xe2)"),
    ("brim", "mi300x", {}, "engine brim does not run on AMD"),
]


@pytest.mark.parametrize(("engine", "gpu", "asked", "words"), REFUSED)
def test_what_cannot_run_is_refused_with_the_reason(engine: str, gpu: str, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        brim.plan("qwen3-0.6b", gpu=gpu, engine=engine, **asked)
    assert words in str(refused.value)


NOTED = [
    ("vllm", "a100", {"weights": "fp8"}, "has no fp8 arithmetic: vllm keeps the weights so and computes in 16 bits"),
    ("vllm", "a100", {"kv_dtype": "fp8"}, "only the FlashInfer backend"),
    ("vllm", "t4", {}, "Tesla T4 computes no bf16"),
    ("vllm", "gaudi-3", {}, "needs the plug-in vllm-gaudi"),
    ("tgi", "h100", {}, "tgi has no code of its own for qwen3"),
    ("vllm@0.99", "h100", {}, "vllm 0.99 is modelled as 0.26, the last version that Brim knows"),
]


@pytest.mark.parametrize(("engine", "gpu", "asked", "words"), NOTED)
def test_what_has_to_be_known_is_said(engine: str, gpu: str, asked: dict[str, Any], words: str) -> None:
    plan = brim.plan("qwen3-0.6b", gpu=gpu, engine=engine, **asked)
    assert any(words in warning for warning in plan.warnings), plan.warnings


def test_a_usual_card_has_nothing_to_be_said() -> None:
    plan = brim.plan("qwen3-0.6b", gpu="h100", engine="vllm")
    assert (plan.engine, plan.engine_version) == ("vllm", "0.26")
    assert not plan.warnings
    assert brim.plan("qwen3-0.6b", gpu="24GiB", engine="trtllm").fits


def test_a_comparison_leaves_out_what_the_engine_does_not_run_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "qwen3-0.6b", "--compare", "--engine", "trtllm"]) == 0
    said = capsys.readouterr().out
    assert "h200" in said
    assert "mi300x" not in said

"""Which GPUs would do: every option keeps its word when it is planned, and the smallest comes first."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

import brim
from brim.cli.main import run
from brim.model.source import load_model
from brim.planning.devices import card_device
from brim.planning.gpus.cards import ARCHITECTURES, DeviceClass, Vendor
from brim.planning.options import find_options, is_family, offered
from brim.records.plan import PlanRequest

if TYPE_CHECKING:
    import pytest


def test_the_question_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "qwen3-32b", "--concurrency", "64", "--max-len", "8k", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["asked"]["concurrency"], found["asked"]["max_len"]) == (64, 8192)
    options = found["options"]
    sizes = [one["total_bytes"] for one in options]
    assert sizes == sorted(sizes)
    assert all(one["concurrency"] >= 64 and one["max_len"] == 8192 for one in options)
    assert any(one["gpu"] == "h200" and one["as_stored"] for one in options)
    assert run(["plan", "qwen3-32b", "--concurrency", "64", "--max-len", "8k"]) == 0
    said = capsys.readouterr().out
    assert "what holds 64 requests of 8,192 tokens, least memory first" in said


@settings(max_examples=12, deadline=None)
@given(
    model=st.sampled_from(["qwen3-8b", "llama-3.3-70b", "gemma-3-27b", "qwen3-30b-a3b", "qwen2.5-vl-7b"]),
    concurrency=st.sampled_from([1, 8, 200]),
    max_len=st.sampled_from([2048, 16384]),
    engine=st.sampled_from([None, "vllm", "sglang", "llama.cpp"]),
    data=st.data(),
)
def test_an_option_is_a_plan_that_fits(
    model: str, concurrency: int, max_len: int, engine: str | None, data: st.DataObject
) -> None:
    request = PlanRequest(max_len=max_len, concurrency=concurrency, engine=engine)
    options = find_options(load_model(model), request, map(card_device, offered()))
    if not options:
        return
    one = data.draw(st.sampled_from(options))
    asked: dict[str, Any] = {"concurrency": concurrency, "max_len": max_len, "engine": engine, "trace": False}
    flags = dict(zip(one.flags[::2], one.flags[1::2], strict=True))
    formats = {"weights": flags.get("--weights"), "kv_dtype": flags.get("--kv-dtype")}
    plan = brim.plan(model, gpu=flags["--gpu"], **formats, **asked)
    assert plan.fits
    assert (plan.ranks, plan.kv_tokens, plan.concurrency) == (one.count, one.kv_tokens, one.concurrency)
    if one.count > 1:
        fewer = brim.plan(model, gpu=one.device.key, tp=one.count // 2, **formats, **asked)
        assert not fewer.fits


def test_families_narrow_it(capsys: pytest.CaptureFixture[str]) -> None:
    run(["plan", "qwen3-32b", "--concurrency", "4", "--gpu", "amd", "--json"])
    names = [one["name"] for one in json.loads(capsys.readouterr().out)["options"]]
    assert names
    assert all(name.startswith("AMD") for name in names)
    assert is_family("Hopper")
    assert not is_family("h100")
    assert {card.architecture for card in offered(["hopper", "ada"])} == {"hopper", "ada"}
    assert all(card.kind is DeviceClass.CONSUMER for card in offered(["consumer"]))
    assert all(ARCHITECTURES[card.architecture].vendor is Vendor.APPLE for card in offered(["apple"]))


def test_an_engine_is_offered_only_what_it_runs_on(capsys: pytest.CaptureFixture[str]) -> None:
    run(["plan", "qwen3-8b", "--concurrency", "4", "--engine", "trtllm", "--json"])
    found = json.loads(capsys.readouterr().out)
    options = found["options"]
    assert (found["engine"], found["engine_version"]) == ("trtllm", "1.2")
    assert options
    assert not any("AMD" in one["name"] or "Intel" in one["name"] for one in options)
    assert run(["plan", "qwen3-8b", "--concurrency", "4", "--engine", "trtllm", "--gpu", "amd"]) == 2
    assert "does not run on" in capsys.readouterr().err


def test_what_no_node_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "deepseek-v3", "--concurrency", "4", "--gpu", "turing"]) == 1
    assert "no GPUs of the catalogue hold" in capsys.readouterr().out

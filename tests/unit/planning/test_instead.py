"""What a plan says is missing is missing, and what it says fits instead does fit."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import brim
from brim.cli.main import run
from brim.errors import InvalidRequest
from brim.model.catalogue import entries
from brim.planning.devices import catalogue
from brim.planning.engines import ENGINES
from brim.records.plan import Device, Instead, MemoryPlan

if TYPE_CHECKING:
    import pytest

ASKED = {
    "model": st.sampled_from(sorted(entries())),
    "gpu": st.sampled_from(catalogue()),
    "engine": st.sampled_from([None, *ENGINES]),
    "max_len": st.integers(1024, 1 << 17),
    "concurrency": st.none() | st.integers(1, 256),
    "max_seqs": st.none() | st.integers(1, 512),
    "kv_tokens": st.none() | st.integers(1 << 17, 1 << 22),
}
examples = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])


def short(**asked: Any) -> MemoryPlan:
    """A plan that does not fit."""
    try:
        plan = brim.plan(asked.pop("model"), **asked)
    except InvalidRequest:
        assume(False)
        raise
    assume(not plan.fits)
    return plan


def grown(device: Device, more: int) -> Device:
    return replace(device, total_bytes=device.total_bytes + more)


@examples
@given(**ASKED)
def test_what_is_said_missing_is_missing(gpu: Device, **asked: Any) -> None:
    plan = short(gpu=gpu, **asked)
    assert plan.asked.needed_bytes == plan.device.total_bytes + plan.shortfall_bytes
    model = asked.pop("model")
    assert brim.plan(model, gpu=grown(gpu, plan.shortfall_bytes), **asked).fits
    assert not brim.plan(model, gpu=grown(gpu, plan.shortfall_bytes - 1), **asked).fits


@examples
@given(**ASKED)
def test_so_many_requests_fit_and_not_one_more(**asked: Any) -> None:
    plan = short(**asked)
    assume(asked["kv_tokens"] is None and asked["concurrency"] is not None and asked["max_seqs"] is None)
    model, most = asked.pop("model"), plan.fits_concurrency
    assert most < asked["concurrency"]
    if most:
        assert plan.fits_instead is not None
        assert brim.plan(model, **{**asked, "concurrency": most}).fits
    assert not brim.plan(model, **{**asked, "concurrency": most + 1}).fits


@examples
@given(**ASKED)
def test_what_fits_instead_fits_when_it_is_asked_for(**asked: Any) -> None:
    plan = short(**asked)
    instead = plan.fits_instead
    if instead is None:
        assert plan.fits_concurrency == 0
        assert plan.commands == ()
        return
    assert instead.concurrency >= 1
    again = brim.plan(
        asked["model"],
        gpu=asked["gpu"],
        engine=asked["engine"],
        max_len=instead.max_len,
        concurrency=instead.concurrency,
        max_seqs=instead.max_seqs,
    )
    assert again.fits
    assert [one.as_asked for one in plan.commands] == ([False] if asked["engine"] else [])
    assert (plan.shell, plan.command) == (None, ())


def test_eight_requests_are_asked_for_and_one_fits(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "qwen3-8b", "--gpu", "rtx-4090", "--max-len", "32k", "--concurrency", "8", "--engine", "vllm"]
    assert run([*words, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["asked"]["concurrency"], found["asked"]["max_len"]) == (8, 32768)
    assert found["asked"]["needed_bytes"] == found["device"]["total_bytes"] + found["shortfall_bytes"]
    assert (found["fits"], found["concurrency"], found["fits_concurrency"]) == (False, 1, 1)
    assert (found["command"], found["shell"]) == ([], None)
    [command] = found["commands"]
    assert (command["as_asked"], command["concurrency"], command["max_len"]) == (False, 1, 32768)
    assert command["args"][:2] == ["vllm", "serve"]
    run(words)
    said = " ".join(capsys.readouterr().out.split())
    assert "8 requests of 32,768 tokens" in said
    assert "1 request of 32,768 tokens" in said


def test_a_shorter_context_fits_instead() -> None:
    plan = brim.plan("llama-3.1-8b", gpu="rtx-4090", max_len=131_072)
    assert (plan.fits, plan.fits_concurrency) == (False, 0)
    assert plan.fits_instead is not None
    assert 30_000 < plan.fits_instead.max_len < 131_072
    assert plan.fits_instead.concurrency == 1


def test_weights_that_are_too_large_leave_nothing() -> None:
    plan = brim.plan("qwen3-32b", gpu="rtx-4090", engine="vllm")
    assert (plan.fits_concurrency, plan.fits_instead, plan.commands) == (0, None, ())


def test_a_plan_that_fits_has_its_command() -> None:
    plan = brim.plan("qwen3-8b", gpu="h100", engine="sglang", max_len=8192)
    assert plan.fits_instead is None
    assert plan.fits_concurrency == plan.concurrency
    assert [(one.as_asked, one.args, one.shell) for one in plan.commands] == [(True, plan.command, plan.shell)]


def test_tokens_that_do_not_fit_give_way_to_those_that_do() -> None:
    plan = brim.plan("llama-3.1-8b", gpu="h200", kv_tokens=2_000_000, max_len=8192)
    assert isinstance(plan.fits_instead, Instead)
    assert plan.fits_instead.kv_tokens > 900_000

"""Solvers keep their word: what is solved fits when it is asked for, and what is larger never gives less."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import brim
from brim.errors import InvalidRequest
from brim.model.catalogue import entries
from brim.model.source import load_model
from brim.planning.devices import catalogue
from brim.planning.engines import ENGINES
from brim.records.plan import MemoryPlan
from brim.units import GIB, MIB

MODELS = sorted(entries())
GPUS = [device.key for device in catalogue()]
ASKED = {
    "model": st.sampled_from(MODELS),
    "gpu": st.sampled_from(GPUS),
    "engine": st.sampled_from([None, *ENGINES]),
    "max_len": st.none() | st.integers(1, 1 << 18),
    "max_seqs": st.none() | st.integers(1, 1024),
    "concurrency": st.none() | st.integers(1, 64),
    "mean_len": st.none() | st.integers(1, 8192),
    "batch_tokens": st.none() | st.integers(256, 32768),
    "kv_tokens": st.none() | st.integers(1 << 10, 1 << 20),
    "weights": st.sampled_from([None, "fp8", "int4"]),
    "tp": st.sampled_from([1, 2]),
}
# Many random requests contradict themselves, and are refused.
examples = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])


def planned(**asked: Any) -> MemoryPlan:
    try:
        return brim.plan(asked.pop("model"), **asked)
    except InvalidRequest:
        assume(False)
        raise


def gives_no_less(more: MemoryPlan, less: MemoryPlan) -> None:
    assert more.fits >= less.fits
    if not less.fits:
        return
    assert more.max_len >= less.max_len
    assert more.kv_tokens >= less.kv_tokens
    if more.max_len == less.max_len:
        if not more.lowered:
            assert more.concurrency >= less.concurrency
        if (more.max_seqs, more.batch_tokens) == (less.max_seqs, less.batch_tokens):
            assert (more.mean_requests or 0) >= (less.mean_requests or 0)


@examples
@given(reserve=st.integers(0, 8 * GIB), freed=st.integers(0, 8 * GIB), **ASKED)
def test_more_memory_never_gives_less(reserve: int, freed: int, **asked: Any) -> None:
    gives_no_less(planned(**asked, reserve=max(0, reserve - freed)), planned(**asked, reserve=reserve))


@examples
@given(reserve=st.integers(0, 8 * GIB), freed=st.integers(0, 64 * MIB), **{**ASKED, "max_len": st.none()})
def test_a_little_more_memory_never_gives_less(reserve: int, freed: int, **asked: Any) -> None:
    gives_no_less(planned(**asked, reserve=max(0, reserve - freed)), planned(**asked, reserve=reserve))


@examples
@given(share=st.floats(0, 1), **{**ASKED, "max_seqs": st.integers(1, 1024)})
def test_fewer_requests_never_give_less(share: float, max_seqs: int, **asked: Any) -> None:
    """Of length and tokens; how many run at once is what was lowered."""
    fewer = max(1, int(share * max_seqs))
    assume(asked["engine"] != "llama.cpp" or asked["kv_tokens"] is None)  # its slots are tokens that were asked for
    more, less = planned(**asked, max_seqs=fewer), planned(**asked, max_seqs=max_seqs)
    assert more.fits >= less.fits
    if less.fits:
        assert more.max_len >= less.max_len
        assert more.kv_tokens >= less.kv_tokens


@examples
@given(**ASKED)
def test_a_smaller_kv_type_never_gives_less(**asked: Any) -> None:
    gives_no_less(planned(**asked, kv_dtype="fp8"), planned(**asked, kv_dtype="bf16"))


@examples
@given(**ASKED)
def test_more_ranks_never_give_less(tp: int, **asked: Any) -> None:
    less = planned(**asked, tp=tp)
    assume(less.item("weights").bytes > GIB)  # ranks have buffers of their own
    gives_no_less(planned(**asked, tp=tp * 2), less)


@examples
@given(**ASKED)
def test_smaller_steps_never_give_less(batch_tokens: int | None, **asked: Any) -> None:
    assume(not load_model(asked["model"]).towers)  # an image's step, not a text's, may be the largest
    less = planned(**asked, batch_tokens=batch_tokens)
    more = planned(**asked, batch_tokens=max(256, less.batch_tokens // 2))
    fewer_run = less.max_seqs > more.batch_tokens >= more.max_seqs  # no more than a step has tokens
    gives_no_less(more, replace(less, concurrency=min(less.concurrency, more.max_seqs)) if fewer_run else less)


@examples
@given(**ASKED)
def test_what_was_solved_fits_when_it_is_asked_for(**asked: Any) -> None:
    solved = planned(**asked)
    assume(solved.fits)
    lowered = {one.knob: one.lowered for one in solved.lowered}
    pinned = asked | {
        "max_len": solved.max_len,
        "max_seqs": solved.max_seqs,
        "batch_tokens": solved.batch_tokens,
        "graphs": "graphs" not in lowered,
    }
    for name in ("image_pixels", "images_per_prompt"):
        if name in lowered:
            pinned[name] = int(lowered[name])
    again = planned(**pinned)
    assert again.fits
    assert not again.lowered
    assert solved.max_seqs <= solved.batch_tokens or asked["engine"] == "llama.cpp"
    assert again.kv_tokens >= solved.kv_tokens
    assert again.concurrency >= solved.concurrency >= (asked["concurrency"] or 1)
    promised = brim.plan(pinned.pop("model"), **{**pinned, "concurrency": solved.concurrency})
    assert promised.fits


@examples
@given(shorter=st.integers(1, 1 << 18), **{**ASKED, "max_len": st.integers(1, 1 << 18), "mean_len": st.none()})
def test_requests_times_length_grow_with_neither(shorter: int, max_len: int, **asked: Any) -> None:
    """Longer requests are never more in number; windows make their tokens cheaper, never dearer."""
    asked |= {"max_seqs": 512, "batch_tokens": 8192, "kv_tokens": None}
    assume(shorter <= max_len)
    short, long = planned(**asked, max_len=shorter), planned(**asked, max_len=max_len)
    assert short.fits >= long.fits
    if long.fits:
        assert short.concurrency >= long.concurrency


def test_a_usual_server_fits() -> None:
    plan = brim.plan("llama-3.1-8b", gpu="h200", max_seqs=512, max_len=8192)
    assert plan.fits
    assert (plan.max_seqs, plan.lowered) == (512, ())
    assert 100 < plan.concurrency < 130
    assert not brim.plan("llama-3.1-8b", gpu="h200", concurrency=512, max_len=8192).fits
    assert brim.plan("llama-3.1-8b", gpu="h200", concurrency=100, max_len=8192).fits


def test_the_mean_length_tells_how_many_run_at_once() -> None:
    plan = brim.plan("llama-3.1-8b", gpu="h200", max_len=32768, mean_len=4096)
    assert plan.mean_requests == min(plan.max_seqs, plan.kv_tokens // 4096)
    assert plan.mean_requests > plan.concurrency * 7
    few = brim.plan("llama-3.1-8b", gpu="h200", max_len=32768, mean_len=4096, max_seqs=16)
    assert few.mean_requests == 16


def test_a_small_card_is_not_sized_for_many_requests() -> None:
    alone, usual = (brim.plan("qwen3-4b", gpu="rtx-3060", max_seqs=seqs).kv_tokens for seqs in (1, None))
    assert usual >= 0.97 * alone


def test_what_was_left_open_is_lowered_before_the_answer_is_no() -> None:
    """A 31B model in four bits on a card of 24 GB."""
    plan = brim.plan("gemma-4-31b", weights="nvfp4", gpu="l4")
    assert plan.fits
    assert [one.knob for one in plan.lowered] == ["batch_tokens"]
    longer = brim.plan("gemma-4-31b", weights="nvfp4", gpu="l4", max_len=16384)
    assert longer.fits
    assert longer.batch_tokens < 2048
    asked = {"weights": "nvfp4", "gpu": "l4", "max_len": 16384, "batch_tokens": 8192, "max_seqs": 256}
    no = brim.plan("gemma-4-31b", **asked)
    assert not no.fits
    assert {one.knob for one in no.lowered} == {"graphs", "images_per_prompt"}


@pytest.mark.parametrize(
    ("model", "gpu", "asked", "requests", "step"),
    [
        ("llama-3.1-8b", "h200", {"batch_tokens": 128}, 128, 128),
        ("internvl3-2b", "h200", {"max_len": 512}, 8192, 8192),
        ("llama-3.1-8b", "h200", {"max_seqs": 10_000, "max_len": 512}, 10_000, 10_000),
    ],
)
def test_a_step_has_a_token_for_every_request(
    model: str, gpu: str, asked: dict[str, Any], requests: int, step: int
) -> None:
    plan = brim.plan(model, gpu=gpu, **asked)
    assert plan.fits
    assert (plan.max_seqs, plan.batch_tokens) == (requests, step)
    assert all(one.knob != "batch_tokens" or int(one.proposed) >= requests for one in plan.advice)


def test_steps_are_not_lowered_below_the_requests_that_were_asked_for() -> None:
    plan = brim.plan("llama-3.2-11b-vision", gpu="l4", max_seqs=512, engine="brim")
    assert (plan.fits, plan.batch_tokens) == (False, 512)
    assert any(one.knob == "max_seqs" and one.fits_after for one in plan.advice)


def test_steps_are_never_larger_than_usual_unless_asked() -> None:
    assert brim.plan("llama-3.1-8b", gpu="h200", max_len=8192, concurrency=4).batch_tokens == 8192
    assert brim.plan("llama-3.1-8b", gpu="h200", batch_tokens=16384).batch_tokens == 16384


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"concurrency": 8, "max_seqs": 4}, "concurrency 8"),
        ({"mean_len": 9000, "max_len": 8192}, "mean-len 9000"),
        ({"kv_tokens": 1000, "max_len": 600, "concurrency": 2}, "2 requests"),
        ({"draft_tokens": 4}, "draft-tokens"),
        ({"concurrency": 0}, "concurrency"),
        ({"mean_len": 200_000}, "mean-len 200000 is more than the 131072 positions of llama-3.1-8b; lower it"),
        ({"max_seqs": 512, "batch_tokens": 256}, "max-seqs 512 is more than batch-tokens 256.*raise batch-tokens"),
        ({"concurrency": 512, "batch_tokens": 256}, "concurrency 512 is more than batch-tokens 256"),
    ],
)
def test_contradictions_are_refused(asked: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        brim.plan("llama-3.1-8b", gpu="h100", **asked)

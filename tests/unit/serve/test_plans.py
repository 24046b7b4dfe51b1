"""The page's planner: what may be asked, and that the answer is that of `brim plan`."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any

import pytest

import brim
from brim.errors import InvalidRequest
from brim.serve.plans import _MOST_WAITING, Planning, catalogue, made
from brim.serve.problems import Problem
from brim.serve.requests.plan import PlanQuery
from brim.serve.requests.types import ServedModel

ASKED = {"model": "qwen2.5-vl-7b", "gpu": "rtx-4090", "max_len": 8192, "kv_dtype": "fp8", "engine": "vllm"}


def asked_for(body: dict[str, Any]) -> PlanQuery:
    return PlanQuery.read_body(body, ServedModel())


def test_the_plan_is_that_of_the_command() -> None:
    found = made(asked_for(ASKED | {"concurrency": 4, "image_pixels": 1_000_000}))
    same = brim.plan(
        "qwen2.5-vl-7b",
        gpu="rtx-4090",
        max_len=8192,
        kv_dtype="fp8",
        engine="vllm",
        concurrency=4,
        image_pixels=1_000_000,
    )
    assert found == same.to_json()
    assert str(found["shell"]).startswith("PYTORCH_ALLOC_CONF=expandable_segments:True vllm serve ")


def test_a_placement_is_that_of_the_command() -> None:
    body = {"model": "qwen3-30b-a3b", "gpu": "h100-80gb", "gpus": 8, "pp": 2, "dp": 2, "ep": True, "engine": "vllm"}
    found = made(asked_for(body | {"graphs": "off", "batch_tokens": 2048}))
    asked = {"pp": 2, "dp": 2, "ep": True, "graphs": False, "batch_tokens": 2048, "engine": "vllm"}
    assert found == brim.plan("qwen3-30b-a3b", gpu="8xh100-80gb", kv_dtype="auto", **asked).to_json()
    host = made(asked_for({"model": "qwen3-30b-a3b", "gpu": "rtx-4090", "engine": "llama.cpp", "cpu_moe": 48}))
    assert (host["fits"], host["host"]["items"][0]["name"]) == (True, "weights")


def test_several_gpus_share_the_model() -> None:
    found = made(PlanQuery("llama-3.1-70b", "h100-80gb", gpus=4))
    assert (found["device"]["count"], found["fits"]) == (4, True)
    with pytest.raises(InvalidRequest, match="3"):
        made(PlanQuery("llama-3.1-70b", "h100-80gb", gpus=3))


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"model": "/etc/passwd"}, "model"),
        ({"model": "../shared"}, "model"),
        ({"model": "some/hub-id"}, "model"),
        ({"model": None}, "model"),
        ({"gpu": "auto"}, "gpu"),
        ({"gpu": "0"}, "gpu"),
        ({"gpu": "4xh100"}, "gpu"),
        ({"gpus": 129}, "gpus"),
        ({"max_len": 1 << 40}, "max_len"),
        ({"max_len": 0}, "max_len"),
        ({"concurrency": 10**9}, "concurrency"),
        ({"image_pixels": -1}, "image_pixels"),
        ({"kv_dtype": "fp3"}, "kv_dtype"),
        ({"engine": "x"}, "engine"),
        ({"weights": "./w"}, "weights"),
        ({"trace": True}, "trace"),
        ({"graphs": True}, "graphs"),
        ({"pp": 0}, "pp"),
        ({"ep": "yes"}, "ep"),
        ({"cpu_moe": "auto"}, "cpu_moe"),
    ],
)
def test_what_is_not_known_or_too_large_is_refused_by_name(changed: dict[str, Any], param: str) -> None:
    with pytest.raises(Problem) as refused:
        asked_for(ASKED | changed)
    assert (refused.value.status, refused.value.param) == (400, param)


def test_the_catalogue_says_what_may_be_asked() -> None:
    found = catalogue()
    for model in found["models"][:3]:
        for gpu in found["gpus"][-2:]:
            assert asked_for({"model": model["name"], "gpu": gpu["key"]})
    images = {model["name"] for model in found["models"] if model["images"]}
    assert "qwen2.5-vl-7b" in images
    assert "llama-3.1-8b" not in images


def test_plans_are_made_elsewhere_and_only_a_few_may_wait() -> None:
    async def asked() -> list[Any]:
        planning = Planning(partial(ThreadPoolExecutor, 1))
        crowd = (planning.plan(PlanQuery("qwen3-0.6b", "l4")) for _ in range(_MOST_WAITING + 3))
        found = await asyncio.gather(*crowd, return_exceptions=True)
        found.append(await planning.plan(PlanQuery("qwen3-0.6b", "l4")))
        planning.close()
        return found

    found = asyncio.run(asked())
    refused = [one for one in found if isinstance(one, Problem)]
    assert [one.status for one in refused] == [429] * 3
    assert all(one["fits"] for one in found if not isinstance(one, Problem))


class _Dying(Executor):
    def submit(self, *_: Any, **__: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(BrokenProcessPool())
        return future


def test_a_worker_that_died_is_replaced() -> None:
    pools = iter((_Dying(), ThreadPoolExecutor(1)))

    async def asked() -> tuple[int, bool]:
        planning = Planning(lambda: next(pools))
        with pytest.raises(Problem) as died:
            await planning.plan(PlanQuery("qwen3-0.6b", "l4"))
        found = await planning.plan(PlanQuery("qwen3-0.6b", "l4"))
        planning.close()
        return died.value.status, bool(found["fits"])

    assert asyncio.run(asked()) == (503, True)

"""Placements: parts sum to the whole, more devices never give less, and one group of ranks is planned as before."""

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
from brim.model.weights import weight_bytes
from brim.planning.devices import find_device
from brim.planning.engines import ENGINES, checkpoint_format, rule
from brim.planning.placement.experts import is_expert
from brim.planning.placement.parts import part_settings
from brim.planning.placement.record import Placement, StageRule
from brim.planning.placement.stages import stage_layers, stage_parts
from brim.planning.pricer import Pricer
from brim.planning.settings import PlanSettings, resolve
from brim.planning.solving.solve import solve
from brim.records.model import Dtype, ModelSpec
from brim.records.plan import MemoryPlan, PlanRequest
from brim.units import GIB

MODELS = sorted(entries())
MIXTURES = [
    name
    for name in MODELS
    if any(layer.feed_forward and layer.feed_forward.experts for layer, _ in load_model(name).layer_groups)
]
GPUS = ("rtx-4090", "a100-80gb", "h100-80gb", "h200", "b200")
PLACING = (None, "vllm", "sglang", "trtllm")
KV = {"bf16": Dtype.BF16, "fp16": Dtype.FP16, "fp8": Dtype.FP8, "int8": Dtype.INT8}
examples = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)


def planned(model: str, **asked: Any) -> MemoryPlan:
    try:
        return brim.plan(model, **asked)
    except InvalidRequest:
        assume(False)
        raise


def settled(model: str, **asked: Any) -> PlanSettings:
    try:
        return resolve(load_model(model), find_device("h200"), PlanRequest(**asked))
    except InvalidRequest:
        assume(False)
        raise


def tied_bytes(spec: ModelSpec, **stored: Any) -> int:
    """The table of embeddings, where it is the head as well."""
    tables = [one for one in spec.tensors if len(one.shape) == 2 and one.units == 0 and not one.linear]
    if any(one.name == "lm_head" for one in spec.tensors):
        return 0
    alone = replace(spec, layers=(), towers=(), tensors=tuple(tables[:1]), files_bytes=None)
    return weight_bytes(alone, **stored).total_bytes


# -- stages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "sizes"),
    [
        (StageRule.BEFORE_LAST, [2, 3, 3, 2]),
        (StageRule.LAST, [2, 2, 3, 3]),
        (StageRule.FIRST, [3, 3, 2, 2]),
    ],
)
def test_layers_left_over_go_where_the_engine_puts_them(rule: StageRule, sizes: list[int]) -> None:
    assert [len(one) for one in stage_layers(10, 4, rule)] == sizes


@given(layers=st.integers(1, 200), stages=st.integers(1, 32), rule=st.sampled_from(StageRule))
def test_stages_have_every_layer_once(layers: int, stages: int, rule: StageRule) -> None:
    assume(stages <= layers)
    ranges = stage_layers(layers, stages, rule)
    assert [index for one in ranges for index in one] == list(range(layers))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


@examples
@given(
    model=st.sampled_from(MODELS),
    stages=st.integers(2, 12),
    rule=st.sampled_from(StageRule),
    weights=st.sampled_from([None, "fp8", "int4", "nvfp4"]),
)
def test_weights_of_stages_sum_to_the_weights_of_one_device(
    model: str, stages: int, rule: StageRule, weights: str | None
) -> None:
    """But for a tied table, which the last stage holds again. GGUF's mixes choose by the place of a layer among all."""
    spec = load_model(model)
    assume(stages <= len(spec.layers))
    stored = settled(model, weights=weights).stored
    parts = stage_parts(spec, stages, rule, towers_everywhere=False)
    total = sum(weight_bytes(part.weights, stored=stored).total_bytes for part in parts)
    assert total == weight_bytes(spec, stored=stored).total_bytes + tied_bytes(spec, stored=stored)
    assert sum(len(part.spec.layers) for part in parts) == len(spec.layers)
    assert [part.spec.vocab for part in parts[:-1]] == [0] * (stages - 1)


@examples
@given(model=st.sampled_from(MODELS), stages=st.integers(2, 8))
def test_kv_of_stages_sums_to_the_kv_of_one_device(model: str, stages: int) -> None:
    whole = settled(model)
    parts = part_settings(settled(model, pipeline_parallel=stages))
    pricer = Pricer()
    for tokens in (1, 1000, 100_000):
        each = [pricer.costs(one, 1).request_bytes(tokens) for one in parts]
        assert sum(each) == pricer.costs(whole, 1).request_bytes(tokens)


# -- experts -------------------------------------------------------------------------------------------------------


@examples
@given(model=st.sampled_from(MIXTURES), tp=st.sampled_from([1, 2, 4]), dp=st.sampled_from([1, 2, 4, 8]))
def test_experts_over_ranks_sum_to_all_experts(model: str, tp: int, dp: int) -> None:
    spec = load_model(model)
    placed = settled(model, tensor_parallel=tp, data_parallel=dp, expert_parallel=True)
    (part,) = part_settings(placed)
    for layer, held in zip(spec.layers, part.spec.layers, strict=True):
        for whole, own in zip(layer.tensors, held.tensors, strict=True):
            if is_expert(whole):
                assert own.count == -(-whole.count // (tp * dp))
                assert own.count * tp * dp >= whole.count
            else:
                assert own == whole
    ranks = tp * dp
    if all(one.count % ranks == 0 for layer, _ in spec.layer_groups for one in layer.tensors if is_expert(one)):
        pricer = Pricer()
        alone = pricer.weights(_without_experts(spec), tp).rank_bytes
        experts = pricer.weights(spec, 1).total_bytes - pricer.weights(_without_experts(spec), 1).total_bytes
        assert pricer.costs(part, 1).weights.rank_bytes == alone + experts // ranks


def _without_experts(spec: ModelSpec) -> ModelSpec:
    changed = {
        id(layer): replace(layer, tensors=tuple(one for one in layer.tensors if not is_expert(one)))
        for layer, _ in spec.layer_groups
    }
    return replace(spec, layers=tuple(changed[id(layer)] for layer in spec.layers))


def test_vllm_cuts_experts_over_all_replicas_without_expert_parallelism() -> None:
    one, four = (brim.plan("qwen3-30b-a3b", gpu="h200", engine="vllm", dp=dp, trace=False) for dp in (1, 4))
    shared = brim.plan("qwen3-30b-a3b", gpu="h200", engine="vllm", dp=4, ep=True, trace=False)
    assert four.item("weights").bytes == shared.item("weights").bytes < one.item("weights").bytes / 3
    assert any("cuts experts" in text for text in four.warnings)
    apart = brim.plan("qwen3-30b-a3b", gpu="h200", engine="sglang", dp=4, trace=False)
    assert apart.item("weights").bytes == one.item("weights").bytes


# -- plans ---------------------------------------------------------------------------------------------------------

ASKED = {
    "model": st.sampled_from(MODELS),
    "gpu": st.sampled_from(GPUS),
    "engine": st.sampled_from(PLACING),
    "max_len": st.none() | st.integers(1, 1 << 17),
    "tp": st.sampled_from([1, 2, 4]),
    "pp": st.sampled_from([1, 2, 3, 4]),
    "dp": st.sampled_from([1, 2, 4]),
    "ep": st.booleans(),
}


@examples
@given(concurrency=st.none() | st.integers(1, 32), **ASKED)
def test_every_ledger_adds_up_and_the_tightest_decides(concurrency: int | None, **asked: Any) -> None:
    plan = planned(**asked, concurrency=concurrency)
    assert plan.ranks == asked["tp"] * asked["pp"] * asked["dp"] == sum(one.count for one in plan.rank_ledgers)
    assert len(plan.rank_ledgers) == asked["pp"]
    for one in (*plan.rank_ledgers, *plan.ledgers):
        assert sum(item.bytes for item in one.items) == plan.device.total_bytes
        if plan.fits:
            assert all(item.bytes >= 0 for item in one.items)
    assert plan.items in [one.items for one in plan.rank_ledgers]
    assert plan.total_kv_tokens == plan.kv_tokens * asked["dp"]


@examples
@given(kind=st.sampled_from(["pp", "dp"]), **ASKED)
def test_more_devices_never_give_fewer_tokens_in_total(kind: str, **asked: Any) -> None:
    less = planned(**asked)
    assume(less.fits and less.item("weights").bytes > 2 * GIB)  # ranks have buffers of their own
    more = planned(**{**asked, kind: asked[kind] * 2})
    assert more.fits
    if more.max_len == less.max_len:
        assert more.total_kv_tokens >= less.total_kv_tokens


@examples
@given(**ASKED)
def test_what_was_solved_fits_when_it_is_asked_for(**asked: Any) -> None:
    plan = planned(**asked)
    assume(plan.fits)
    again = planned(**{**asked, "max_len": plan.max_len}, kv_tokens=plan.kv_tokens, max_seqs=plan.max_seqs)
    assert again.fits
    assert again.kv_tokens == plan.kv_tokens


@examples
@given(**{**ASKED, "engine": st.sampled_from(sorted(ENGINES))})
def test_a_plan_that_fits_is_accepted_by_the_table(**asked: Any) -> None:
    plan = planned(**asked)
    assume(plan.fits)
    placement = Placement(asked["pp"], asked["dp"], asked["ep"]) if asked["engine"] != "llama.cpp" else Placement()
    ruling = rule(
        ENGINES[asked["engine"]],
        find_device(asked["gpu"]),
        weights=checkpoint_format(load_model(asked["model"])),
        kv_dtype=KV[plan.kv_dtype],
        ranks=asked["tp"],
        placement=placement,
    )
    assert ruling.refusal is None


@examples
@given(concurrency=st.none() | st.integers(1, 64), **{**ASKED, "model": st.sampled_from(MIXTURES)})
def test_ranks_that_advice_proposes_can_be_asked_for(concurrency: int | None, **asked: Any) -> None:
    plan = planned(**asked, concurrency=concurrency)
    for one in plan.advice:
        if one.knob in ("tp", "concurrency"):
            changed = {**asked, "concurrency": concurrency, one.knob: int(one.proposed)}
            assert brim.plan(changed.pop("model"), **changed).fits or not one.fits_after


@examples
@given(
    model=st.sampled_from(MODELS),
    gpu=st.sampled_from((*GPUS, "2xh100-80gb")),
    engine=st.sampled_from([None, *ENGINES]),
    max_len=st.none() | st.integers(1, 1 << 17),
)
def test_one_group_of_ranks_is_planned_as_if_nothing_was_said_of_placement(model: str, **asked: Any) -> None:
    plain = planned(model, **asked)
    said = planned(model, **asked, pp=1, dp=1, ep=False, host_kv=0)
    assert said.to_json() == plain.to_json()
    assert [one.items for one in plain.rank_ledgers][:1] == [plain.items] or plain.engine == "llama.cpp"


@examples
@given(
    model=st.sampled_from(MODELS),
    engine=st.sampled_from([None, "vllm", "sglang", "trtllm"]),
    tp=st.sampled_from([1, 2]),
    max_len=st.none() | st.integers(1, 1 << 17),
)
def test_a_single_stage_priced_as_a_part_is_the_whole(model: str, engine: str | None, tp: int, **asked: Any) -> None:
    """So that what stages are priced with is what plans without stages are priced with."""
    whole = settled(model, engine=engine, tensor_parallel=tp, **asked)
    (part,) = stage_parts(whole.spec, 1, StageRule.FIRST, towers_everywhere=False)
    as_part = replace(whole, spec=part.spec, part=part)
    one, other = solve(whole, Pricer()), solve(as_part, Pricer())
    assert (one.items, one.kv_tokens, one.max_len) == (other.items, other.kv_tokens, other.max_len)


def test_stages_have_the_bytes_of_files_where_these_are_known() -> None:
    """In proportion: files are not those of the dimensions to the byte."""
    spec = replace(load_model("llama-3.1-8b"), files_bytes=17 * GIB, files_detail="as stored")
    plan = brim.plan(spec, gpu="h200", pp=3, max_len=8192, trace=False)
    held = [next(item for item in one.items if item.name == "weights") for one in plan.rank_ledgers]
    assert 17 * GIB - len(held) <= sum(item.bytes for item in held) <= 17 * GIB
    assert all("as stored" in item.detail for item in held)


# -- what is asked -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"pp": 100}, "32 layers"),
        ({"pp": 0}, "pp is 0"),
        ({"ep": True, "tp": 2}, "no routed experts"),
        ({"gpu": "8xh100-80gb", "pp": 3}, "does not divide the 8 devices"),
        ({"gpu": "cpu:64GiB", "engine": "llama.cpp", "pp": 2}, "the device is a CPU"),
        ({"engine": "tgi", "pp": 2}, "engines that do: vllm, sglang, trtllm"),
        ({"engine": "trtllm", "dp": 2}, "start a server for each replica"),
        ({"engine": "brim", "dp": 2}, "no data parallelism"),
        ({"engine": "vllm", "gpu_layers": "auto"}, "engines that do: llama.cpp"),
        ({"gpu_layers": "auto"}, "--engine llama.cpp"),
        ({"engine": "llama.cpp", "cpu_moe": 3}, "use --gpu-layers"),
        ({"engine": "llama.cpp", "gpu_layers": "many"}, "must be auto, or a number from 1 to 33"),
        ({"loras": 4}, "give --lora-rank"),
        ({"engine": "vllm", "loras": 4, "lora_rank": 24}, "use 32"),
        ({"engine": "sglang", "lora_rank": 16}, "engines that do: vllm"),
        ({"pp": 2, "draft": "llama-3.2-1b"}, "draft is given with pp"),
    ],
)
def test_what_cannot_be_is_refused_with_the_remedy(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words.replace("(", r"\(")):
        brim.plan("llama-3.1-8b", **{"gpu": "h200", **asked})


def test_requests_are_spread_over_replicas() -> None:
    plan = brim.plan("llama-3.1-8b", gpu="h200", dp=4, concurrency=30, max_len=8192, trace=False)
    assert plan.asked.requests == 8
    assert plan.total_concurrency == 4 * plan.concurrency >= 30


def test_a_node_is_divided_among_stages_and_replicas() -> None:
    plan = brim.plan("llama-3.3-70b", gpu="8xh100-80gb", pp=2, dp=2, trace=False)
    assert (plan.ranks, plan.parallelism.tensor) == (8, 2)
    found = plan.to_json()
    assert (found["pipeline_parallel"], found["data_parallel"], found["expert_parallel"]) == (2, 2, False)
    assert [(one["rank"], one["stage"], one["layers"], one["count"]) for one in found["ranks"]] == [
        (0, 0, [0, 40], 4),
        (2, 1, [40, 80], 4),
    ]


def test_the_stage_with_the_least_room_decides_and_a_hybrid_has_other_layers_in_each() -> None:
    plan = brim.plan("gemma-3-27b", gpu="h100-80gb", pp=4, engine="vllm", max_len=8192, trace=False)
    free = [sum(item.bytes for item in one.items if item.name == "free") for one in plan.rank_ledgers]
    assert free.count(0) == 1
    assert len({item.bytes for one in plan.rank_ledgers for item in one.items if item.name == "kv"}) > 1

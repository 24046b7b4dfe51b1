"""Layers and experts in host memory, and the tiers of KV there."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import brim
from brim.model.catalogue import entries
from brim.model.kv import kv_footprint
from brim.model.source import load_model
from brim.model.weights import weight_bytes
from brim.planning.placement.experts import has_experts
from brim.planning.placement.offload import device_parts, gpu_ranges, host_part
from brim.planning.placement.record import Placement
from brim.planning.settings import NAMED_FORMATS
from brim.records.model import Dtype
from brim.records.plan import MemoryPlan
from brim.units import GIB
from tests.unit.planning.test_placement import tied_bytes

MODELS = sorted(entries())


def llama(model: str, gpu: str = "rtx-4090", **asked: object) -> MemoryPlan:
    return brim.plan(model, gpu=gpu, engine="llama.cpp", **asked)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(
    model=st.sampled_from(MODELS),
    kept=st.floats(0, 1),
    experts=st.floats(0, 1),
    devices=st.sampled_from([1, 2, 3]),
    stored=st.sampled_from([None, "q4_0", "q4_k_m", "q8_0"]),
)
def test_gpus_and_host_hold_the_model_once(
    model: str, kept: float, experts: float, devices: int, stored: str | None
) -> None:
    """But for a tied table, which is the input on the host and the output on a GPU; towers are on the first GPU."""
    spec, form = load_model(model), NAMED_FORMATS[stored] if stored else None
    layers = len(spec.layers)
    placement = Placement(
        gpu_layers=max(devices, round(kept * (layers + 1))),
        cpu_experts=round(experts * layers) if has_experts(spec) else 0,
    )
    assume(not any("per_layer" in tensor.name or "new_embedding" in tensor.name for tensor in spec.tensors))
    assume(not any(tensor.name.endswith("wpe") for tensor in spec.tensors))
    parts = device_parts(spec, placement, devices, form, None)
    held = [weight_bytes(part.weights, stored=form).total_bytes for part in parts]
    host = weight_bytes(host_part(spec, placement).weights, stored=form).total_bytes
    whole = weight_bytes(spec, stored=form).total_bytes + tied_bytes(spec, stored=form)
    if stored == "q4_k_m":  # chooses by the place of a layer among all: parts by themselves are near it
        assert sum(held) + host == pytest.approx(whole, rel=0.02)
    else:
        assert sum(held) + host == whole
    assert [index for part in parts for index in part.layers] == list(range(part_start(placement, layers), layers))


def part_start(placement: Placement, layers: int) -> int:
    assert placement.gpu_layers is not None
    return max(0, layers + 1 - placement.gpu_layers)


@given(layers=st.integers(1, 100), devices=st.integers(1, 8), share=st.floats(0, 1))
def test_the_output_is_one_of_the_layers_on_the_gpus(layers: int, devices: int, share: float) -> None:
    offloaded = max(1, round(share * (layers + 1)))
    ranges = gpu_ranges(layers, devices, offloaded)
    assert sum(map(len, ranges)) == offloaded - 1
    assert ranges[-1].stop == layers


def test_a_mixture_that_does_not_fit_is_told_how_many_layers_of_experts_leave() -> None:
    plan = llama("qwen3-30b-a3b", max_len=32768)
    assert not plan.fits
    advice = next(one for one in plan.advice if one.knob == "cpu_moe")
    assert advice.fits_after
    number = int(advice.proposed)
    assert advice.flags == ("--cpu-moe", str(number))
    assert llama("qwen3-30b-a3b", max_len=32768, cpu_moe=number).fits
    assert not llama("qwen3-30b-a3b", max_len=32768, cpu_moe=number - 1).fits
    automatic = llama("qwen3-30b-a3b", max_len=32768, cpu_moe="auto")
    at = automatic.command.index("--n-cpu-moe")
    assert automatic.command[at + 1] == str(number)
    assert automatic.command[automatic.command.index("--n-gpu-layers") + 1] == "999"


def test_a_dense_model_that_does_not_fit_is_told_how_many_layers_leave() -> None:
    asked = {"max_len": 8192, "weights": "q4_0"}
    plan = llama("llama-3.3-70b", **asked)
    advice = next(one for one in plan.advice if one.knob == "gpu_layers")
    assert (advice.current, advice.fits_after) == ("81", True)
    number = int(advice.proposed)
    placed = llama("llama-3.3-70b", **asked, gpu_layers=number)
    assert placed.fits
    assert not llama("llama-3.3-70b", **asked, gpu_layers=number + 1).fits
    assert placed.to_json() == {**llama("llama-3.3-70b", **asked, gpu_layers="auto").to_json()}
    assert placed.command[placed.command.index("--n-gpu-layers") + 1] == str(number)


def test_what_fits_stays_on_the_gpu() -> None:
    plain = llama("llama-3.1-8b", max_len=8192, weights="q8_0")
    automatic = llama("llama-3.1-8b", max_len=8192, weights="q8_0", gpu_layers="auto")
    assert automatic.items == plain.items
    assert automatic.command == plain.command


def test_kv_of_layers_on_the_host_is_on_the_host() -> None:
    plan = llama("llama-3.1-8b", gpu_layers=17, max_len=8192, concurrency=2)
    assert plan.host is not None
    items = {item.name: item for item in plan.host.items}
    spec = load_model("llama-3.1-8b")
    token = kv_footprint(spec, Dtype.BF16).bytes_per_token
    assert items["kv"].bytes == plan.kv_tokens * token // 2  # 16 of 32 layers
    assert plan.kv_bytes_per_token == token // 2
    whole = weight_bytes(spec).total_bytes
    assert items["weights"].bytes + plan.item("weights").bytes == whole
    assert plan.to_json()["host"] == plan.host.to_json()
    assert plan.host.total_bytes == sum(item.bytes for item in plan.host.items)


def test_experts_on_the_host_leave_all_kv_on_the_gpu() -> None:
    plan = llama("qwen3-30b-a3b", cpu_moe=40, max_len=8192)
    assert plan.host is not None
    assert [item.name for item in plan.host.items] == ["weights"]
    assert "experts of layers 0 to 39" in plan.host.items[0].detail
    assert "a copy of a host matrix" in plan.item("workspace").detail


def test_several_gpus_share_the_layers_and_each_has_its_ledger() -> None:
    plan = llama("llama-3.3-70b", "2xrtx-4090", max_len=4096, weights="q4_0", trace=False)
    assert [one.layers for one in plan.rank_ledgers] == [range(41), range(41, 80)]
    assert plan.to_json()["pipeline_parallel"] == 2
    assert llama("llama-3.3-70b", pp=2, max_len=4096, weights="q4_0", trace=False).items == plan.items
    assert "layer" in plan.command


@pytest.mark.parametrize(
    ("asked", "flags"),
    [
        ({"engine": "vllm", "tp": 2}, ("--kv-offloading-size", "64")),
        ({"engine": "vllm", "dp": 2}, ("--kv-offloading-size", "32")),
        ({"engine": "sglang", "tp": 2}, ("--hicache-size", "34")),
    ],
)
def test_a_tier_in_host_memory_holds_prefixes(asked: dict[str, object], flags: tuple[str, str]) -> None:
    plan = brim.plan("llama-3.1-8b", gpu="h200", max_len=8192, host_kv="64GiB", **asked)  # type: ignore[arg-type]
    token = kv_footprint(load_model("llama-3.1-8b"), Dtype.BF16).bytes_per_token
    assert plan.host is not None
    assert plan.host.prefix_tokens == 64 * GIB // token
    assert [(item.name, item.bytes) for item in plan.host.items] == [("kv tier", 64 * GIB)]
    at = plan.command.index(flags[0])
    assert plan.command[at : at + 2] == flags


def test_a_tier_smaller_than_the_cache_is_noted_where_the_engine_refuses_it() -> None:
    plan = brim.plan("llama-3.1-8b", gpu="h200", max_len=8192, host_kv="8GiB", engine="sglang", trace=False)
    assert any("raise host-kv" in text for text in plan.warnings)

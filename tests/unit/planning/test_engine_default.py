"""What engines do that are told no size: their own rules, worked out by hand, and what holds for all of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import brim
from brim.cli.main import run
from brim.cli.show.answer import by_itself
from brim.planning.devices import find_device
from brim.records.plan import EngineDefault
from brim.units import GIB, MIB

BY_RULE = ["sglang", "trtllm", "max", "lightllm"]
TOKEN_BYTES = 131_072  # of KV, Llama 3.1 8B
WEIGHTS_BYTES = 16_060_522_496


def default_of(engine: str, gpu: str = "h200", model: str = "llama-3.1-8b", **asked: Any) -> EngineDefault:
    found = brim.plan(model, gpu=gpu, engine=engine, **asked).engine_default
    assert found is not None
    return found


@pytest.mark.parametrize("engine", BY_RULE)
def test_a_rule_that_was_not_measured_says_so(engine: str) -> None:
    found = default_of(engine, max_len=8192)
    assert found.checked == "by its own rules, not measured here"
    assert found.dies_from_fraction is None
    assert found.starts
    assert found.to_json()["checked"] == found.checked
    assert "not measured here" in by_itself(engine, found)


def test_vllm_says_what_it_was_compared_with() -> None:
    found = default_of("vllm", max_len=8192)
    assert (found.fraction, found.checked) == (0.92, "compared with starts of vLLM 0.26 on an H200")
    assert found.dies_from_fraction is not None


def test_an_engine_without_a_size_of_its_own_has_none() -> None:
    assert brim.plan("llama-3.1-8b", gpu="h200", engine="llama.cpp").engine_default is None
    assert brim.plan("llama-3.1-8b", gpu="h200").engine_default is None


def test_sglang_reserves_by_the_size_of_the_device() -> None:
    device = find_device("h200")
    reserve = (512 + 8192 * 1.5 + 128 + 256 * 2 + 58 * 8) * MIB
    fraction = round((device.usable_bytes - reserve) / device.usable_bytes, 3)
    found = default_of("sglang", max_len=8192)
    assert (found.fraction, found.activation_bytes) == (fraction, reserve)
    kv_bytes = (device.usable_bytes - device.context_bytes) * fraction - WEIGHTS_BYTES
    assert found.kv_tokens == pytest.approx(kv_bytes / TOKEN_BYTES, abs=2)
    assert default_of("sglang", gpu="rtx-4090", max_len=8192).activation_bytes == (512 + 3072 + 128 + 48 + 464) * MIB


def test_sglang_keeps_ten_gib_on_large_devices_and_more_for_images() -> None:
    assert default_of("sglang", batch_tokens=2048, max_len=8192).activation_bytes == 10 * GIB
    asked = {"model": "qwen2.5-vl-7b", "max_len": 8192}
    assert default_of("sglang", **asked).fraction < default_of("sglang", **asked, images_per_prompt=0).fraction


def test_trtllm_takes_nine_tenths_of_what_a_step_leaves() -> None:
    device, found = find_device("h200"), default_of("trtllm", max_len=8192)
    free = device.usable_bytes - device.context_bytes - WEIGHTS_BYTES - found.activation_bytes
    assert found.kv_tokens == pytest.approx(0.9 * free / TOKEN_BYTES, abs=32)


def test_max_takes_no_more_than_a_full_batch_needs() -> None:
    device, found = find_device("h200"), default_of("max", max_len=8192)
    kv_bytes = (device.usable_bytes - device.context_bytes) * 0.9 - WEIGHTS_BYTES
    assert found.kv_tokens == pytest.approx(kv_bytes / TOKEN_BYTES, abs=128)
    assert default_of("max", max_len=1024, max_seqs=64).kv_tokens == 64 * 1024


def test_lightllm_does_not_start_where_a_step_does_not_fit_into_its_tenth() -> None:
    asked = {"gpu": "24GiB", "max_len": 32768}
    assert default_of("lightllm", batch_tokens=8192, **asked).starts
    assert not default_of("lightllm", batch_tokens=32768, **asked).starts
    assert default_of("lightllm").max_len == 16384


@settings(max_examples=80, deadline=None)
@given(
    engine=st.sampled_from(["vllm", *BY_RULE]),
    model=st.sampled_from(["llama-3.1-8b", "qwen3-30b-a3b", "gemma-2-9b"]),
    sizes=st.tuples(st.integers(24, 200), st.integers(24, 200)),
)
def test_a_larger_device_never_takes_fewer_tokens_within_a_class(
    engine: str, model: str, sizes: tuple[int, int]
) -> None:
    smaller, larger = sorted(sizes)
    assume(engine != "sglang" or all((smaller < edge) == (larger < edge) for edge in (35, 60, 61, 160)))
    few, many = (default_of(engine, f"{size}GiB", model, max_len=8192, max_seqs=64) for size in (smaller, larger))
    assert few.kv_tokens <= many.kv_tokens + 0.0005 * many.kv_tokens  # fractions are rounded


def test_the_table_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "llama-3.1-8b", "--gpu", "h200", "--engine", "sglang", "--max-len", "8k"]) == 0
    said = capsys.readouterr().out
    assert "sglang by itself takes" in said
    assert "by its own rules, not measured here" in said
    assert "with sglang 0.5.23" in said

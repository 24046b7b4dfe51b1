"""The CPU's budget: what is counted, what is refused, and that nothing stays counted."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.ports import MemoryProbe
from brim.probes.cpu import ROUNDING, CpuProbe
from brim.records.memory import MemoryReading
from brim.records.trace import TraceShape
from brim.units import MIB, round_up

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from brim.trace.build import build_model  # noqa: E402
from brim.trace.tracer import trace_model  # noqa: E402

TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 500,
    "max_position_embeddings": 1024,
}
MODES = pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])


def tiny_model(dtype: Any = torch.float32, attention: str = "eager") -> Any:
    config = transformers.LlamaConfig(**{name: value for name, value in TINY.items() if name != "model_type"})
    return transformers.LlamaForCausalLM._from_config(config, dtype=dtype, attn_implementation=attention).eval()


def weights(model: Any) -> list[Any]:
    return [*model.parameters(), *model.buffers()]


def live(probe: CpuProbe) -> int:
    return probe.reading().allocated_bytes


@MODES
def test_every_way_of_making_a_tensor_is_counted(mode: Any) -> None:
    probe = CpuProbe(MIB)
    made: list[Any] = []
    with mode(), probe:
        for make in (
            lambda: torch.empty(100),
            lambda: torch.zeros(100),
            lambda: torch.full((100,), 1.0),
            lambda: torch.arange(100.0),
            lambda: torch.tensor([1.0] * 100),
            lambda: torch.ones(100)[:50].clone(),
            lambda: torch.randn(100),
        ):
            made.append(make())
            assert live(probe) == 512 * len(made)
    made.clear()
    assert live(probe) == 0


@MODES
def test_views_in_place_results_and_what_was_there_cost_nothing(mode: Any) -> None:
    outside = torch.ones(32, 32)
    probe = CpuProbe(MIB)
    with mode(), probe:
        kept = [outside.view(-1), outside[3:], outside.t(), outside.add_(1), outside.unsqueeze(0).expand(7, -1, -1)]
        kept += [outside.reshape(-1), outside.contiguous(), outside.float(), *outside.split(8)]
        assert (live(probe), probe.allocations) == (0, 0)
        x = torch.empty(1024)
        kept += [x, x.view(32, 32).t(), x.mul_(2), torch.add(x, x, out=x), x.detach()]
        assert (live(probe), probe.allocations) == (4096, 1)
    last = x[:1]
    del kept, x
    assert live(probe) == 4096  # a view keeps the whole storage
    del last
    assert live(probe) == 0


def test_a_tensor_that_grows_is_counted_again() -> None:
    probe = CpuProbe(MIB)
    with torch.no_grad(), probe:
        x = torch.empty(0)
        assert probe.allocations == 0
        x.resize_(1000)
        assert (live(probe), probe.allocations) == (4096, 1)
        torch.add(torch.ones(2000), 1, out=x.resize_(0))
        assert live(probe) == round_up(8000, ROUNDING)
    del x
    assert live(probe) == 0


def test_it_refuses_with_the_message_of_cuda_and_keeps_counting() -> None:
    probe = CpuProbe(10_000)
    with torch.no_grad(), probe:
        x = torch.empty(1000)
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.cat([x, x])
        assert "Tried to allocate 8192 bytes" in str(caught.value)
        assert "total capacity of 10000 bytes of which 5904 bytes is free" in str(caught.value)
        assert live(probe) == 4096
        y = x + 1
    expected = MemoryReading(10_000, 10_000 - 8192, 8192, 8192, 8192, 8192, 0)
    assert probe.reading() == expected
    del y
    probe.reset_peak()
    assert probe.reading() == MemoryReading(10_000, 10_000 - 4096, 4096, 4096, 4096, 4096, 0)


def test_more_than_the_machine_has_is_refused_too() -> None:
    probe = CpuProbe(1 << 60)
    with probe, pytest.raises(torch.OutOfMemoryError, match=f"Tried to allocate {4 << 50} bytes"):
        torch.empty(1 << 50)
    assert live(probe) == 0


def test_held_tensors_count_until_they_die() -> None:
    model = tiny_model()
    probe = CpuProbe(MIB)
    probe.hold(weights(model))
    once = live(probe)
    assert once == sum(round_up(t.untyped_storage().nbytes(), ROUNDING) for t in weights(model))
    probe.hold(weights(model))
    assert live(probe) == once
    with pytest.raises(torch.OutOfMemoryError):
        probe.hold([torch.empty(10, device="meta"), torch.empty(MIB)])
    assert live(probe) == once
    del model
    gc.collect()
    assert live(probe) == 0


def test_entering_again_and_inside_itself() -> None:
    probe = CpuProbe(MIB)
    kept = []
    for step in range(1, 100):
        with probe, probe:
            kept.append(torch.empty(1))
        torch.empty(1000)  # outside: not counted
        assert (live(probe), probe.allocations) == (512 * step, step)
    with pytest.raises(ValueError, match="out"), probe, probe:
        raise ValueError("out")
    kept.append(torch.empty(1))
    assert probe.allocations == 99


def test_each_thread_enters_for_itself_and_deaths_count_anywhere() -> None:
    probe = CpuProbe(MIB)
    made: list[Any] = []

    def outside() -> None:
        made.append(torch.empty(1000))

    def inside() -> None:
        with probe:
            made.append(torch.empty(100))

    with probe:
        for target in (outside, inside):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
        made.append(torch.empty(100))
        assert live(probe) == 2 * 512
    thread = threading.Thread(target=made.clear)
    thread.start()
    thread.join()
    assert live(probe) == 0


@MODES
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_forward_fits_to_the_byte_and_not_a_byte_below(mode: Any, attention: str) -> None:
    model = tiny_model(attention=attention)
    ids = torch.arange(96)[None]
    roomy = CpuProbe(1 << 30)
    roomy.hold(weights(model))
    with mode(), roomy:
        expected = model(input_ids=ids).logits
    needed = roomy.reading().peak_allocated_bytes
    exact, short = CpuProbe(needed), CpuProbe(needed - 1)
    for probe in (exact, short):
        probe.hold(weights(model))
        held = live(probe)
        for _ in range(2):
            if probe is exact:
                with mode(), probe:
                    assert torch.equal(model(input_ids=ids).logits, expected)
            else:
                with mode(), probe, pytest.raises(torch.OutOfMemoryError):
                    model(input_ids=ids)
            gc.collect()
            assert live(probe) == held


@pytest.mark.parametrize(("tokens", "dtype"), [(64, "fp32"), (200, "fp32"), (200, "bf16")])
def test_the_peak_is_the_traced_one(tokens: int, dtype: str) -> None:
    meta, attention = build_model(TINY, dtype, "eager")
    traced = trace_model(meta, TraceShape(tokens=tokens, attention=attention), name="tiny", attention=attention)
    model = tiny_model({"fp32": torch.float32, "bf16": torch.bfloat16}[dtype])
    ids = torch.zeros((1, tokens), dtype=torch.long)
    probe = CpuProbe(1 << 30)
    with torch.no_grad(), probe:
        model(input_ids=ids, use_cache=False, logits_to_keep=1)
    assert probe.reading().peak_allocated_bytes == pytest.approx(traced.peak_bytes, rel=0.001)


def test_any_allocation_can_be_made_to_fail_and_leaves_nothing_behind() -> None:
    model = tiny_model()
    ids = torch.arange(8)[None]
    probe = CpuProbe(1 << 30)
    with torch.no_grad(), probe:
        model(input_ids=ids)
    count = probe.allocations
    assert count > 50
    for n in range(1, count + 1, 67):
        probe = CpuProbe(1 << 30, fail_at=n)
        with torch.no_grad(), probe, pytest.raises(torch.OutOfMemoryError):
            model(input_ids=ids)
        assert probe.allocations == n
        gc.collect()
        assert live(probe) == 0
        with torch.no_grad(), probe:
            model(input_ids=ids)


SIZES = st.integers(0, 5000)


@settings(max_examples=60, deadline=None)
@given(
    budget=st.integers(0, 40_000),
    steps=st.lists(st.tuples(st.sampled_from(["make", "free", "view", "grow", "away"]), SIZES), max_size=40),
)
def test_the_count_is_what_lives(budget: int, steps: list[tuple[str, int]]) -> None:
    """Random allocations and deaths against a plain list of what lives."""
    probe = CpuProbe(budget)
    counted: list[Any] = []
    away: list[Any] = []
    peak = 0

    def expected() -> int:
        return sum(
            {t.untyped_storage()._cdata: round_up(t.untyped_storage().nbytes(), ROUNDING) for t in counted}.values()
        )

    for action, size in steps:
        before = expected()
        new = round_up(size, ROUNDING)
        if action == "make":
            with probe:
                if before + new > budget:
                    with pytest.raises(torch.OutOfMemoryError):
                        torch.empty(size, dtype=torch.uint8)
                else:
                    counted.append(torch.empty(size, dtype=torch.uint8))
                    peak = max(peak, before + new)
        elif action == "view" and counted:
            with probe:
                counted.append(counted[size % len(counted)].view(-1))
        elif action == "grow" and counted:
            tensor = counted[size % len(counted)]
            bytes_then = tensor.untyped_storage().nbytes()
            if size > bytes_then and before + new <= budget and new != round_up(bytes_then, ROUNDING):
                with probe:
                    tensor.resize_(size)
                peak = max(peak, before + new)
            del tensor
        elif action == "away":
            away.append(torch.empty(size))
        elif counted:
            counted.pop(size % len(counted))
        assert live(probe) == expected() <= budget
        assert probe.reading().peak_allocated_bytes == peak
    counted.clear()
    assert live(probe) == 0


def test_it_is_a_probe() -> None:
    probe: MemoryProbe = CpuProbe(1)
    assert probe.reading() == MemoryReading(1, 1, 0, 0, 0, 0, 0)


def test_what_is_reserved_and_unused_takes_from_the_budget() -> None:
    probe = CpuProbe(MIB)
    with probe:
        probe.hold_unused(MIB // 2)
        kept = torch.empty(MIB // 4, dtype=torch.uint8)
        with pytest.raises(torch.OutOfMemoryError, match=f"{MIB // 4} bytes is free.*{MIB // 2} bytes is reserved"):
            torch.empty(MIB // 2, dtype=torch.uint8)
        probe.hold_unused(0)
        now = probe.reading()
        del kept
    quarter, most = MIB // 4, 3 * MIB // 4
    assert now == MemoryReading(MIB, MIB - quarter, quarter, quarter, quarter, most, 0)
    probe.reset_peak()
    assert probe.reading() == MemoryReading(MIB, MIB, 0, 0, 0, 0, 0)

"""An engine that was fitted on the CPU serves within what the fit has proven: quickly, and refusing what is beyond."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from brim.engine.engine import Engine  # noqa: E402
from brim.engine.injection import fail_long_prompts  # noqa: E402
from brim.engine.requests.params import SamplingParams  # noqa: E402
from brim.engine.requests.request import FinishReason  # noqa: E402
from brim.engine.settings import EngineSettings  # noqa: E402
from brim.probes import proven  # noqa: E402
from brim.probes.cpu import CpuProbe  # noqa: E402
from brim.probes.holders import live_tensors  # noqa: E402
from brim.probes.proven import ProvenBound  # noqa: E402
from brim.records.health import Status  # noqa: E402
from brim.serving import fit_engine  # noqa: E402
from brim.units import MIB  # noqa: E402

SETTINGS = EngineSettings(max_batch=6, max_batch_tokens=64, max_length=256)
GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
PROMPTS = [[100 + 7 * number + place for place in range(20)] for number in range(6)]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def fitted(**options: Any) -> tuple[Engine, CpuProbe]:
    probe = CpuProbe(96 * MIB, **options)
    engine = Engine("brim-tiny", device="cpu", kv_tokens=0, settings=SETTINGS, probe=probe, progress=False)
    fit_engine(engine, probe=probe, canary_bytes=2 * MIB, scaling="off", progress=False)
    return engine, probe


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Engine, CpuProbe]]:
    engine, probe = fitted(counts_serving=False)
    with engine:
        yield engine, probe


def step_seconds(engine: Engine) -> float:
    """Of a step in which all requests generate."""
    for prompt in PROMPTS:
        engine.submit(prompt, SamplingParams(max_tokens=40, temperature=0, ignore_eos=True))
    for _ in range(4):
        engine.step()
    seconds = []
    while not engine.idle:
        began = time.process_time()
        engine.step()
        seconds.append(time.process_time() - began)
    return statistics.median(seconds)


def test_a_step_takes_what_it_takes_without_a_budget(served: tuple[Engine, CpuProbe]) -> None:
    """Processor time, so that other processes do not matter. Counting every operation takes four times as long."""
    engine, _ = served
    with Engine("brim-tiny", device="cpu", kv_tokens=4096, settings=SETTINGS, progress=False) as free:
        ratios = [step_seconds(engine) / step_seconds(free) for _ in range(3)]
    assert min(ratios) < 1.3, ratios


def test_operations_are_counted_while_a_rescue_is_under_way_and_not_otherwise() -> None:
    engine, probe = fitted(counts_serving=False)
    with engine:
        wanted = engine.generate(PROMPTS, GREEDY)
        fail_long_prompts(engine, 100)
        before = probe.allocations
        assert [one.tokens for one in engine.generate(PROMPTS, GREEDY)] == [one.tokens for one in wanted]
        assert probe.allocations == before
        held = probe.reading().allocated_bytes
        doomed, *others = engine.generate([[5] * 120, *PROMPTS[:3]], GREEDY)
        assert doomed.finish_reason is FinishReason.ERROR
        assert [one.tokens for one in others] == [one.tokens for one in wanted[:3]]
        assert probe.allocations > before + 1000
        assert (engine.health.ended_requests, engine.health.rebuilds) == (1, 0)
        while engine.health.status is not Status.READY:
            engine.generate(PROMPTS, GREEDY)
        before = probe.allocations
        engine.generate(PROMPTS, GREEDY)
        assert probe.allocations == before
        assert probe.reading().allocated_bytes <= held + engine.model.runner.kept_bytes


def test_tests_count_every_step_unless_they_say_otherwise() -> None:
    engine, probe = fitted()
    with engine:
        before = probe.allocations
        engine.generate(PROMPTS[:1], GREEDY)
        assert probe.allocations > before + 1000


def test_what_is_left_behind_beyond_the_budget_is_refused_until_it_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that leaks: all that the budget had left, and what the canary holds."""
    others = {one.untyped_storage().data_ptr() for one in live_tensors(lambda tensor: tensor.is_cpu)}  # of other tests
    monkeypatch.setattr(
        proven,
        "live_tensors",
        lambda wanted: [one for one in live_tensors(wanted) if one.untyped_storage().data_ptr() not in others],
    )
    engine, probe = fitted(counts_serving=False)
    taken, kept = [0], []
    with engine:
        wanted = engine.generate(PROMPTS[:2], GREEDY)
        bound = ProvenBound(probe, 64, taken_bytes=lambda: taken[0], clock=iter(range(0, 1 << 30, 10)).__next__)
        engine.serve_within(bound)
        with torch.inference_mode():
            kept.append(torch.empty(96 * MIB, dtype=torch.uint8))
        taken[0] += 96 * MIB
        refused = engine.generate(PROMPTS[:2], GREEDY)
        assert {one.finish_reason for one in refused} == {FinishReason.ERROR}
        assert all("out of memory" in one.error for one in refused)
        assert engine.health.status is Status.DEGRADED
        kept.clear()
        assert [one.tokens for one in engine.generate(PROMPTS[:2], GREEDY)] == [one.tokens for one in wanted]


def test_a_larger_step_than_was_proven_is_run_in_parts(served: tuple[Engine, CpuProbe]) -> None:
    engine, probe = served
    wanted = engine.generate(PROMPTS, GREEDY)
    runner = engine.loop.runner
    engine.serve_within(ProvenBound(probe, 32))
    assert [one.tokens for one in engine.generate([[9, *prompt] for prompt in PROMPTS], GREEDY)]
    assert engine.health.rescues > 0
    assert engine.health.ended_requests == 0
    engine.loop.runner = runner
    assert [one.tokens for one in engine.generate(PROMPTS, GREEDY)] == [one.tokens for one in wanted]

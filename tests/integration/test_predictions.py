"""What is predicted of an engine on the meta device, against the same engine counted on the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import brim.engine.model as assembling  # noqa: E402
import brim.trace.watch as watch  # noqa: E402
from brim import predictions  # noqa: E402
from brim.engine.attention.meta import MetaAttention  # noqa: E402
from brim.engine.attention.paged import NAME, register  # noqa: E402
from brim.engine.engine import Engine  # noqa: E402
from brim.engine.settings import EngineSettings  # noqa: E402
from brim.engine.stress.text import PLAIN  # noqa: E402
from brim.engine.weights.load import load  # noqa: E402
from brim.errors import DoesNotFit, UnsupportedModel  # noqa: E402
from brim.predictions import predicted_activation, predicted_bytes, traced_steps  # noqa: E402
from brim.probes.cpu import CpuProbe  # noqa: E402
from brim.records.fit import AttemptOutcome  # noqa: E402
from brim.records.memory import StressShape  # noqa: E402
from brim.serving import fit_engine  # noqa: E402
from brim.units import GIB, KIB, ceil_div  # noqa: E402
from tests.integration.tiny_models import tiny_config  # noqa: E402

register()
SETTINGS = EngineSettings(max_batch=4, max_batch_tokens=128, max_length=256, block_size=8)
KINDS = ["llama", "gemma3_text", "qwen3_moe", "deepseek_v3", "qwen3_5_text", "nemotron_h", "lfm2"]


def engine_of(kind: str, probe: CpuProbe, settings: EngineSettings = SETTINGS) -> Engine:
    made = load(tiny_config(kind), load_format="dummy", dtype="bf16", device="cpu", attention=NAME)
    probe.hold([*made.model.parameters(), *made.model.buffers()])
    return Engine(made, device="cpu", settings=settings, kv_tokens=0, probe=probe)


@pytest.mark.parametrize("kind", KINDS)
def test_a_trace_is_of_the_engine_s_own_steps(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted with attention that takes what kernels take, as on a GPU; all else is the real run."""
    monkeypatch.setattr(assembling, "make_backend", lambda name, sizes: MetaAttention())
    monkeypatch.setattr(watch, "kernel_scratch", lambda *_: 0)  # kernels of the CPU take none that is counted
    probe = CpuProbe(GIB)
    engine = engine_of(kind, probe)
    shapes = (*engine.stress_shapes(), StressShape(PLAIN, 96, 3))
    counted = []
    with engine:
        engine.build(1024)
        for shape in shapes:
            probe.reset_peak()
            before = probe.reading().allocated_bytes
            engine.stress(shape)
            counted.append(probe.reading().peak_allocated_bytes - before)
    assert traced_steps(engine, shapes) == pytest.approx(counted, rel=0.01)


def test_states_have_a_line_of_their_own() -> None:
    probe = CpuProbe(256 * 1024 * KIB)
    with engine_of("qwen3_5_text", probe) as engine:
        report = fit_engine(engine, probe=probe, canary_bytes=32 * KIB)
        items = {item.name: item for item in report.items}
        assert items["state"].measured_bytes == items["state"].predicted_bytes == engine.state_bytes > 0
        assert items["graphs"].measured_bytes < engine.state_bytes


def test_models_without_states_have_no_such_line() -> None:
    probe = CpuProbe(256 * 1024 * KIB)
    with engine_of("llama", probe) as engine:
        report = fit_engine(engine, probe=probe, canary_bytes=32 * KIB)
        assert "state" not in {item.name for item in report.items}
        assert predicted_bytes(engine, report)["state"] == 0


def test_states_that_do_not_fit_name_the_requests_that_would() -> None:
    """Nothing can be measured, as not even the states of all requests fit: the trace says how much a step takes."""
    many, canary = replace(SETTINGS, max_batch=16), 32 * KIB
    probe = CpuProbe(GIB)
    engine = engine_of("qwen3_5_text", probe, many)
    held, slot_bytes = probe.reading().allocated_bytes, engine.state_bytes // 17
    step = predicted_activation(engine)
    assert step is not None
    probe.budget_bytes = held + step + engine.state_bytes // 2
    with pytest.raises(DoesNotFit, match="with the traced worst step") as caught:
        fit_engine(engine, probe=probe, canary_bytes=canary)
    assert probe.reading().allocated_bytes == held
    missing = engine.state_bytes // 2 + engine.kv_bytes(engine.least_tokens) + canary
    assert caught.value.missing_bytes == missing
    knob = next(knob for knob in caught.value.knobs if knob.name == "max_batch")
    assert int(knob.proposed) == 16 - ceil_div(missing, slot_bytes)
    assert f"max_batch (--max-seqs)            16 -> {knob.proposed}" in str(caught.value)
    turned = replace(many, max_batch=int(knob.proposed) - 2)  # on the CPU attention takes a little more than traced
    with Engine(engine.loaded, device="cpu", settings=turned, kv_tokens=0, probe=probe) as fewer:
        assert fit_engine(fewer, probe=probe, canary_bytes=canary).attempts[-1].outcome is AttemptOutcome.PROVEN


def test_a_fit_does_not_fail_because_a_prediction_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> list[int]:
        raise UnsupportedModel("attends by code of its own")

    monkeypatch.setattr(predictions, "traced_steps", refuse)
    probe = CpuProbe(256 * 1024 * KIB)
    with engine_of("llama", probe) as engine:
        report = fit_engine(engine, probe=probe, canary_bytes=32 * KIB)
        assert report.attempts[-1].outcome is AttemptOutcome.PROVEN
        assert {item.name: item.predicted_bytes for item in report.items}["activation"] is None

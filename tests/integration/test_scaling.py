"""Laws learned on the real engine, against steps that were not measured for them; every byte is really counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from brim.engine.attention.paged import NAME, register  # noqa: E402
from brim.engine.engine import Engine  # noqa: E402
from brim.engine.settings import EngineSettings  # noqa: E402
from brim.engine.stress.text import ALIKE, DECODE, PREFILL  # noqa: E402
from brim.engine.weights.load import load  # noqa: E402
from brim.errors import InvalidRequest  # noqa: E402
from brim.probes.cpu import CpuProbe  # noqa: E402
from brim.records.fit import FitReport  # noqa: E402
from brim.records.memory import StressShape  # noqa: E402
from brim.records.scaling import Coefficients, Law, Scaling, ScalingMode, StepPhase, StepShape  # noqa: E402
from brim.serving import fit_engine  # noqa: E402
from brim.units import KIB, MIB  # noqa: E402
from tests.conftest import sampled  # noqa: E402
from tests.integration.tiny_models import tiny_config  # noqa: E402

SETTINGS = EngineSettings(max_batch=8, max_batch_tokens=128, max_length=160, block_size=8)
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("llama", {"num_hidden_layers": 2}),
    "windows": ("gemma3_text", {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}),
    "mixture": ("qwen3_moe", {"num_hidden_layers": 2}),
    "hybrid": ("qwen3_5_text", {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}),
}
GIVEN = Scaling(Law(Coefficients(bytes_per_unit=64.0 * KIB)), Law(Coefficients(constant_bytes=float(MIB))))
register()


@contextmanager
def engine_of(family: str) -> Iterator[tuple[Engine, CpuProbe]]:
    kind, changes = FAMILIES[family]
    made = load(tiny_config(kind, **changes), load_format="dummy", dtype="fp32", device="cpu", attention=NAME)
    probe = CpuProbe(24 * MIB)
    probe.hold([*made.model.parameters(), *made.model.buffers()])
    with Engine(made, kv_tokens=0, settings=SETTINGS, device="cpu", probe=probe) as engine:
        yield engine, probe
        probe.hold_canary(0)


def fitted(engine: Engine, probe: CpuProbe, **options: Any) -> FitReport:
    return fit_engine(engine, probe=probe, canary_bytes=32 * KIB, **options)


def peak_of(engine: Engine, probe: CpuProbe, shape: StressShape) -> int:
    probe.reset_peak()
    held = probe.reading().allocated_bytes
    engine.stress(shape)
    return probe.reading().peak_allocated_bytes - held


@pytest.mark.parametrize("family", sampled(FAMILIES, ("windows", "hybrid")))
def test_no_step_takes_more_than_its_bound(family: str) -> None:
    """Steps of sizes and compositions that were not measured, on the fitted engine."""
    with engine_of(family) as (engine, probe):
        scaling = fitted(engine, probe).scaling
        assert scaling is not None
        assert len(scaling.residuals) <= (14 if family == "hybrid" else 8)
        for tokens, rows in ((16, 1), (24, 3), (64, 1), (64, 8), (80, 5), (100, 8), (128, 2), (128, 8)):
            shape = StepShape(StepPhase.PREFILL, rows, tokens)
            for name in (PREFILL, ALIKE) if family == "hybrid" and rows > 1 else (PREFILL,):
                stress = StressShape(name, tokens // rows * rows if name == ALIKE else tokens, rows)
                assert peak_of(engine, probe, stress) <= scaling.scaling.need_bytes(shape), stress
        learned = [step.stress for step in engine.scaling_steps().steps if step.stress.name == ALIKE]
        for length in {one.tokens // one.sequences for one in learned}:
            for rows in range(1, 1 + min(8, 128 // length)):
                shape = StepShape(StepPhase.PREFILL, rows, rows * length)
                stress = StressShape(ALIKE, rows * length, rows)
                assert peak_of(engine, probe, stress) <= scaling.scaling.need_bytes(shape), stress
        for rows in range(1, 9):
            measured = peak_of(engine, probe, StressShape(DECODE, rows, rows))
            assert measured <= scaling.scaling.need_bytes(StepShape(StepPhase.NEXT_TOKEN, rows, rows)), rows
        largest = peak_of(engine, probe, StressShape(PREFILL, 128, 8))
        if family != "hybrid":  # whose bound is of chunks of equal length
            assert scaling.scaling.need_bytes(StepShape(StepPhase.PREFILL, 8, 128)) <= 1.1 * largest


@pytest.mark.parametrize("family", sampled(FAMILIES, ("dense", "hybrid")))
def test_the_laws_alone_give_the_size_that_was_measured(family: str) -> None:
    with engine_of(family) as (engine, probe):
        report = fitted(engine, probe)
        assert report.scaling is not None
        assert report.scaling.kv_tokens_without_rebuild == pytest.approx(report.kv_tokens, rel=0.02)


def test_the_limit_is_the_budget_less_the_margin() -> None:
    with engine_of("dense") as (engine, probe):
        report = fitted(engine, probe)
        scaling = report.scaling
        assert scaling is not None
        activation = next(item.measured_bytes for item in report.items if item.name == "activation")
        assert scaling.budget_bytes == report.kv_bytes + (activation or 0)
        assert scaling.mode is ScalingMode.AUTO
        assert 0 < scaling.derived_margin_percent < 1
        assert scaling.limit_bytes == int(scaling.budget_bytes * (1 - scaling.derived_margin_percent / 100))


def test_modes_and_margins_that_are_given() -> None:
    with engine_of("dense") as (engine, probe):
        off = fitted(engine, probe, scaling="off")
        assert off.scaling is None
        assert off.seconds.scaling == 0
        engine.teardown()
        manual = fitted(engine, probe, scaling="manual", coefficients=GIVEN, safety_margin=7).scaling
        assert manual is not None
        assert (manual.mode, manual.scaling, manual.margin_percent) == (ScalingMode.MANUAL, GIVEN, 7)
        assert manual.derived_margin_percent != 7


def test_a_given_size_learns_too() -> None:
    with engine_of("dense") as (engine, probe):
        report = fitted(engine, probe, kv_tokens=512)
        assert report.scaling is not None
        assert report.scaling.kv_tokens_without_rebuild is None


def test_a_size_too_small_for_the_steps_says_so() -> None:
    with engine_of("dense") as (engine, probe):
        report = fitted(engine, probe, kv_tokens=128)  # no pool for a full step beside each request's last block
        small = replace(SETTINGS, max_batch=8, max_batch_tokens=16, max_length=24)
        assert report.scaling is not None
        assert {one.measured.tokens for one in report.scaling.residuals} <= {2, 8, 32, 80}
        engine.teardown()
        other = Engine(engine.loaded, kv_tokens=0, settings=small, device="cpu", probe=probe)
        tiny = fitted(other, probe, kv_tokens=16)
        assert tiny.scaling is None
        assert any("scaling is off" in warning for warning in tiny.warnings)
        other.teardown()


def test_a_stored_fit_has_its_laws_and_takes_another_margin(tmp_path: Path) -> None:
    with engine_of("dense") as (engine, probe):
        first = fitted(engine, probe, store=tmp_path)
        engine.teardown()
        again = fitted(engine, probe, store=tmp_path, safety_margin=3)
        assert again.from_store
        assert first.scaling is not None
        assert again.scaling == replace(first.scaling, given_margin_percent=3.0)
        engine.teardown()
        assert not fitted(engine, probe, store=tmp_path, scaling="off").from_store


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"scaling": "sometimes"}, "scaling is 'sometimes'"),
        ({"scaling": "manual"}, "manual without coefficients"),
        ({"coefficients": GIVEN}, "use --scaling manual"),
        ({"safety_margin": 100}, "safety_margin is 100"),
        ({"safety_margin": float("nan")}, "safety_margin is nan"),
    ],
)
def test_bad_input_is_refused_before_anything_is_built(options: dict[str, Any], reason: str) -> None:
    with engine_of("dense") as (engine, probe), pytest.raises(InvalidRequest, match=reason):
        fitted(engine, probe, **options)

"""Laws from measured shapes: never negative, never below what was measured or held back, never falling with size."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from brim.errors import InvalidRequest
from brim.fit.scaling.blocks import kv_share, kv_tokens_without_rebuild
from brim.fit.scaling.learn import REPEATED_STEP, learn, report_scaling
from brim.records.memory import StressShape
from brim.records.scaling import (
    Coefficients,
    Law,
    MeasuredShape,
    Scaling,
    ScalingMode,
    ScalingRequest,
    ScalingStep,
    ScalingSteps,
    StepPhase,
    StepShape,
)
from brim.units import GIB, MIB

PREFILL, NEXT_TOKEN = StepPhase.PREFILL, StepPhase.NEXT_TOKEN
SLICES = ScalingSteps((), slice_tokens=None, slice_rows=64)
SIZES = ((PREFILL, 1, 2048), (PREFILL, 1, 8192))
BATCHES = ((NEXT_TOKEN, 16, 16), (NEXT_TOKEN, 64, 64), (NEXT_TOKEN, 256, 256), (NEXT_TOKEN, 256, 2048))
TERMS = [name for name in Coefficients.__slots__ if name != "slice_units"]
Point = tuple[tuple[StepPhase, int, int], int]
NOISE = REPEATED_STEP / 4


@st.composite
def truths(draw: st.DrawFn) -> Scaling:
    """What a step takes by laws of the family: a decoder of some KiB a token, a sampler of some MiB a row."""
    prefill = Coefficients(draw(st.floats(0, 1e8)), draw(st.floats(2e4, 1e6)))
    per_token = draw(st.floats(0, 2e4))  # hidden states are a part of what the decoder holds
    drawing = Coefficients(
        constant_bytes=draw(st.floats(0, 1e8)),
        bytes_per_unit=draw(st.floats(1e4, 1e6)),
        bytes_per_sliced_unit=draw(st.floats(0, 2e7)),
        bytes_per_carried_token=per_token,
        slice_units=64,
    )
    return Scaling(Law(prefill), Law(drawing))


def observed(truth: Scaling, phase: StepPhase, batch: int, tokens: int, error: float = 0.0) -> MeasuredShape:
    exact = MeasuredShape(phase, batch, tokens, 0, 0)
    return replace(exact, bytes=round(truth.need_bytes(exact.shape) * (1 + error)))


def measurements(truth: Scaling, draw: st.DrawFn | None = None) -> list[MeasuredShape]:
    """Decoder shapes show the decoder only where it is the larger stage: one row, as in an engine's steps."""
    errors = st.floats(-NOISE, NOISE)
    return [observed(truth, *shape, error=0.0 if draw is None else draw(errors)) for shape in (*SIZES, *BATCHES)]


@given(truths(), st.data())
def test_the_bound_is_never_under_what_is_measured_or_held_back(truth: Scaling, data: st.DataObject) -> None:
    assume(truth.need_bytes(StepShape(PREFILL, 1, 2048)) > truth.next_token.bound_bytes(1, 2048, 0))
    measured = measurements(truth, data.draw)
    learned = learn(measured, (), SLICES)
    for one in measured:
        assert learned.need_bytes(one.shape) >= one.bytes
    rows = data.draw(st.integers(1, 256))
    tokens = data.draw(st.integers(rows, 8192))
    shapes = [observed(truth, NEXT_TOKEN, rows, rows, error=NOISE)]
    if tokens > rows:
        shapes.append(observed(truth, PREFILL, rows, tokens, error=NOISE))
    for one in shapes:
        assert learned.need_bytes(one.shape) >= one.bytes


@given(truths(), st.data())
def test_the_bound_of_the_largest_step_is_close(truth: Scaling, data: st.DataObject) -> None:
    assume(truth.need_bytes(StepShape(PREFILL, 1, 2048)) > truth.next_token.bound_bytes(1, 2048, 0))
    largest = StepShape(PREFILL, 256, 8192)
    learned = learn(measurements(truth), (), SLICES)
    assert learned.need_bytes(largest) <= truth.need_bytes(largest) * (1 + REPEATED_STEP) * 1.001


@given(truths(), st.data())
def test_a_larger_step_is_never_predicted_to_need_less(truth: Scaling, data: st.DataObject) -> None:
    learned = learn(measurements(truth, data.draw), (), SLICES)
    phase = data.draw(st.sampled_from(StepPhase))
    small, more = ([data.draw(st.integers(0, 4096)) for _ in range(3)] for _ in range(2))
    large = [one + other for one, other in zip(small, more, strict=True)]
    assert learned.need_bytes(StepShape(phase, *small)) <= learned.need_bytes(StepShape(phase, *large))


@given(st.lists(st.tuples(st.sampled_from((*SIZES, *BATCHES)), st.integers(0, 64 * GIB)), min_size=2, max_size=8))
def test_any_measurements_give_coefficients_that_are_not_negative(
    points: list[Point],
) -> None:
    measured = [MeasuredShape(phase, batch, tokens, 0, size) for (phase, batch, tokens), size in points]
    assume({one.phase for one in measured} == set(StepPhase))
    learned = learn(measured, (), SLICES)
    for law in (learned.prefill, learned.next_token):
        terms = [getattr(law.coefficients, name) for name in TERMS]
        assert min(*terms, law.allowance_bytes, law.allowance) >= 0
    for one in measured:
        assert learned.need_bytes(one.shape) >= one.bytes


def test_terms_are_found_where_they_are() -> None:
    truth = Scaling(
        Law(Coefficients(3 * MIB, 120_000.0)),
        Law(Coefficients(MIB, 250_000.0, 6_500_000.0, bytes_per_carried_token=8192.0, slice_units=64)),
    )
    learned = learn(measurements(truth), (), SLICES)
    for found, real in ((learned.prefill, truth.prefill), (learned.next_token, truth.next_token)):
        assert found.coefficients.slice_units == real.coefficients.slice_units
        for name in TERMS:
            assert getattr(found.coefficients, name) == pytest.approx(getattr(real.coefficients, name), rel=0.01)


def test_attention_that_is_not_fused_is_quadratic() -> None:
    truth = Coefficients(MIB, 100_000.0, bytes_per_token_pair=64.0)
    sizes = [(512, 512), (2048, 2048), (512, 8192), (4096, 4096)]
    shapes = [MeasuredShape(PREFILL, 1, size, seen, round(truth.at(size, size, seen))) for size, seen in sizes]
    learned = learn([*shapes, MeasuredShape(NEXT_TOKEN, 8, 8, 512, MIB)], (), SLICES)
    assert learned.prefill.coefficients.bytes_per_token_pair == pytest.approx(64.0, rel=1e-3)
    assert learned.prefill.coefficients.bytes_per_unit == pytest.approx(100_000.0, rel=1e-3)


def test_a_traced_curve_makes_one_measured_size_enough() -> None:
    """The engine takes 8 % less than was traced, at every size (compiled code)."""
    truth = Coefficients(200 * MIB, 90_000.0)
    traced = [MeasuredShape(PREFILL, 1, size, 0, round(truth.at(size, size, 0) / 0.92)) for size in (1024, 4096, 8192)]
    measured = [MeasuredShape(PREFILL, 1, 1024, 0, round(truth.at(1024, 1024, 0))), observed_row()]
    largest = truth.at(8192, 8192, 0)
    alone = learn(measured, (), SLICES).prefill.bound_bytes(8192, 8192, 0)
    started = learn(measured, traced, SLICES).prefill.bound_bytes(8192, 8192, 0)
    assert largest <= started <= 1.02 * largest
    assert abs(alone / largest - 1) > 0.5


def test_a_traced_curve_of_another_form_is_not_used() -> None:
    measured = [MeasuredShape(PREFILL, 1, 2048, 0, 800 * MIB), MeasuredShape(PREFILL, 1, 8192, 0, 1200 * MIB)]
    traced = [MeasuredShape(PREFILL, 1, size, 0, size * 600_000) for size in (2048, 8192)]
    rows = [observed_row()]
    assert learn([*measured, *rows], traced, SLICES) == learn([*measured, *rows], (), SLICES)


def observed_row() -> MeasuredShape:
    return MeasuredShape(NEXT_TOKEN, 64, 64, 0, MIB)


@pytest.mark.parametrize("phase", StepPhase)
def test_both_phases_are_needed(phase: StepPhase) -> None:
    with pytest.raises(InvalidRequest, match="of each phase"):
        learn([MeasuredShape(phase, 1, 1, 0, 100)], (), SLICES)


# -- the report --------------------------------------------------------------------------------------------------------

EXACT = Scaling(Law(Coefficients(0.0, 100_000.0)), Law(Coefficients(0.0, 1_000_000.0)))
REQUEST = ScalingRequest(SLICES)


def test_a_shape_held_back_that_is_above_raises_the_bound_and_the_margin() -> None:
    held_back = MeasuredShape(NEXT_TOKEN, 128, 128, 0, 180_000_000, held_back=True)
    measured = [*measurements(EXACT), held_back]
    report = report_scaling(measured, REQUEST, budget_bytes=10 * GIB)
    last = report.residuals[-1]
    assert last.before_bytes is not None
    assert last.before_bytes < held_back.bytes <= last.bound_bytes
    assert report.held_back_error == last.before_bytes / held_back.bytes - 1 < 0
    calm = report_scaling(measurements(EXACT), REQUEST, budget_bytes=10 * GIB)
    more = (report.derived_margin_percent - calm.derived_margin_percent) / 100 * 10 * GIB
    assert more == pytest.approx(180_000_000 - 128_000_000, rel=0.05)


def test_the_derived_margin_is_applied_unless_one_is_given() -> None:
    derived = report_scaling(measurements(EXACT), REQUEST, budget_bytes=GIB)
    assert derived.mode is ScalingMode.AUTO
    assert 0 < derived.derived_margin_percent == derived.margin_percent
    assert derived.limit_bytes == int(GIB * (1 - derived.margin_percent / 100))
    given_ = report_scaling(measurements(EXACT), replace(REQUEST, margin_percent=5.0), budget_bytes=GIB)
    assert given_.derived_margin_percent == derived.derived_margin_percent
    assert (given_.margin_percent, given_.limit_bytes) == (5.0, int(GIB * 0.95))


def test_given_laws_are_used_as_they_are_and_checked() -> None:
    half = Scaling(Law(Coefficients(0.0, 50_000.0)), EXACT.next_token)
    report = report_scaling(measurements(EXACT), replace(REQUEST, given=half), budget_bytes=10 * GIB)
    assert (report.mode, report.scaling) == (ScalingMode.MANUAL, half)
    missing = 8192 * 50_000
    assert report.derived_margin_percent / 100 * 10 * GIB == pytest.approx(missing + 0.01 * 8192 * 100_000, rel=0.001)


# -- blocks ------------------------------------------------------------------------------------------------------------


def test_blocks_without_a_rebuild_leave_the_largest_step_its_memory() -> None:
    steps = [ScalingStep(StressShape("prefill", 8192, 1), StepShape(PREFILL, 1, 8192))]
    shapes = [one.shape for one in steps]
    need = EXACT.need_bytes(shapes[0])
    tokens = kv_tokens_without_rebuild(need + 1000 * 512 + 511, EXACT, shapes, lambda count: count * 512, 1 << 30)
    assert tokens == 1000
    assert kv_tokens_without_rebuild(need - 1, EXACT, shapes, lambda count: count * 512, 1 << 30) == 0
    assert kv_share(4 * need, EXACT, shapes) == pytest.approx(0.75)
    assert kv_share(need // 2, EXACT, shapes) == 0

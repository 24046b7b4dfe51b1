"""From measured steps to laws, and from laws to a report.

In: measured shapes, points of the traced curve, what the engine works on in slices. Out: `Scaling`, whose bounds are
not below any shape that was measured, and a `ScalingReport` with the margin that the residuals ask for.

The traced curve is the starting point: its points count as weak observations, corrected by the ratio of measured to
traced. A curve of another form than the measured points (the engine runs the model in pieces) is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from brim.errors import InvalidRequest
from brim.fit.scaling.least_squares import non_negative_least_squares
from brim.records.scaling import (
    Coefficients,
    Law,
    MeasuredShape,
    Residual,
    Scaling,
    ScalingMode,
    ScalingReport,
    ScalingRequest,
    ScalingSteps,
    StepPhase,
)

REPEATED_STEP = 0.01  # by which the same step may differ: rounding of tensors, a library's choice of workspace
_TRACED_WEIGHT = 0.1  # of a traced point, beside 1 for a measured one
_SAME_FORM = 0.1  # by which the ratio of measured to traced may vary over the sizes
_SMALLEST_SHARE = 1e-3  # of the largest measurement: a smaller one does not weigh more


@dataclass(frozen=True, slots=True)
class _Point:
    """An observation of one law."""

    units: int
    tokens: int
    context: int
    bytes: float
    weight: float = 1.0

    def within(self, other: _Point) -> bool:
        """No larger in anything."""
        return self.units <= other.units and self.tokens <= other.tokens and self.context <= other.context


def learn(measured: Sequence[MeasuredShape], traced: Sequence[MeasuredShape], slices: ScalingSteps) -> Scaling:
    """The laws of both stages, from the shapes that are not held back."""
    prefill_shapes = [one for one in measured if one.phase is StepPhase.PREFILL and not one.held_back]
    next_shapes = [one for one in measured if one.phase is StepPhase.NEXT_TOKEN and not one.held_back]
    if not prefill_shapes or not next_shapes:
        raise InvalidRequest("scaling: at least one measured shape of each phase is needed, prefill and next-token")
    prefill = _law(
        [_Point(one.tokens, one.tokens, one.context, one.bytes) for one in prefill_shapes],
        _starting_points(prefill_shapes, traced),
        slices.slice_tokens,
    )
    drawing = [one for one in next_shapes if _shows_drawing(one, prefill)] or next_shapes
    next_token = _law([_Point(one.batch, one.tokens, one.context, one.bytes) for one in drawing], [], slices.slice_rows)
    return Scaling(prefill, next_token)


def _shows_drawing(shape: MeasuredShape, prefill: Law) -> bool:
    """Whether its peak is that of drawing tokens: with prompt tokens beside, it may be the decoder's."""
    decoder = prefill.bound_bytes(shape.tokens, shape.tokens, shape.context)
    return shape.tokens <= shape.batch or shape.bytes > decoder


def _starting_points(measured: Sequence[MeasuredShape], traced: Sequence[MeasuredShape]) -> list[_Point]:
    """The traced curve, moved to where the measured points are; none if it has another form than they have."""
    by_tokens = {one.tokens: one.bytes for one in traced if one.bytes > 0}
    ratios = [one.bytes / by_tokens[one.tokens] for one in measured if one.tokens in by_tokens]
    if not ratios or max(ratios) > min(ratios) * (1 + _SAME_FORM):
        return []
    ratio = median(ratios)
    return [_Point(one.tokens, one.tokens, one.context, one.bytes * ratio, _TRACED_WEIGHT) for one in traced]


def _law(points: list[_Point], started_from: list[_Point], slice_units: int | None) -> Law:
    """Coefficients by least squares of the relative error, and allowances that cover every measured point."""
    points = _worst_of_each_size(points)
    terms = _Terms.of([*points, *started_from], slice_units)
    smallest = max(1.0, _SMALLEST_SHARE * max(point.bytes for point in points))
    rows, targets = [], []
    for point in (*points, *started_from):
        scale = point.weight / max(point.bytes, smallest)
        rows.append([value * scale for value in terms.row(point)])
        targets.append(point.bytes * scale)
    coefficients = terms.coefficients(non_negative_least_squares(rows, targets))
    above = [point.bytes - coefficients.at(point.units, point.tokens, point.context) for point in points]
    return Law(
        coefficients,
        allowance_bytes=max(0.0, *above),
        allowance=REPEATED_STEP,
        least_units=min(point.units for point in points),
    )


def _worst_of_each_size(points: Sequence[_Point]) -> list[_Point]:
    """Steps of one size may be composed in several ways, and a law is of the worst: at least that of a smaller step."""
    worst = (replace(point, bytes=max(one.bytes for one in points if one.within(point))) for point in points)
    return list(dict.fromkeys(worst))


_TERMS = (
    "bytes_per_unit",
    "bytes_per_sliced_unit",
    "constant_bytes",
    "bytes_per_token_pair",
    "bytes_per_carried_token",
)


@dataclass(frozen=True, slots=True)
class _Terms:
    """The terms that these points can tell apart, first those that are preferred."""

    names: tuple[str, ...]
    slice_units: int | None

    @classmethod
    def of(cls, points: Sequence[_Point], slice_units: int | None) -> _Terms:
        absent = set()
        if slice_units is None or slice_units >= max(point.units for point in points):
            absent.add("bytes_per_sliced_unit")
        if not any(point.context for point in points):
            absent.add("bytes_per_token_pair")
        if all(point.tokens == point.units for point in points):
            absent.add("bytes_per_carried_token")
        kept = tuple(name for name in _TERMS if name not in absent)
        return cls(kept, slice_units if "bytes_per_sliced_unit" in kept else None)

    def row(self, point: _Point) -> list[float]:
        """What each coefficient is multiplied with."""
        alone = (self._with({name: 1.0}) for name in self.names)
        return [one.at(point.units, point.tokens, point.context) for one in alone]

    def coefficients(self, values: Sequence[float]) -> Coefficients:
        return self._with(dict(zip(self.names, values, strict=True)))

    def _with(self, terms: dict[str, Any]) -> Coefficients:
        return Coefficients(**terms, slice_units=self.slice_units)


# -- the report --------------------------------------------------------------------------------------------------------


def report_scaling(
    measured: Sequence[MeasuredShape],
    request: ScalingRequest,
    budget_bytes: int,
) -> ScalingReport:
    """The laws that are given or learned, how they compare with what was measured, and the margin that follows."""
    given = request.given
    before = given or learn(measured, request.traced, request.steps)
    scaling = given or covering(before, measured)
    return ScalingReport(
        mode=ScalingMode.AUTO if given is None else ScalingMode.MANUAL,
        scaling=scaling,
        residuals=tuple(
            Residual(one, scaling.need_bytes(one.shape), before.need_bytes(one.shape) if one.held_back else None)
            for one in measured
        ),
        budget_bytes=budget_bytes,
        derived_margin_percent=100 * _margin_bytes(given or _bare(before), measured) / max(1, budget_bytes),
        given_margin_percent=request.margin_percent,
        kv_tokens_without_rebuild=None,
    )


def covering(scaling: Scaling, measured: Sequence[MeasuredShape]) -> Scaling:
    """The same laws, with larger allowances where a shape that was held back turned out above its bound."""
    for one in measured:
        missing = one.bytes - scaling.need_bytes(one.shape)
        if missing > 0 and one.phase is StepPhase.PREFILL:
            scaling = replace(scaling, prefill=_allowing(scaling.prefill, missing))
        elif missing > 0:
            scaling = replace(scaling, next_token=_allowing(scaling.next_token, missing))
    return scaling


def _allowing(law: Law, more_bytes: int) -> Law:
    return replace(law, allowance_bytes=law.allowance_bytes + more_bytes)


def _bare(scaling: Scaling) -> Scaling:
    """Without allowances."""
    return Scaling(
        replace(scaling.prefill, allowance_bytes=0.0, allowance=0.0),
        replace(scaling.next_token, allowance_bytes=0.0, allowance=0.0),
    )


def _margin_bytes(expected: Scaling, measured: Sequence[MeasuredShape]) -> float:
    """How far a step may be above what is expected: as far as a measured one was, and as the largest may vary."""
    upwards = [one.bytes - expected.need_bytes(one.shape) for one in measured]
    return max([0, *upwards]) + REPEATED_STEP * max(one.bytes for one in measured)

"""A curve from a few traced sizes, so that a plan for any size costs microseconds.

In: a config and the phases wanted. Out: `ActivationCurve`s, exact at their points and checked at one more traced size;
where the check fails, that size is added to the curve and another is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from brim.errors import CannotTrace
from brim.records.trace import ActivationCurve, CurvePoint, Phase, TraceShape
from brim.trace.attention import FUSED
from brim.trace.build import build_model
from brim.trace.parallel import rank_config
from brim.trace.tower_calls import is_tiled
from brim.trace.tracer import trace_model
from brim.trace.versions import traced_with

# Sizes to trace, and sizes to hold back for the check. Patches are squares of multiples of 2, 3 and 4.
SIZES = {
    "tokens": ((256, 2048, 8192), (4096, 1024, 6144, 512, 3072)),
    "sequences": ((1, 16, 256), (64, 128)),
    "patches": ((12**2, 60**2, 132**2), (96**2, 36**2, 48**2)),
    "tiles": ((1, 2, 4), (3,)),
}
WITHIN = 0.001
_UNITS = {Phase.PREFILL: "tokens", Phase.DECODE: "sequences", Phase.VISION: "patches"}


def trace_curves(
    config: Mapping[str, Any],
    *,
    name: str,
    phases: tuple[Phase, ...] = (Phase.PREFILL,),
    dtype: str = "bf16",
    ranks: int = 1,
) -> dict[Phase, ActivationCurve]:
    """Build a model once and trace it at a few sizes of each phase; a phase that cannot be traced is left out,
    unless it is the only one. Of several ranks, one: towers are whole on each.

    A class without fused attention is traced with a replacement for it: engines bring their own kernels.
    """
    config = rank_config(config, ranks)
    model, attention = build_model(config, dtype)
    if attention != "sdpa" or Phase.DECODE in phases:
        model, attention = build_model(config, dtype, FUSED)
    found: dict[Phase, ActivationCurve] = {}
    for phase in phases:
        try:
            found[phase] = replace(_curve(model, attention, name, phase), ranks=ranks)
        except CannotTrace:
            if len(phases) == 1 or phase is Phase.PREFILL:
                raise
    return found


def _curve(model: Any, attention: str, name: str, phase: Phase) -> ActivationCurve:
    unit = "tiles" if phase is Phase.VISION and is_tiled(model) else _UNITS[phase]

    def at(size: int) -> CurvePoint:
        tokens, batch = (1, size) if unit in ("tiles", "sequences") else (size, 1)
        shape = TraceShape(phase, tokens=tokens, batch=batch, attention=attention, head_sees_last=True)
        found = trace_model(model, shape, name=name, attention=attention)
        return CurvePoint(size, found.peak_bytes, found.reserved_bytes)

    sizes, held_back = SIZES[unit]
    curve = ActivationCurve(name, phase, unit, tuple(at(size) for size in sizes), 0.0, traced_with())
    return _checked(curve, held_back, at)


def _checked(curve: ActivationCurve, held_back: tuple[int, ...], at: Callable[[int], CurvePoint]) -> ActivationCurve:
    """The curve with its error at the last checked size; sizes where the check fails are added to it."""
    for size in held_back:
        truth = at(size)
        error = abs(curve.peak_bytes(size) / truth.peak_bytes - 1)
        if error <= WITHIN:
            return replace(curve, held_back_error=error)
        points = sorted([*curve.points, truth], key=lambda point: point.size)
        curve = replace(curve, points=tuple(points), held_back_error=error)
    return curve

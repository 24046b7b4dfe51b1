"""A curve from a few traced sizes, so that a plan for any size costs microseconds.

In: a config and the phases wanted. Out: `ActivationCurve`s, exact at their points and checked at one that was held
back; where the check fails, the held-back point joins the curve and another is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from brim.errors import CannotTrace
from brim.records.trace import ActivationCurve, CurvePoint, Phase, TraceShape
from brim.trace.attention import FUSED
from brim.trace.build import build_model
from brim.trace.tower_calls import is_tiled
from brim.trace.tracer import trace_model
from brim.trace.versions import traced_with

TOKENS, HELD_BACK_TOKENS = (256, 2048, 8192), (4096, 1024, 6144, 512, 3072)
PATCHES, HELD_BACK_PATCHES = (12**2, 60**2, 132**2), (96**2, 36**2, 48**2)  # squares of multiples of 2, 3 and 4
TILES, HELD_BACK_TILES = (1, 2, 4), (3,)
WITHIN = 0.001


def trace_curves(
    config: Mapping[str, Any], *, name: str, phases: tuple[Phase, ...] = (Phase.PREFILL,), dtype: str = "bf16"
) -> dict[Phase, ActivationCurve]:
    """Build a model once and trace it at a few sizes of each phase; a phase that cannot be traced is left out,
    unless it is the only one.

    A class that has no fused attention of its own is traced with a stand-in for one: engines bring their kernels.
    """
    model, attention = build_model(config, dtype)
    if attention == "eager":
        model, attention = build_model(config, dtype, FUSED)
    found: dict[Phase, ActivationCurve] = {}
    for phase in phases:
        try:
            found[phase] = _curve(model, attention, name, phase)
        except CannotTrace:
            if len(phases) == 1 or phase is Phase.PREFILL:
                raise
    return found


def _curve(model: Any, attention: str, name: str, phase: Phase) -> ActivationCurve:
    tiled = phase is Phase.VISION and is_tiled(model)

    def at(size: int) -> CurvePoint:
        tokens, batch = (1, size) if tiled else (size, 1)
        shape = TraceShape(phase, tokens=tokens, batch=batch, attention=attention, head_sees_last=True)
        found = trace_model(model, shape, name=name, attention=attention)
        return CurvePoint(size, found.peak_bytes, found.reserved_bytes)

    sizes, held_back = _sizes(phase, tiled)
    points, error = _checked([at(size) for size in sizes], held_back, at, name, phase)
    return ActivationCurve(name, phase, tuple(points), error, traced_with())


def _checked(
    points: list[CurvePoint], held_back: tuple[int, ...], at: Callable[[int], CurvePoint], name: str, phase: Phase
) -> tuple[list[CurvePoint], float]:
    """(points, error at the last one held back): points that a curve misses join it."""
    error = 0.0
    for size in held_back:
        truth = at(size)
        guess = ActivationCurve(name, phase, tuple(points), 0.0, "").peak_bytes(size)
        error = abs(guess / truth.peak_bytes - 1)
        if error <= WITHIN:
            break
        points = sorted([*points, truth], key=lambda point: point.size)
    return points, error


def _sizes(phase: Phase, tiled: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if phase is not Phase.VISION:
        return TOKENS, HELD_BACK_TOKENS
    return (TILES, HELD_BACK_TILES) if tiled else (PATCHES, HELD_BACK_PATCHES)

"""The steps of an engine from which scaling laws are learned, run and measured one by one."""

from __future__ import annotations

from collections.abc import Sequence

from brim.fit.measure import Phase
from brim.ports import MemoryProbe, SizableEngine
from brim.records.scaling import MeasuredShape, ScalingStep


def measure_steps(
    engine: SizableEngine, probe: MemoryProbe, steps: Sequence[ScalingStep], phase: Phase
) -> tuple[MeasuredShape, ...]:
    """The peak of each step above what was held before it. The engine is built; what does not fit raises."""
    measured = []
    for step in steps:
        with phase("scaling", step.stress.title):
            probe.reset_peak()
            held = probe.reading().allocated_bytes
            engine.stress(step.stress)
            peak = probe.reading().peak_allocated_bytes
        shape = step.shape
        size = max(0, peak - held)
        measured.append(MeasuredShape(shape.phase, shape.batch, shape.tokens, shape.context, size, step.held_back))
    return tuple(measured)

"""What an engine takes at its worst, beside its KV cache: built small, stressed for real, and read off the device.

Neighbours that come or go in between would falsify every figure: they are noticed, and a measurement that was not
quiet says so. Whoever asked for it measures again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from brim.errors import OutOfMemory
from brim.fit.target import KvPrice
from brim.ports import MemoryProbe, SizableEngine
from brim.records.fit import IMAGE_SHAPE, Usage
from brim.records.memory import MemoryReading, StressShape
from brim.units import MIB

UNREST_BYTES = 64 * MIB  # what neighbours may breathe
_OWN_GROWTH_BYTES = 1024 * MIB  # kernels and workspaces of our own, where the driver does not tell processes apart

Phase = Callable[[str, str], AbstractContextManager[None]]  # of a clock: its name, and with what


@dataclass(frozen=True, slots=True)
class Measurement:
    """How a measurement went: what was used, or why there was not enough."""

    usage: Usage | None  # None: out of memory
    quiet: bool  # no neighbour came or went
    problem: str = ""
    missing_bytes: int | None = None


def measure(engine: SizableEngine, probe: MemoryProbe, kv_tokens: int, price: KvPrice, phase: Phase) -> Measurement:
    """Build at a small size, run the worst steps, and say what all of that took. The engine is left as it then is."""
    probe.reset_peak()  # what loading took for a moment is no part of it
    readings = [probe.reading()]
    text: MemoryReading | None = None
    try:
        with phase("probe", f"{kv_tokens:,} tokens"):
            engine.build(kv_tokens)
        readings.append(probe.reading())
        probe.reset_peak()
        for shape in _rounds(engine.stress_shapes()):
            with phase("stress", shape.title):
                if _with_image(shape) and text is None:
                    text = readings[-1]
                    probe.reset_peak()
                engine.stress(shape)
                readings.append(probe.reading())
    except OutOfMemory as error:
        readings.append(probe.reading())
        return Measurement(None, quiet(readings), str(error), error.missing_bytes)
    return Measurement(usage_of(readings[0], readings[1], readings[-1], price(kv_tokens), text), quiet(readings))


def _rounds(shapes: Sequence[StressShape]) -> Iterator[StressShape]:
    """Every shape twice, as the second time what all of them left in the allocator is there; those of images last."""
    for kind in (False, True):
        yield from [shape for shape in shapes if _with_image(shape) is kind] * 2


def _with_image(shape: StressShape) -> bool:
    """Its peak is read by itself, when all others have run."""
    return shape.name == IMAGE_SHAPE


def neighbour_bytes(reading: MemoryReading) -> int:
    """What other processes hold; with a driver that does not tell, this process' context counts among them."""
    if reading.process_bytes is None:
        return reading.other_bytes
    return max(0, reading.other_bytes - (reading.process_bytes - reading.reserved_bytes))


def quiet(readings: Sequence[MemoryReading]) -> bool:
    """Whether the neighbours of these readings, one after the other, neither came nor went."""
    least = most = neighbour_bytes(readings[0])
    growth = UNREST_BYTES if readings[-1].process_bytes is not None else _OWN_GROWTH_BYTES
    for now in map(neighbour_bytes, readings):
        least, most = min(least, now), max(most, now)
        if most - now > UNREST_BYTES or now - least > growth:
            return False
    return True


def usage_of(
    before: MemoryReading,
    built: MemoryReading,
    after: MemoryReading,
    kv_bytes: int,
    text: MemoryReading | None = None,
) -> Usage:
    """The parts of what was held at the peak; together with KV they are all of it.

    `text` is the reading between the steps of text and those with an image, where there are such.
    """
    if text is not None:
        return _with_encoder(usage_of(before, built, _higher(after, text), kv_bytes), built, text, after)
    held = max(after.peak_reserved_bytes, built.peak_reserved_bytes) - kv_bytes
    built_bytes = max(0, built.allocated_bytes - before.allocated_bytes - kv_bytes)
    activation = after.peak_allocated_bytes - built.allocated_bytes
    return Usage(
        total_bytes=after.total_bytes,
        held_bytes=held,
        other_bytes=after.other_bytes,
        neighbour_bytes=neighbour_bytes(after),
        free_before_bytes=before.free_bytes,
        weights_bytes=before.allocated_bytes,
        built_bytes=built_bytes,
        activation_bytes=activation,
        slack_bytes=held - before.allocated_bytes - built_bytes - activation,
    )


def _higher(after: MemoryReading, text: MemoryReading) -> MemoryReading:
    return replace(
        after,
        peak_allocated_bytes=max(after.peak_allocated_bytes, text.peak_allocated_bytes),
        peak_reserved_bytes=max(after.peak_reserved_bytes, text.peak_reserved_bytes),
    )


def _with_encoder(usage: Usage, built: MemoryReading, text: MemoryReading, after: MemoryReading) -> Usage:
    """The same peak, told apart: what text took, and what images took."""
    return replace(
        usage,
        activation_bytes=text.peak_allocated_bytes - built.allocated_bytes,
        encoder_bytes=after.peak_allocated_bytes - built.allocated_bytes,
    )


def least_free_bytes(reading: MemoryReading) -> int:
    """What the driver had left when this process' allocator held most, neighbours as they are now."""
    given_back = reading.peak_reserved_bytes - reading.reserved_bytes
    return reading.free_bytes - given_back

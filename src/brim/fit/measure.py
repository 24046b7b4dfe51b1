"""The peak memory of an engine without its KV cache: built small, worst steps run, device read.

If the memory of neighbours changes in between, every figure is wrong: the measurement is then marked as not quiet, and
the caller repeats it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from brim.errors import OutOfMemory
from brim.fit.target import KvPrice
from brim.ports import MemoryProbe, SizableEngine
from brim.records.fit import OWN_GROWTH_BYTES, Usage
from brim.records.memory import MemoryReading, StressShape
from brim.units import MIB

UNREST_BYTES = 64 * MIB  # by which the memory of neighbours may vary

Phase = Callable[[str, str], AbstractContextManager[None]]  # `Clock.phase`: name and detail


@dataclass(frozen=True, slots=True)
class Measurement:
    """The result of a measurement: what was used, or why memory ran out."""

    usage: Usage | None  # None: out of memory
    quiet: bool  # the memory of neighbours was stable
    problem: str = ""
    missing_bytes: int | None = None


def measure(
    engine: SizableEngine,
    probe: MemoryProbe,
    kv_tokens: int,
    price: KvPrice,
    phase: Phase,
    own_growth_bytes: int = OWN_GROWTH_BYTES,
) -> Measurement:
    """Build at a small size, run the worst steps, and return what all of that took. The engine stays built."""
    probe.reset_peak()  # temporary memory of loading does not count
    readings = [probe.reading()]
    text: MemoryReading | None = None
    try:
        with phase("probe", f"{kv_tokens:,} tokens"):
            engine.build(kv_tokens)
        readings.append(probe.reading())
        probe.reset_peak()
        for shape in _rounds(engine.stress_shapes()):
            with phase("stress", shape.title):
                if shape.has_media and text is None:
                    text = readings[-1]
                    probe.reset_peak()
                engine.stress(shape)
                readings.append(probe.reading())
    except OutOfMemory as error:
        readings.append(probe.reading())
        return Measurement(None, quiet(readings, own_growth_bytes), str(error), error.missing_bytes)
    used = usage_of(readings[0], readings[1], readings[-1], price(kv_tokens), text)
    return Measurement(used, quiet(readings, own_growth_bytes))


def _rounds(shapes: Sequence[StressShape]) -> Iterator[StressShape]:
    """Every shape twice, the second time with what all of them left in the allocator; media last."""
    for kind in (False, True):
        yield from [shape for shape in shapes if shape.has_media is kind] * 2


def neighbour_bytes(reading: MemoryReading) -> int:
    """What other processes hold; if the driver does not report by process, this process' context is included."""
    if reading.process_bytes is None:
        return reading.other_bytes
    return max(0, reading.other_bytes - (reading.process_bytes - reading.reserved_bytes))


def quiet(readings: Sequence[MemoryReading], own_growth_bytes: int = OWN_GROWTH_BYTES) -> bool:
    """Whether the memory of neighbours was stable; where the driver does not report by process, some growth is ours."""
    least = most = neighbour_bytes(readings[0])
    growth = UNREST_BYTES if readings[-1].process_bytes is not None else own_growth_bytes
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

    `text` is the reading between the steps of text and those with media, where there are such.
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
    """The same peak, separated into the part of text and that of media."""
    return replace(
        usage,
        activation_bytes=text.peak_allocated_bytes - built.allocated_bytes,
        encoder_bytes=after.peak_allocated_bytes - built.allocated_bytes,
    )


def least_free_bytes(reading: MemoryReading) -> int:
    """The device's free memory at the peak of this process' allocator, with neighbours as they are now."""
    given_back = reading.peak_reserved_bytes - reading.reserved_bytes
    return reading.free_bytes - given_back

"""What a measurement says of an engine, and when it does not count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from brim.fit.leaks import Residue, residue
from brim.fit.measure import Measurement, measure, neighbour_bytes, quiet, usage_of
from brim.records.fit import Usage
from brim.records.memory import MemoryReading
from brim.units import GIB, KIB, MIB

torch = pytest.importorskip("torch")

from tests.unit.fit.sizable import HonestEngine, WatchedProbe  # noqa: E402


@contextmanager
def no_clock(phase: str, detail: str) -> Iterator[None]:
    yield


def reading(**changes: int | None) -> MemoryReading:
    return replace(MemoryReading(24 * GIB, 20 * GIB, 0, 0, 0, 0, 0), **changes)  # type: ignore[arg-type]


def test_a_measurement_of_an_engine() -> None:
    engine = HonestEngine(WatchedProbe(256 * KIB))
    assert measure(engine, engine.probe, 16, engine.price, no_clock) == Measurement(
        Usage(
            total_bytes=256 * KIB,
            held_bytes=(16 + 4 + 32) * KIB,
            other_bytes=0,
            neighbour_bytes=0,
            free_before_bytes=240 * KIB,
            weights_bytes=16 * KIB,
            built_bytes=4 * KIB,
            activation_bytes=32 * KIB,
            slack_bytes=0,
        ),
        quiet=True,
    )


def test_out_of_memory_is_a_measurement_too() -> None:
    engine = HonestEngine(WatchedProbe(50 * KIB))
    found = measure(engine, engine.probe, 16, engine.price, no_clock)
    assert (found.usage, found.quiet, found.missing_bytes) == (None, True, 10 * KIB)
    assert "32.0 KiB requested, 22.0 KiB free" in found.problem


def test_the_parts_are_the_whole_where_building_was_the_peak() -> None:
    before = reading(allocated_bytes=100, reserved_bytes=120)
    built = reading(allocated_bytes=190, reserved_bytes=500, peak_allocated_bytes=450, peak_reserved_bytes=500)
    after = reading(allocated_bytes=190, reserved_bytes=300, peak_allocated_bytes=230, peak_reserved_bytes=300)
    found = usage_of(before, built, after, 50)
    assert found.held_bytes == 450
    assert (found.weights_bytes, found.built_bytes, found.activation_bytes, found.slack_bytes) == (100, 40, 40, 270)


@pytest.mark.parametrize(
    ("held", "process", "expected"),
    [(3 * GIB, None, 3 * GIB), (3 * GIB, 1 * GIB, 2 * GIB), (MIB, 5 * GIB, 0)],
)
def test_neighbours_are_what_this_process_is_not(held: int, process: int | None, expected: int) -> None:
    assert neighbour_bytes(reading(other_bytes=held, process_bytes=process)) == expected


@pytest.mark.parametrize(
    ("megabytes", "told_apart", "expected"),
    [
        ((500, 500, 500), True, True),
        ((500, 530, 560), True, True),
        ((500, 500, 565), True, False),
        ((500, 500, 435), True, False),
        ((500, 800, 500), True, False),  # came and went
        ((500, 700, 900), False, True),  # our own kernels, for all the driver says
        ((500, 900, 800), False, False),
        ((500, 500, 1600), False, False),
    ],
)
def test_unrest_is_seen_in_any_of_the_readings(megabytes: tuple[int, ...], told_apart: bool, expected: bool) -> None:
    process = 0 if told_apart else None
    assert quiet([reading(other_bytes=size * MIB, process_bytes=process) for size in megabytes]) is expected


def test_an_engine_that_grows_outside_the_allocator_says_by_how_much() -> None:
    grown = [reading(other_bytes=size * MIB) for size in (500, 2500)]
    assert not quiet(grown)
    assert quiet(grown, own_growth_bytes=2000 * MIB)


def test_a_residue_is_what_was_not_there_before() -> None:
    before = reading(allocated_bytes=100, reserved_bytes=120)
    left = residue(before, reading(allocated_bytes=130, reserved_bytes=200))
    assert (left, left.unused_bytes) == (Residue(30, 80), 50)
    less = residue(before, reading(allocated_bytes=90, reserved_bytes=130))
    assert (less, less.unused_bytes) == (Residue(-10, 10), 10)

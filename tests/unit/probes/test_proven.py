"""The bound of a fitted budget: which steps it refuses, and that the host's own memory is none of its business."""

from __future__ import annotations

import gc
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from brim.probes.cpu import CpuProbe  # noqa: E402
from brim.probes.proven import ProvenBound, data_bytes  # noqa: E402
from brim.units import MIB  # noqa: E402

BUDGET = 100 * MIB


class Machine:
    """A clock, and a process that says how much it has taken."""

    def __init__(self) -> None:
        self.now = 0.0
        self.taken = 500 * MIB
        self.probe = CpuProbe(BUDGET, counts_serving=False)
        with self.probe, torch.inference_mode():
            self.pool = torch.empty(60 * MIB, dtype=torch.uint8)
        self.bound = ProvenBound(self.probe, 64, taken_bytes=lambda: self.taken, clock=lambda: self.now)

    def left_behind(self, size: int) -> Any:
        with torch.inference_mode():
            made = torch.empty(size, dtype=torch.uint8)
        self.taken += size
        return made


@pytest.fixture
def machine() -> Machine:
    gc.collect()
    return Machine()


def test_a_step_is_no_larger_than_the_proven_ones(machine: Machine) -> None:
    machine.bound.check(64)
    with pytest.raises(torch.OutOfMemoryError, match="a step of 65 tokens; 64 are proven"):
        machine.bound.check(65)


def test_what_steps_leave_behind_is_refused_beyond_the_budget_and_until_it_is_gone(machine: Machine) -> None:
    kept = [machine.left_behind(30 * MIB)]
    machine.now += 2
    machine.bound.check(1)
    assert machine.probe.reading().allocated_bytes == 60 * MIB  # too little to look for it
    kept.append(machine.left_behind(50 * MIB))
    machine.bound.check(1)  # within the same second
    machine.now += 2
    for _ in range(3):
        with pytest.raises(
            torch.OutOfMemoryError, match=f"Tried to allocate {40 * MIB} bytes.*of which 0 bytes is free"
        ):
            machine.bound.check(1)
    assert machine.probe.reading().allocated_bytes == 140 * MIB
    with machine.probe, pytest.raises(torch.OutOfMemoryError):  # and so is any allocation that is counted
        torch.empty(1)
    kept.clear()
    machine.bound.check(1)
    assert machine.probe.reading().allocated_bytes == 60 * MIB


def test_what_the_host_takes_is_not_the_budgets(machine: Machine) -> None:
    """Bodies, texts and pixels of requests: the process grows, and no tensor of a step does."""
    pixels = torch.empty(90 * MIB, dtype=torch.uint8)
    machine.taken += pixels.nbytes + 900 * MIB
    for _ in range(3):
        machine.now += 2
        machine.bound.check(1)
    assert machine.probe.reading().allocated_bytes == 60 * MIB


def test_what_grows_further_is_looked_for_again(machine: Machine) -> None:
    machine.taken += 900 * MIB
    machine.now += 2
    machine.bound.check(1)
    kept = machine.left_behind(70 * MIB)
    machine.now += 2
    with pytest.raises(torch.OutOfMemoryError):
        machine.bound.check(1)
    del kept


@pytest.mark.skipif(data_bytes() == 0, reason="this system does not say")
def test_the_system_counts_what_was_taken_and_not_used() -> None:
    before = data_bytes()
    taken = torch.empty(300 * MIB, dtype=torch.uint8)
    assert 299 * MIB <= data_bytes() - before <= 400 * MIB
    del taken
    assert data_bytes() - before <= 100 * MIB

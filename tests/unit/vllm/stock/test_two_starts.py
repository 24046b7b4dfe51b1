"""The size of the second start."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from brim.errors import DoesNotFit
from brim.records.memory import MemoryReading
from brim.reserve.devices import Budget
from brim.reserve.hold import take
from brim.units import GIB, MIB
from brim.vllm.settings import Settings
from brim.vllm.stock.two_starts import MemoryFigures, left_bytes, second_size, without_promised


def reading(peak: int, other: int = GIB) -> MemoryReading:
    return MemoryReading(80 * GIB, 0, 0, 0, 0, peak_reserved_bytes=peak, other_bytes=other)


def test_what_is_left_beside_the_peak_is_for_the_kv_cache() -> None:
    found = second_size([reading(peak=38 * GIB)], first_kv_bytes=20 * GIB, canary_bytes=256 * MIB)
    assert found == (80 - 1 - 18) * GIB - 256 * MIB - 40 * MIB


def test_the_tightest_rank_decides() -> None:
    ranks = [reading(peak=38 * GIB), reading(peak=39 * GIB), reading(peak=38 * GIB, other=3 * GIB)]
    assert second_size(ranks, 20 * GIB, 0) == second_size(ranks[2:], 20 * GIB, 0)


def test_a_utilization_is_a_cap() -> None:
    found = second_size([reading(peak=38 * GIB)], first_kv_bytes=20 * GIB, canary_bytes=0, utilization=0.5)
    assert found == (40 - 18) * GIB - 40 * MIB


LAB = Budget("cpu:two-starts", 80 * GIB)


def test_what_neighbours_were_promised_is_left_to_them() -> None:
    alone = second_size([without_promised(reading(peak=38 * GIB), LAB)], 20 * GIB, canary_bytes=0)
    starting, held = take(LAB, 3 * GIB, "embedder", starting=True), take(LAB, 2 * GIB, "tower")
    try:
        beside = second_size([without_promised(reading(peak=38 * GIB), LAB)], 20 * GIB, canary_bytes=0)
    finally:
        starting.release()
        held.release()
    assert alone - beside == 5 * GIB


class Worker(MemoryFigures):
    """A stock worker on the CPU, as far as it matters."""

    device = SimpleNamespace(type="cpu")
    requested_cpu_memory = 80 * GIB
    vllm_config = SimpleNamespace(additional_config={"brim": {"budget": "80GiB", "budget_name": LAB.key}})


def test_a_stock_worker_s_reading_has_the_promises_of_its_own_device() -> None:
    lease = take(LAB, 3 * GIB, "embedder", starting=True)
    try:
        promised = Worker().brim_reading()
    finally:
        lease.release()
    assert (promised["other_bytes"], Worker().brim_reading()["other_bytes"]) == (3 * GIB, 0)


def test_the_first_start_leaves_neighbours_what_they_were_promised() -> None:
    named = Settings(budget_bytes=LAB.total_bytes, budget_name=LAB.key)
    lease = take(LAB, 79 * GIB, "embedder", starting=True)
    try:
        assert left_bytes(named) == GIB
        assert left_bytes(Settings(budget_bytes=GIB)) == GIB
        other = take(LAB, GIB, "tower")
        with pytest.raises(DoesNotFit, match="promised all of the 80"):
            left_bytes(named)
        other.release()
    finally:
        lease.release()

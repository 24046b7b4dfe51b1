"""The size of the second start."""

from __future__ import annotations

from brim.records.memory import MemoryReading
from brim.units import GIB, MIB
from brim.vllm.stock.two_starts import second_size


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

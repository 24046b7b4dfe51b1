"""The simulated allocator: what it reserves, and that it never loses a byte."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.trace.allocator import CachingAllocator, ExpandableAllocator, SegmentAllocator
from brim.units import KIB, MIB

BOTH = (SegmentAllocator, ExpandableAllocator)


@pytest.mark.parametrize(
    ("size", "segments", "expandable"),
    [
        (1, 2 * MIB, 2 * MIB),
        (512 * KIB, 2 * MIB, 2 * MIB),
        (MIB, 2 * MIB, 2 * MIB),
        (MIB + 1, 20 * MIB, 20 * MIB),
        (9 * MIB, 20 * MIB, 20 * MIB),
        (10 * MIB, 10 * MIB, 20 * MIB),
        (33 * MIB, 34 * MIB, 40 * MIB),
    ],
)
def test_what_one_request_reserves(size: int, segments: int, expandable: int) -> None:
    for kind, expected in zip(BOTH, (segments, expandable), strict=True):
        allocator = kind()
        allocator.allocate(1, size)
        assert allocator.reserved_bytes == expected


def test_a_free_block_is_used_again() -> None:
    for kind in BOTH:
        allocator = kind()
        for handle in range(3):
            allocator.allocate(handle, 15 * MIB)
        allocator.free(1)
        before = allocator.reserved_bytes
        allocator.allocate(9, 14 * MIB)
        assert allocator.reserved_bytes == before


def test_neighbours_merge_in_an_expandable_range_and_not_across_segments() -> None:
    reserved = []
    for kind in BOTH:
        allocator = kind()
        allocator.allocate(1, 20 * MIB)
        allocator.allocate(2, 20 * MIB)
        allocator.free(1)
        allocator.free(2)
        allocator.allocate(3, 40 * MIB)
        reserved.append(allocator.peak_reserved_bytes)
    assert reserved == [80 * MIB, 40 * MIB]


def test_an_expandable_range_grows_by_what_is_missing() -> None:
    allocator = ExpandableAllocator()
    allocator.allocate(1, 15 * MIB)  # 5 MiB of its page are left
    allocator.allocate(2, 22 * MIB)
    assert allocator.reserved_bytes == 40 * MIB


@pytest.mark.parametrize("kind", BOTH)
@settings(max_examples=120, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 60 * MIB), st.integers(0, 40)), min_size=1, max_size=80))
def test_it_never_loses_a_byte(kind: type[CachingAllocator], steps: list[tuple[int, int]]) -> None:
    allocator, live = kind(), {}
    for number, (size, victim) in enumerate(steps):
        allocator.allocate(number, size)
        live[number] = size
        if victim in live:
            allocator.free(victim)
            del live[victim]
        assert allocator.reserved_bytes >= allocator.allocated_bytes >= sum(live.values())
        assert allocator.peak_reserved_bytes >= allocator.reserved_bytes
    for handle in list(live):
        allocator.free(handle)
    assert allocator.allocated_bytes == 0
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0

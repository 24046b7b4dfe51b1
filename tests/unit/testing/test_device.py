"""The fake device refuses what does not fit, and counts what is alive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import OutOfMemory
from brim.ports import CanaryProbe
from brim.testing import FakeDevice, RefusingProbe
from brim.testing.device import ALLOCATION_BYTES
from brim.units import KIB, round_up


def test_it_refuses_what_does_not_fit_and_says_by_how_much() -> None:
    device = FakeDevice(8 * KIB)
    held = device.allocate(6 * KIB, "weights")
    with pytest.raises(OutOfMemory, match=r"activation needs 3.0 KiB and 2.0 KiB are free") as refused:
        device.allocate(3 * KIB, "activation")
    assert refused.value.missing_bytes == KIB
    assert device.largest_held(3) == ("weights, 6.0 KiB",)
    del held
    assert device.reading().allocated_bytes == 0
    assert device.reading().peak_allocated_bytes == 6 * KIB
    device.reset_peak()
    assert device.reading().peak_allocated_bytes == 0


@given(st.lists(st.integers(0, 5000), max_size=30), st.integers(0, 40 * KIB))
def test_what_is_alive_adds_up_and_never_passes_the_size(sizes: list[int], total: int) -> None:
    device, held = FakeDevice(total), []
    for size in sizes:
        try:
            held.append(device.allocate(size))
        except OutOfMemory:
            assert device.reading().free_bytes < round_up(size, ALLOCATION_BYTES)
    assert device.reading().allocated_bytes == sum(one.bytes for one in held) <= total
    held.clear()
    assert device.reading().free_bytes == total


def test_a_chosen_allocation_is_refused() -> None:
    device = FakeDevice(KIB, fail_at=2)
    assert isinstance(device, RefusingProbe)
    first = device.allocate(1)
    with pytest.raises(OutOfMemory):
        device.allocate(1)
    assert device.allocations == 2
    assert device.reading().allocated_bytes == first.bytes


def test_the_canary_is_lent_and_taken_back() -> None:
    device = FakeDevice(4 * KIB)
    assert isinstance(device, CanaryProbe)
    device.hold_canary(2 * KIB)
    assert device.lend_canary() == 2 * KIB
    held = device.allocate(3 * KIB)
    with pytest.raises(OutOfMemory):
        device.take_canary_back()
    assert device.lend_canary() == 2 * KIB  # still lent
    del held
    device.take_canary_back()
    assert device.reading().allocated_bytes == 2 * KIB
    device.hold_canary(0)
    assert device.reading().allocated_bytes == 0

from __future__ import annotations

from dataclasses import replace

import pytest

import brim
from brim.errors import InvalidRequest
from brim.planning.devices import find_device, find_devices
from brim.planning.node import rank_devices, room_bytes, tightest
from brim.units import GIB

H100 = find_device("h100")
BUSY = replace(H100, neighbour_bytes=9 * GIB)


def test_a_node_is_used_whole_unless_told_otherwise() -> None:
    assert rank_devices(find_devices("8xh100"), None) == (H100,) * 8
    assert rank_devices(find_devices("8xh100"), 2) == (H100,) * 2
    assert rank_devices((H100,), None) == (H100,)


def test_one_device_stands_for_as_many_as_are_asked_for() -> None:
    assert rank_devices((H100,), 8) == (H100,) * 8


def test_the_device_with_the_least_memory_decides_among_those_used() -> None:
    assert room_bytes(H100) - room_bytes(BUSY) == 9 * GIB
    assert tightest(rank_devices((H100, H100, BUSY), None)) == BUSY
    assert tightest(rank_devices((H100, H100, BUSY), 2)) == H100


@pytest.mark.parametrize(("tp", "named"), [(4, "tp is 4 and gpu names 2 devices"), (0, "tp is 0"), (1 << 40, "1024")])
def test_impossible_numbers_of_ranks_are_refused(tp: int, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        rank_devices((H100, H100), tp)


def test_every_device_of_a_node_has_a_ledger() -> None:
    plan = brim.plan("llama-3.1-8b", gpu=(H100, BUSY), reserve="1GiB")
    assert plan.kv_tokens == brim.plan("llama-3.1-8b", gpu=BUSY, tp=2, reserve="1GiB").kv_tokens
    roomy, tight = plan.ledgers
    assert tight.items == plan.items
    assert [item.name for item in roomy.items] == [*(item.name for item in plan.items), "free"]
    for one in plan.ledgers:
        assert sum(item.bytes for item in one.items) == one.device.total_bytes
    assert roomy.items[-1].bytes == 9 * GIB
    assert [one["name"] for one in plan.to_json()["devices"]] == [H100.name] * 2  # type: ignore[attr-defined]

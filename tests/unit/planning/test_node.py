from __future__ import annotations

from dataclasses import replace

import pytest

from brim.errors import InvalidRequest
from brim.planning.devices import find_device, find_devices
from brim.planning.node import over_node, room_bytes
from brim.units import GIB

H100 = find_device("h100")
BUSY = replace(H100, neighbour_bytes=9 * GIB)


def test_a_node_is_used_whole_unless_told_otherwise() -> None:
    assert over_node(find_devices("8xh100"), None) == (H100, 8)
    assert over_node(find_devices("8xh100"), 2) == (H100, 2)
    assert over_node((H100,), None) == (H100, 1)


def test_one_device_stands_for_as_many_as_are_asked_for() -> None:
    assert over_node((H100,), 8) == (H100, 8)


def test_the_device_with_the_least_memory_decides_among_those_used() -> None:
    assert room_bytes(H100) - room_bytes(BUSY) == 9 * GIB
    assert over_node((H100, H100, BUSY), None) == (BUSY, 3)
    assert over_node((H100, H100, BUSY), 2) == (H100, 2)


def test_more_ranks_than_devices_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="tp is 4 and gpu names 2 devices"):
        over_node((H100, H100), 4)

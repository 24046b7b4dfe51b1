"""A node: how many of its GPUs the ranks use, and which of them decides what fits.

In: the devices of a node, and the ranks asked for. Out: the device with the least memory among those the ranks use, and
their number. Ranks are alike but for what other processes hold of their devices.
"""

from __future__ import annotations

from brim.errors import InvalidRequest
from brim.records.plan import Device


def over_node(devices: tuple[Device, ...], tp: int | None) -> tuple[Device, int]:
    """(the device that decides, ranks). One device stands for as many as are asked for; a node has so many."""
    ranks = len(devices) if tp is None else tp
    if ranks > len(devices) > 1:
        raise InvalidRequest(f"tp is {ranks} and gpu names {len(devices)} devices; lower tp, or name more devices")
    return min(devices[: max(1, ranks)], key=room_bytes), ranks


def room_bytes(device: Device) -> int:
    """What a device has for a model: without the driver's part, a process's own, and what others hold now."""
    return device.usable_bytes - device.context_bytes - device.workspace_bytes - device.neighbour_bytes

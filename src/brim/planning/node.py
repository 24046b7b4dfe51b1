"""A node: the devices of the ranks, which of them decides what fits, and the ledger of each.

Ranks are alike but for their devices: what the driver and other processes hold of them. All get the KV cache of the
tightest, and the others keep the difference free.
"""

from __future__ import annotations

from dataclasses import replace

from brim.errors import InvalidRequest
from brim.records.plan import Device, DeviceLedger, LedgerItem, Source

_MOST_RANKS = 1024


def rank_devices(devices: tuple[Device, ...], tp: int | None) -> tuple[Device, ...]:
    """A device for every rank. One device stands for as many as are asked for; a node has so many."""
    ranks = len(devices) if tp is None else tp
    if isinstance(ranks, bool) or not isinstance(ranks, int):
        raise InvalidRequest(f"tp is {ranks!r}; it must be a whole number")
    if not 1 <= ranks <= _MOST_RANKS:
        raise InvalidRequest(f"tp is {ranks}; it must be at least 1 and at most {_MOST_RANKS}")
    if ranks > len(devices) > 1:
        raise InvalidRequest(f"tp is {ranks} and gpu names {len(devices)} devices; lower tp, or name more devices")
    return devices * ranks if len(devices) == 1 else devices[:ranks]


def tightest(devices: tuple[Device, ...]) -> Device:
    """The device that decides what fits."""
    return min(devices, key=room_bytes)


def room_bytes(device: Device) -> int:
    """What a device has for a model: without the driver's part, a process's own, and what others hold now."""
    return device.usable_bytes - device.context_bytes - device.workspace_bytes - device.neighbour_bytes


def ledgers(devices: tuple[Device, ...], decided: Device, items: tuple[LedgerItem, ...]) -> tuple[DeviceLedger, ...]:
    """The ledger of every device, from that of the device that decided."""
    return tuple(DeviceLedger(device, _items_on(device, decided, items)) for device in devices)


def _items_on(device: Device, decided: Device, items: tuple[LedgerItem, ...]) -> tuple[LedgerItem, ...]:
    more = {
        "context": device.hidden_bytes + device.context_bytes - decided.hidden_bytes - decided.context_bytes,
        "workspace": device.workspace_bytes - decided.workspace_bytes,
        "neighbours": device.neighbour_bytes - decided.neighbour_bytes,
    }
    own = tuple(replace(item, bytes=item.bytes + more.get(item.name, 0)) for item in items)
    free = device.total_bytes - sum(item.bytes for item in own)
    if not free:
        return own
    return (*own, LedgerItem("free", free, Source.SOLVED, "beyond what the tightest device can hold"))

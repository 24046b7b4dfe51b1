"""A node: the devices of the ranks, which of them decides what fits, and the ledger of each.

Ranks are alike but for their devices: what the driver and other processes hold of them. All get the KV cache of the
tightest, and the others keep the difference free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from brim.errors import InvalidRequest
from brim.records.plan import Device, DeviceLedger, LedgerItem, RankLedger, Source

_MOST_RANKS = 1024


def rank_devices(devices: tuple[Device, ...], tp: int | None, pp: int = 1, dp: int = 1) -> tuple[Device, ...]:
    """A device for every rank. One device stands for as many as are asked for; a node has so many."""
    for name, number in (("tp", tp), ("pp", pp), ("dp", dp)):
        if name == "tp" and number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int):
            raise InvalidRequest(f"{name} is {number!r}; it must be a whole number")
        if not 1 <= number <= _MOST_RANKS:
            raise InvalidRequest(f"{name} is {number}; it must be at least 1 and at most {_MOST_RANKS}")
    ranks = tensor_ranks(devices, tp, pp, dp) * pp * dp
    if ranks > _MOST_RANKS:
        raise InvalidRequest(f"tp × pp × dp is {ranks}; it must be at most {_MOST_RANKS}")
    if ranks > len(devices) > 1:
        words = f"tp is {ranks}" if pp == dp == 1 else f"tp × pp × dp is {ranks}"
        remedy = "lower tp" if pp == dp == 1 else "lower one of them"
        raise InvalidRequest(f"{words} and gpu names {len(devices)} devices; {remedy}, or name more devices")
    return devices * ranks if len(devices) == 1 else devices[:ranks]


def tensor_ranks(devices: tuple[Device, ...], tp: int | None, pp: int = 1, dp: int = 1) -> int:
    """The tensor-parallel ranks: as asked, or what stages and replicas leave of a node."""
    if tp is not None or len(devices) == 1:
        return tp or 1
    ranks, left = divmod(len(devices), pp * dp)
    if left:
        raise InvalidRequest(
            f"pp × dp is {pp * dp} and does not divide the {len(devices)} devices that gpu names; say with --tp how "
            "many ranks each stage has"
        )
    return ranks


def tightest(devices: tuple[Device, ...]) -> Device:
    """The device that decides what fits."""
    return min(devices, key=room_bytes)


def room_bytes(device: Device) -> int:
    """What a device has for a model: without the driver's part, a process's own, and what others hold now."""
    return device.usable_bytes - device.context_bytes - device.workspace_bytes - device.neighbour_bytes


def ledgers(devices: tuple[Device, ...], decided: Device, items: tuple[LedgerItem, ...]) -> tuple[DeviceLedger, ...]:
    """The ledger of every device, from that of the device that decided."""
    return tuple(DeviceLedger(device, _items_on(device, decided, items)) for device in devices)


def stage_ledgers(
    devices: tuple[Device, ...], decided: Device, ranks: Sequence[RankLedger], ranks_of_stage: int
) -> tuple[DeviceLedger, ...]:
    """The same where stages hold different parts: replicas one after the other, and stages in each of them."""
    items = [tuple(item for item in one.items if item.name != "free") for one in ranks]
    return tuple(
        DeviceLedger(device, _items_on(device, decided, items[index // ranks_of_stage % len(items)]))
        for index, device in enumerate(devices)
    )


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

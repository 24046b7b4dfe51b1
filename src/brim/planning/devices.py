"""Devices from text: GPUs of the catalogue, sizes, this machine's GPUs, budgets on the CPU.

In: what the user wrote. Out: `Device`s, one for each GPU of the node. The grammar is in `gpus.text`, the spelling of
names in `gpus.names`, the figures in `gpus.cards`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

from brim.errors import InvalidRequest, UnknownDevice
from brim.planning.gpus.cards import ARCHITECTURES, CARDS, CLASSES, Card
from brim.planning.gpus.names import find_card, near_names
from brim.planning.gpus.text import CpuBudget, Gpus, OwnGpus, read_device
from brim.planning.node import room_bytes
from brim.probes.visible import VisibleGpu, visible_gpus
from brim.records.plan import Device, Source
from brim.suggest import did_you_mean, shown
from brim.units import MIB, parse_bytes

_SMALLEST_DEVICE_BYTES = 1 << 30
_SIZE = re.compile(r"\d+(?:\.\d+)?\s*(?:[kmgt]i?b?|b)", re.IGNORECASE)
_SOLD_SIZE = re.compile(r"(\d{1,4})\s*gb", re.IGNORECASE)
_SAME_TOTAL_PERCENT = 2  # drivers differ by this much about the same card


@cache
def catalogue() -> tuple[Device, ...]:
    """Every GPU of the catalogue, smallest first."""
    return tuple(sorted((_catalogued(card) for card in CARDS), key=lambda device: (device.total_bytes, device.key)))


def find_devices(text: str) -> tuple[Device, ...]:
    """The devices of a node, at least one, each with its own memory.

    By name or size, with a count ("8xh100", "h100:4", "2x24GiB"); "auto" or indices ("0,1") for this machine's GPUs;
    "cpu:NAME:64GiB" for a budget on the CPU. "24GB" is a card sold with that size, "24GiB" is exact.
    """
    wanted = read_device(text)
    if isinstance(wanted, OwnGpus):
        return _chosen(this_machine(), wanted.indices)
    if isinstance(wanted, CpuBudget):
        return (_cpu(wanted),)
    return (_named(wanted.name),) * wanted.count


def find_device(text: str) -> Device:
    """One device, written as for `find_devices`. "auto" is the GPU that CUDA uses unless told otherwise: the first."""
    wanted = read_device(text)
    if wanted == OwnGpus(None):
        return this_machine()[0]
    found = find_devices(text)
    if len(found) > 1:
        one = wanted.name if isinstance(wanted, Gpus) else "0"
        raise InvalidRequest(f"gpu '{shown(text)}' is {len(found)} devices, and one is wanted here; write {one}")
    return found[0]


def this_machine() -> tuple[Device, ...]:
    """The GPUs of this machine that this process sees, each with what other processes hold of it now."""
    return tuple(_measured(gpu) for gpu in visible_gpus())


def of_size(text: str) -> Device:
    """A GPU given by size: a card sold with it ("24GB"), else the memory that the driver reports ("24GiB")."""
    sold = _SOLD_SIZE.fullmatch(text.strip())
    of_class = _class_device(int(sold[1])) if sold else None
    if of_class is not None:
        return of_class
    total = parse_bytes(f"{sold[1]}GB" if sold else text, "gpu")
    if total < _SMALLEST_DEVICE_BYTES:
        raise InvalidRequest(f"gpu '{shown(text)}' is smaller than 1 GiB; write the size like 24GiB")
    return _device(text, f"{text} device", total, "ampere", None, Source.GIVEN)


def _chosen(devices: tuple[Device, ...], indices: tuple[int, ...] | None) -> tuple[Device, ...]:
    if indices is None:
        return devices
    if max(indices) >= len(devices):
        raise UnknownDevice(
            f"gpu {max(indices)} is not there: this process sees {len(devices)}, counted from 0; "
            "write a size like 24GiB, with its unit"
        )
    return tuple(devices[index] for index in indices)


def _cpu(budget: CpuBudget) -> Device:
    """The CPU's memory has no driver, no context and no library workspaces in it."""
    if budget.bytes is None:
        raise InvalidRequest("gpu 'cpu' needs a budget; write cpu:64GiB or cpu:NAME:64GiB")
    return Device(
        key=budget.name,
        name=f"CPU budget {budget.name.partition(':')[2]}".strip(),
        total_bytes=budget.bytes,
        hidden_bytes=0,
        context_bytes=0,
        workspace_bytes=0,
        source=Source.GIVEN,
    )


def _named(text: str) -> Device:
    card = find_card(text)
    if card is not None:
        return _catalogued(card)
    if _SIZE.fullmatch(text) or re.match(r"\d{1,3}(?!\d)", text):
        return of_size(text)
    raise UnknownDevice(
        f"gpu '{shown(text)}' is not in the catalogue; {did_you_mean(near_names(text))}give a size such as 24GiB "
        "(`brim gpus` lists the catalogue)"
    )


def _class_device(sold_gb: int) -> Device | None:
    """The card that people mean by a datasheet's size, under the name of its class; None where no card has it."""
    of_size = [card for card in CARDS if card.sold_gb == sold_gb]
    if not of_size:
        return None
    usual = [card for card in of_size if card.key == CLASSES.get(sold_gb)]
    least = min((_catalogued(card) for card in usual or of_size), key=room_bytes)
    return replace(least, name=f"{sold_gb} GB class (as {least.name})")


def _catalogued(card: Card) -> Device:
    total = card.reported_mib * MIB
    return _device(card.key, card.name, total, card.architecture, _hidden_bytes(card), Source.CATALOGUE)


def _measured(gpu: VisibleGpu) -> Device:
    """As the driver reports it now; what the driver hides is the catalogue's figure, where the card is that one."""
    card = find_card(gpu.name)
    if card and abs(gpu.total_bytes - card.reported_mib * MIB) * 100 > gpu.total_bytes * _SAME_TOTAL_PERCENT:
        card = None
    device = _device(
        card.key if card else gpu.name,
        gpu.name,
        gpu.total_bytes,
        _architecture_of(*gpu.compute_capability),
        _hidden_bytes(card) if card else None,
        Source.MEASURED,
    )
    return replace(device, neighbour_bytes=max(0, gpu.used_bytes - device.hidden_bytes))


def _device(key: str, name: str, total: int, architecture: str, hidden: int | None, source: Source) -> Device:
    takes = ARCHITECTURES[architecture]
    return Device(
        key=key,
        name=name,
        total_bytes=total,
        hidden_bytes=_usual_hidden(total) if hidden is None else hidden,
        context_bytes=takes.context_mib * MIB,
        workspace_bytes=(takes.kernels_mib + takes.workspace_mib) * MIB,
        source=source,
    )


def _hidden_bytes(card: Card) -> int | None:
    return None if card.usable_mib is None else (card.reported_mib - card.usable_mib) * MIB


def _usual_hidden(total: int) -> int:
    """What the driver reserves of a card that is not in the catalogue: 256 MiB and 1/400 of its size."""
    return 256 * MIB + total // 400


def _architecture_of(major: int, minor: int) -> str:
    if (major, minor) == (8, 9):
        return "ada"
    return {7: "turing" if minor == 5 else "volta", 8: "ampere", 9: "hopper"}.get(
        major, "blackwell" if major > 9 else "volta"
    )

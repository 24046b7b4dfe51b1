"""Devices from text: GPUs of the catalogue, sizes, this machine's GPUs, budgets on the CPU.

In: what the user wrote. Out: `Device`s, one for each GPU of the node. The grammar is in `gpus.text`, the spelling of
names in `gpus.names`, the figures in `gpus.cards`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

from brim.errors import InvalidRequest, UnknownDevice
from brim.planning.gpus.cards import ARCHITECTURES, CARDS, CLASSES, MIG_MIB, CatalogueCard, DeviceClass, Vendor
from brim.planning.gpus.names import find_card, near_names
from brim.planning.gpus.text import CpuBudget, Gpus, OwnGpus, read_device
from brim.probes.visible import VisibleGpu, visible_gpus
from brim.records.plan import Device, Source
from brim.suggest import did_you_mean, shown
from brim.units import MIB, parse_bytes

_SMALLEST_DEVICE_BYTES = 1 << 30
_SIZE = re.compile(r"\d+(?:\.\d+)?\s*(?:[kmgt]i?b?|b)", re.IGNORECASE)
_SOLD_SIZE = re.compile(r"(\d{1,4})\s*gb", re.IGNORECASE)
_MIG = re.compile(r"(.+?)[\s:/-]+(?:mig[\s:-]*)?(\d)g\.(\d{1,3})gb(?:\+.*)?", re.IGNORECASE)
_MIG_SHARE = 0.88  # of what a profile's name says, where the catalogue has none
_KINDS_ABOVE = {
    DeviceClass.LAPTOP: (DeviceClass.LAPTOP, DeviceClass.CONSUMER, DeviceClass.WORKSTATION),
    DeviceClass.CONSUMER: (DeviceClass.CONSUMER, DeviceClass.WORKSTATION, DeviceClass.DATACENTER),
    DeviceClass.WORKSTATION: (DeviceClass.WORKSTATION, DeviceClass.DATACENTER),
    DeviceClass.DATACENTER: (DeviceClass.DATACENTER,),
    DeviceClass.UNIFIED: (DeviceClass.UNIFIED,),
}
_SIZES = (8, 12, 16, 24, 32, 48, 80, 96, 141, 192, 288)  # GiB, to name one that is larger
_SAME_TOTAL_PERCENT = 2  # drivers differ by this much about the same card


@cache
def catalogue() -> tuple[Device, ...]:
    """Every GPU of the catalogue, smallest first."""
    return tuple(sorted((_catalogued(card) for card in CARDS), key=lambda device: (device.total_bytes, device.key)))


def card_device(card: CatalogueCard) -> Device:
    """A card of the catalogue as a device."""
    return _catalogued(card)


def larger_devices(device: Device) -> tuple[Device, ...]:
    """Devices with more memory that the owner of one may take instead: of the same vendor, and no older.

    Of the same kind first, smallest first, and then of the kinds above it. More than a size is a larger size.
    """
    if device.is_cpu or not device.generation:
        return tuple(of_size(f"{gib}GiB") for gib in _SIZES if gib << 30 > device.total_bytes * 105 // 100)
    own = next((card for card in CARDS if card.key == device.key), None)
    if own is None:
        return ()
    found = [
        (_KINDS_ABOVE[own.kind].index(card.kind), larger.usable_bytes, card.key, larger)
        for card in CARDS
        if card.kind in _KINDS_ABOVE[own.kind] and _vendor(card) is _vendor(own) and _year(card) >= _year(own)
        if (larger := _catalogued(card)).usable_bytes > device.usable_bytes * 105 // 100
    ]
    return tuple(larger for *_, larger in sorted(found, key=lambda one: one[:3]))


def _vendor(card: CatalogueCard) -> Vendor:
    return ARCHITECTURES[card.architecture].vendor


def _year(card: CatalogueCard) -> int:
    return ARCHITECTURES[card.architecture].year


def find_devices(text: str) -> tuple[Device, ...]:
    """The devices of a node, at least one, each with its own memory.

    By name or size, with a count ("8xh100", "h100:4", "2x24GiB"); "auto" or indices ("0,1") for this machine's GPUs;
    "cpu:NAME:64GiB" for a budget on the CPU. "24GB" is a card sold with that size, "24GiB" is exact.
    """
    wanted = _wanted(text)
    if isinstance(wanted, OwnGpus):
        return _chosen(this_machine(), wanted.indices)
    if isinstance(wanted, CpuBudget):
        return (_cpu(wanted),)
    return (_named(wanted.name),) * wanted.count


def find_device(text: str) -> Device:
    """One device, written as for `find_devices`. "auto" is the GPU that CUDA uses unless told otherwise: the first."""
    wanted = _wanted(text)
    if wanted == OwnGpus(None):
        return this_machine()[0]
    found = find_devices(text)
    if len(found) > 1:
        one = wanted.name if isinstance(wanted, Gpus) else "0"
        raise InvalidRequest(f"gpu '{shown(text)}' is {len(found)} devices, and one is wanted here; write {one}")
    return found[0]


def _wanted(text: str) -> OwnGpus | CpuBudget | Gpus:
    """What a text means. An x inside of a card's name is no count: "7900xtx", "rx-9070", "ryzen-ai-max-395"."""
    return Gpus(text) if find_card(text) else read_device(text)


def this_machine() -> tuple[Device, ...]:
    """The GPUs of this machine that this process sees, each with what other processes hold of it now."""
    return tuple(_measured(gpu) for gpu in visible_gpus())


def of_size(text: str) -> Device:
    """A GPU given by size: a card sold with it ("24GB"), else the memory that the driver reports ("24GiB")."""
    sold = _SOLD_SIZE.fullmatch(text.strip())
    if sold and int(sold[1]) in CLASSES:
        return _class_device(int(sold[1]))
    total = parse_bytes(f"{sold[1]}GB" if sold else text, "gpu")
    if total < _SMALLEST_DEVICE_BYTES:
        raise InvalidRequest(f"gpu '{shown(text)}' is smaller than 1 GiB; write the size like 24GiB")
    return replace(_device(text, f"{text} device", total, "ampere", None, Source.GIVEN), generation="")


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
    part = _part(text)
    if part is not None:
        return part
    if _SIZE.fullmatch(text) or re.match(r"\d{1,3}(?!\d)", text):
        return of_size(text)
    raise UnknownDevice(
        f"gpu '{shown(text)}' is not in the catalogue; {did_you_mean(near_names(text))}give a size such as 24GiB "
        "(`brim gpus` lists the catalogue)"
    )


def _class_device(sold_gb: int) -> Device:
    """The card that people mean by a datasheet's size, under the name of its class."""
    card = next(card for card in CARDS if card.key == CLASSES[sold_gb])
    device = _catalogued(card)
    return replace(device, name=f"{sold_gb} GB class (as {device.name})")


def _part(text: str) -> Device | None:
    """A part of a divided GPU: "h100-1g.10gb", "a100-80gb 3g.40gb", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"."""
    found = _MIG.fullmatch(text)
    card = find_card(found[1]) if found else None
    if found is None or card is None:
        return None
    profile = f"{found[2]}g.{int(found[3])}gb"
    listed = MIG_MIB.get((card.key, profile))
    total = listed * MIB if listed else int(int(found[3]) * _MIG_SHARE * 1024) * MIB
    if not 0 < total <= card.reported_mib * MIB:
        raise UnknownDevice(f"gpu '{shown(text)}' is more than the whole card ({card.name}); name a profile of it")
    source = Source.CATALOGUE if listed else Source.FORMULA
    return _device(f"{card.key}-{profile}", f"{card.name} MIG {profile}", total, card.architecture, 0, source)


def _catalogued(card: CatalogueCard) -> Device:
    total = card.reported_mib * MIB
    source = Source.PUBLISHED if card.published else Source.CATALOGUE
    device = _device(card.key, card.name, total, card.architecture, _hidden_bytes(card), source)
    return replace(device, unified=card.kind is DeviceClass.UNIFIED)


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
        generation=architecture,
    )


def _hidden_bytes(card: CatalogueCard) -> int | None:
    return None if card.usable_mib is None else (card.reported_mib - card.usable_mib) * MIB


def _usual_hidden(total: int) -> int:
    """What the driver reserves of a card that is not in the catalogue: 256 MiB and 1/400 of its size."""
    return 256 * MIB + total // 400


def _architecture_of(major: int, minor: int) -> str:
    if (major, minor) == (8, 9):
        return "ada"
    return {7: "turing" if minor == 5 else "volta", 8: "ampere", 9: "hopper"}.get(
        major, "blackwell" if major > 9 else "pascal"
    )

"""Devices that can be leased, from text: a GPU of this machine, or a named budget on the CPU.

In: "0", "cuda:1", "GPU-…", "MIG-…", "cpu:NAME:64GiB". Out: a `LeasedDevice`: its key in the ledger, its size, and
what it has free now. Of a budget on the CPU nothing is measured: it is what its leases say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from brim.errors import InvalidRequest, UnknownDevice
from brim.planning.gpus.text import CpuBudget, OwnGpus, read_device
from brim.probes.usage import gpu_usage, is_divided
from brim.probes.visible import VisibleGpu, numbered_as_cuda_does, visible_gpus
from brim.records.lease import Lease
from brim.reserve.parts import DeviceNow
from brim.reserve.processes import FIRST_PID_SPACE, descendants, is_there, resident_bytes, this_process
from brim.suggest import shown

_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,80}")
_BUDGET_NAME = re.compile(r"cpu:[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
_WITHOUT_GPU = "memory is leased where it is: on a machine without a GPU, lease of a budget on the CPU: cpu:lab:4GiB"
_PRIVATE_BUDGET = re.compile(r"cpu:engine-(\d{1,9})")


class LeasedDevice(Protocol):
    """A device whose memory processes share by leases."""

    @property
    def key(self) -> str:
        """Its name in the ledger."""
        ...

    @property
    def total_bytes(self) -> int: ...

    @property
    def has_driver(self) -> bool:
        """Whether somebody counts what processes really use."""
        ...

    def now(self, leases: Iterable[Lease]) -> DeviceNow:
        """What is free, and how much of these leases is counted as used already."""
        ...

    def used_bytes(self, leases: Iterable[Lease]) -> dict[str, int]:
        """What the processes of these leases really use, by the lease's name; those that are known."""
        ...


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget on the CPU that several processes share by its name."""

    key: str
    total_bytes: int
    has_driver: ClassVar[bool] = False

    def now(self, leases: Iterable[Lease]) -> DeviceNow:
        return DeviceNow(self.total_bytes)

    def used_bytes(self, leases: Iterable[Lease]) -> dict[str, int]:
        """The resident memory of each process and of what it has started."""
        return {name: sum(map(resident_bytes, tree)) for name, tree in _trees(leases).items()}


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or a part of one, by UUID."""

    key: str
    total_bytes: int
    has_driver: ClassVar[bool] = True

    def now(self, leases: Iterable[Lease]) -> DeviceNow:
        """By process where NVML's numbers are those of our /proc; elsewhere, what holders have measured themselves."""
        leases = tuple(leases)
        used = self.used_bytes(leases) if this_process().pid_space == FIRST_PID_SPACE else {}
        measured = {lease.name: lease.held_bytes or 0 for lease in leases if lease.measured}
        return DeviceNow(gpu_usage(self.key).free_bytes, {**measured, **used})

    def used_bytes(self, leases: Iterable[Lease]) -> dict[str, int]:
        """What NVML lists for each process and for what it has started; nothing of those it does not list."""
        by_pid = gpu_usage(self.key).by_pid
        listed = {name: tree & by_pid.keys() for name, tree in _trees(leases if by_pid else ()).items()}
        return {name: sum(by_pid[pid] for pid in pids) for name, pids in listed.items() if pids}


def _trees(leases: Iterable[Lease]) -> dict[str, frozenset[int]]:
    """The processes of each lease: its holder and what that has started, unless it has a lease of its own.

    Those of other containers are left out: their numbers are not ours.
    """
    here = this_process().pid_space
    leases = [lease for lease in leases if lease.holder.pid_space == here]
    holders = frozenset(lease.holder.pid for lease in leases)
    return {lease.name: descendants(lease.holder.pid, holders) for lease in leases}


def find_leased(text: str, what: str = "gpu") -> LeasedDevice:
    """The one device that a text means, with its size."""
    words = text.strip()
    if _UUID.fullmatch(words):
        return Gpu(words, gpu_usage(words).total_bytes)
    wanted = read_device(words, what)
    if isinstance(wanted, CpuBudget) and wanted.bytes is not None:
        return Budget(budget_key(wanted.name, what), wanted.bytes)
    if isinstance(wanted, OwnGpus):
        found = _by_index(wanted.indices, what)
        return Gpu(found.uuid, found.total_bytes)
    raise InvalidRequest(
        f"{what} '{shown(text)}' is no device of this machine; write 0, cuda:1, a UUID (GPU-…), or a budget on the CPU "
        "such as cpu:lab:4GiB"
    )


def key_of(text: str, what: str = "gpu") -> str:
    """The key of a device. A budget on the CPU needs no size here: its leases know it."""
    words = text.strip()
    if _BUDGET_NAME.fullmatch(words):
        return words
    return find_leased(words, what).key


def is_key(text: str) -> bool:
    """Whether a text is the key of a device, as ledgers are named by it."""
    return any(pattern.fullmatch(text) for pattern in (_UUID, _BUDGET_NAME))


def known_device(key: str, leases: Iterable[Lease]) -> LeasedDevice:
    """The device of a ledger, its size as its leases have it."""
    size = max((lease.device_bytes for lease in leases), default=0)
    return Budget(key, size) if key.startswith("cpu:") else Gpu(key, size)


def budget_key(name: str, what: str = "gpu") -> str:
    """The key of a budget: processes find each other by its name."""
    if name == "cpu":
        raise InvalidRequest(f"{what}: a budget that is shared needs a name; write cpu:lab:4GiB")
    if not _BUDGET_NAME.fullmatch(name):
        raise InvalidRequest(
            f"{what} '{shown(name)}': a budget's name is made of letters, digits, dots, dashes and underscores; "
            "write cpu:lab:4GiB"
        )
    return name


def private_budget(pid: int) -> str:
    """The key of a budget that an engine shares with nobody but its encoders."""
    return f"cpu:engine-{pid}"


def is_left_over(key: str) -> bool:
    """Whether this is the private budget of an engine that has gone."""
    private = _PRIVATE_BUDGET.fullmatch(key)
    return private is not None and not is_there(int(private[1]))


def _by_index(indices: tuple[int, ...] | None, what: str) -> VisibleGpu:
    gpus = visible_gpus(remedy=_WITHOUT_GPU)
    if len(gpus if indices is None else indices) > 1:
        raise InvalidRequest(f"{what} is several GPUs, and a lease is on one; write 0, or a UUID")
    index = indices[0] if indices else 0
    if index >= len(gpus):
        raise UnknownDevice(f"{what} {index} is not there: this process sees {len(gpus)}, counted from 0")
    if not numbered_as_cuda_does(gpus):
        raise InvalidRequest(
            f"{what} {index}: the GPUs here differ, and CUDA may number them otherwise than the driver; write "
            f"{gpus[index].uuid} ({gpus[index].name}), or set CUDA_DEVICE_ORDER=PCI_BUS_ID for every process"
        )
    if is_divided(gpus[index].uuid):
        raise InvalidRequest(f"{what} {index} is divided (MIG); write the UUID of a part, MIG-… (`nvidia-smi -L`)")
    return gpus[index]

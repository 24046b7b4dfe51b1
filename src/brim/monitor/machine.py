"""The GPUs of this machine: who holds what of each, by NVML and by leases; budgets on the CPU; recordings.

In: the folders of leases and recordings, and the processes of servers that are known. Out: `MachineReading`. Where
there is no GPU, or no driver to ask, it says why, and the rest is there all the same.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brim.errors import BrimError
from brim.probes.host import available_host_bytes
from brim.probes.usage import GpuUsage, gpu_usage, program_name
from brim.probes.visible import visible_gpus
from brim.record.layout import NotARecording, unpack_header
from brim.reserve.ledger import known_devices
from brim.reserve.listing import ListedLease, listed_leases
from brim.reserve.processes import descendants, is_there

_RECORDINGS = 5
_MOST_FILES = 1000
_HEADER_BYTES = 4096
_REMEDY = "run it where the GPUs are"


@dataclass(frozen=True, slots=True)
class MemoryHolder:
    """A process on a device: by NVML, by its lease, or both."""

    pid: int
    name: str  # its role, or its program
    used_bytes: int | None  # None: nobody counts it
    promised_bytes: int | None = None
    held_bytes: int | None = None
    state: str = ""  # of its lease; empty: it has none
    server: str = ""  # the address that it belongs to

    def to_json(self) -> dict[str, Any]:
        return {
            "pid": self.pid,
            "name": self.name,
            "used_bytes": self.used_bytes,
            "promised_bytes": self.promised_bytes,
            "held_bytes": self.held_bytes,
            "state": self.state or None,
            "server": self.server or None,
        }


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """A GPU, or a budget on the CPU that has leases."""

    key: str  # its UUID, or cpu:NAME
    name: str
    total_bytes: int
    free_bytes: int | None  # None: a budget, of which nothing is measured
    holders: tuple[MemoryHolder, ...]
    number: int | None = None  # of the GPUs that this process sees

    def to_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "name": self.name,
            "number": self.number,
            "total_bytes": self.total_bytes,
            "free_bytes": self.free_bytes,
            "holders": [one.to_json() for one in self.holders],
        }


@dataclass(frozen=True, slots=True)
class RecordingFile:
    path: Path
    pid: int
    running: bool  # its process
    age_seconds: float  # since it was begun

    def to_json(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "pid": self.pid,
            "running": self.running,
            "age_seconds": round(self.age_seconds, 1),
        }


@dataclass(frozen=True, slots=True)
class MachineReading:
    gpus: tuple[DeviceReading, ...]
    budgets: tuple[DeviceReading, ...]
    recordings: tuple[RecordingFile, ...]
    host_free_bytes: int
    problem: str = ""  # why no GPU is shown
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "gpus": [one.to_json() for one in self.gpus],
            "budgets": [one.to_json() for one in self.budgets],
            "recordings": [one.to_json() for one in self.recordings],
            "host_free_bytes": self.host_free_bytes,
            "problem": self.problem or None,
            "notes": list(self.notes),
        }

    def free_beside(self, url: str) -> int | None:
        """The least that is free on a GPU where this server holds something."""
        on = [one.free_bytes for one in self.gpus if any(holder.server == url for holder in one.holders)]
        return min((free for free in on if free is not None), default=None)


def read_machine(leases: Path, recordings: Path, servers: Mapping[str, frozenset[int]] | None = None) -> MachineReading:
    """`servers`: the processes of each address."""
    owners = {pid: url for url, pids in (servers or {}).items() for pid in pids}
    notes: list[str] = []
    try:
        seen, problem = visible_gpus(remedy=_REMEDY), ""
    except BrimError as error:
        seen, problem = (), str(error)
    gpus = []
    for number, gpu in enumerate(seen):
        try:
            gpus.append(_gpu(gpu.uuid, gpu.name, number, _leases(leases, gpu.uuid, notes), owners))
        except BrimError as error:
            notes.append(f"{gpu.name} ({gpu.uuid}): {error}")
    return MachineReading(
        tuple(gpus),
        _budgets(leases, {one.uuid for one in seen}, owners, notes),
        _recordings(recordings),
        available_host_bytes(),
        problem,
        tuple(notes),
    )


def _gpu(uuid: str, name: str, number: int, leases: Sequence[ListedLease], owners: Mapping[int, str]) -> DeviceReading:
    usage: GpuUsage = gpu_usage(uuid)
    listed = [descendants(one.lease.holder.pid) for one in leases if one.used_bytes is not None and usage.by_pid]
    leased = frozenset(one.lease.holder.pid for one in leases).union(*listed)  # a lease counts what its holder started
    others = [
        MemoryHolder(pid, program_name(pid), size, server=owners.get(pid, ""))
        for pid, size in usage.by_pid.items()
        if pid not in leased
    ]
    holders = (*(_of_lease(one, owners) for one in leases), *others)
    return DeviceReading(uuid, name, usage.total_bytes, usage.free_bytes, _largest_first(holders), number)


def _budgets(folder: Path, gpus: set[str], owners: Mapping[int, str], notes: list[str]) -> tuple[DeviceReading, ...]:
    """Devices with leases that are no GPU of this process: budgets on the CPU, and GPUs that it does not see."""
    try:
        keys = [key for key in known_devices(folder) if key not in gpus]
    except BrimError as error:
        notes.append(str(error))
        return ()
    found = []
    for key in keys:
        leases = _leases(folder, key, notes)
        if leases:
            size = max(one.lease.device_bytes for one in leases)
            holders = _largest_first(tuple(_of_lease(one, owners) for one in leases))
            found.append(DeviceReading(key, key, size, None, holders))
    return tuple(found)


def _leases(folder: Path, device: str, notes: list[str]) -> Sequence[ListedLease]:
    try:
        listing = listed_leases(folder, device)
    except BrimError as error:
        notes.append(str(error))
        return ()
    notes += [str(one) for one in (*listing.unknown, *listing.problems)]
    return listing.leases


def _of_lease(one: ListedLease, owners: Mapping[int, str]) -> MemoryHolder:
    lease = one.lease
    return MemoryHolder(
        pid=lease.holder.pid,
        name=lease.role,
        used_bytes=one.used_bytes,
        promised_bytes=lease.promised_bytes,
        held_bytes=lease.held_bytes,
        state=str(lease.state),
        server=owners.get(lease.holder.pid, ""),
    )


def _largest_first(holders: Sequence[MemoryHolder]) -> tuple[MemoryHolder, ...]:
    return tuple(sorted(holders, key=lambda one: max(one.used_bytes or 0, one.held_bytes or 0), reverse=True))


def _recordings(folder: Path) -> tuple[RecordingFile, ...]:
    """The newest; those of processes that run are among them, since they are written to."""
    try:
        files = [(path.stat().st_mtime, path) for path in list(folder.iterdir())[:_MOST_FILES] if path.is_file()]
    except OSError:
        return ()
    found = []
    for _, path in sorted(files, reverse=True)[:_RECORDINGS]:
        try:
            with path.open("rb") as file:
                header = unpack_header(file.read(_HEADER_BYTES))
        except (OSError, NotARecording):
            continue
        found.append(RecordingFile(path, header.pid, is_there(header.pid), max(0.0, time.time() - header.created)))
    return tuple(found)

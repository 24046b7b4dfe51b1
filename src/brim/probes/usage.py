"""What a GPU has free and what each process holds of it, by NVML: no torch, no CUDA context.

In: a UUID, of a GPU or of a part of one (MIG). Out: `GpuUsage`. Containers and some drivers do not list processes, or
not their memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brim.errors import UnknownDevice
from brim.probes.visible import nvml_session


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """A GPU at one moment."""

    total_bytes: int
    free_bytes: int
    by_pid: Mapping[int, int]  # as NVML numbers processes: those of the host


def gpu_usage(uuid: str) -> GpuUsage:
    with nvml_session() as nvml:
        handle = _handle(nvml, uuid)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        return GpuUsage(int(memory.total), int(memory.total - memory.used), _by_pid(nvml, handle))


def is_divided(uuid: str) -> bool:
    """Whether a GPU is divided into parts (MIG): processes use those, and the GPU as a whole has no memory to lease."""
    with nvml_session() as nvml:
        try:
            current, _ = nvml.nvmlDeviceGetMigMode(_handle(nvml, uuid))
        except nvml.NVMLError:  # this GPU cannot be, or it is a part itself
            return False
        return bool(current)


def _handle(nvml: Any, uuid: str) -> Any:
    try:
        return nvml.nvmlDeviceGetHandleByUUID(uuid)
    except nvml.NVMLError:
        raise UnknownDevice(f"gpu '{uuid[:60]}' is not on this machine; `nvidia-smi -L` lists the UUIDs") from None


def _by_pid(nvml: Any, handle: Any) -> dict[int, int]:
    """Empty where NVML does not list processes."""
    try:
        running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:
        return {}
    return {int(one.pid): int(one.usedGpuMemory) for one in running if one.usedGpuMemory is not None}


def program_name(pid: int) -> str:
    """The program of a process, as the kernel has it; empty where it is in another container, or has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""

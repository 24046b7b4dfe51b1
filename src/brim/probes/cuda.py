"""A CUDA device's memory, as torch's allocator, the driver and NVML report it.

In: the device's index, as torch counts. Out: readings. Separating what this process holds outside its allocator
(context, kernels, library workspaces) from what neighbours hold needs NVML's figures by process, which containers and
some drivers do not give: `process_bytes` is None there.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from brim.errors import DeviceError
from brim.probes.holders import largest_tensors
from brim.probes.nvml import nvml_device
from brim.probes.translate import translated
from brim.records.memory import MemoryReading

if TYPE_CHECKING:
    import torch


class CudaProbe:
    """Reads one CUDA device."""

    def __init__(self, device_index: int = 0) -> None:
        import torch

        if not torch.cuda.is_available():
            raise DeviceError("no CUDA device: torch sees none; check the driver, or run on the CPU (--device cpu)")
        if not 0 <= device_index < torch.cuda.device_count():
            raise DeviceError(f"no CUDA device {device_index}: torch sees {torch.cuda.device_count()}")
        self.device_index = device_index
        self._processes: _Processes | None = _Processes.of(device_index)
        self._canary: torch.Tensor | None = None
        self._lent_bytes = 0  # of the canary

    def reading(self) -> MemoryReading:
        import torch

        free, total = torch.cuda.mem_get_info(self.device_index)
        stats = torch.cuda.memory_stats(self.device_index)
        reserved = stats.get("reserved_bytes.all.current", 0)
        return MemoryReading(
            total_bytes=total,
            free_bytes=free,
            allocated_bytes=stats.get("allocated_bytes.all.current", 0),
            reserved_bytes=reserved,
            peak_allocated_bytes=stats.get("allocated_bytes.all.peak", 0),
            peak_reserved_bytes=stats.get("reserved_bytes.all.peak", 0),
            other_bytes=max(0, total - free - reserved),  # the driver's figure may lag behind the allocator's
            process_bytes=self._process_bytes(reserved),
        )

    def reset_peak(self) -> None:
        import torch

        torch.cuda.reset_peak_memory_stats(self.device_index)

    def hold_canary(self, canary_bytes: int) -> None:
        import torch

        self._canary, self._lent_bytes = None, 0
        torch.cuda.empty_cache()
        if canary_bytes:
            self._canary = self._allocated(canary_bytes)

    def _allocated(self, canary_bytes: int) -> torch.Tensor:
        import torch

        with translated():
            return torch.empty(canary_bytes, dtype=torch.uint8, device=f"cuda:{self.device_index}")

    def lend_canary(self) -> int:
        """It stays in the allocator's cache: emptying that would offer it to every process on the device."""
        if self._canary is not None:
            self._lent_bytes, self._canary = self._canary.numel(), None
        return self._lent_bytes

    def take_canary_back(self) -> None:
        if self._lent_bytes:
            self._canary = self._allocated(self._lent_bytes)
            self._lent_bytes = 0

    def largest_held(self, count: int) -> tuple[str, ...]:
        return largest_tensors(count, lambda tensor: tensor.is_cuda and tensor.get_device() == self.device_index)

    def _process_bytes(self, reserved: int) -> int | None:
        found = self._processes.own_bytes() if self._processes else None
        if found is None or found < reserved:  # less than we hold: a process of another namespace has our number
            self._processes = None  # this does not change later, and asking takes time
            return None
        return found


class _Processes:
    """NVML's list of the processes on a device."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle

    @classmethod
    def of(cls, device_index: int) -> _Processes | None:
        """None where NVML cannot be asked."""
        found = nvml_device(device_index)
        return None if found is None else cls(*found)

    def own_bytes(self) -> int | None:
        """What this process holds; None where NVML does not list it or does not report the figure."""
        try:
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except self._nvml.NVMLError:
            return None
        held = [process.usedGpuMemory for process in running if process.pid == os.getpid()]
        return int(held[0]) if held and held[0] is not None else None

"""What the workers of stock vLLM say of their memory (`RankMemory`), through a public hook: `worker_extension_cls`."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from brim.fit.keep_free import keep_free
from brim.records.memory import MemoryReading
from brim.reserve.devices import LeasedDevice
from brim.reserve.processes import resident_bytes
from brim.reserve.promised import promised_bytes
from brim.units import KIB
from brim.vllm.settings import WorkerSettings, read_settings
from brim.vllm.sizing import cpu_budget_bytes, device_facts, leased_device

EXTENSION = f"{__name__}.MemoryFigures"


@dataclass(frozen=True, slots=True)
class RankMemory:
    """The device of a rank after the load."""

    reading: MemoryReading  # in which what neighbours were promised is theirs
    keep_free_bytes: int = 0


class MemoryFigures:
    """What a stock worker can be asked."""

    device: Any
    vllm_config: Any

    def brim_memory(self) -> dict[str, Any]:
        """The `RankMemory` of this worker as plain values, which vLLM sends between processes."""
        settings = read_settings(self.vllm_config.additional_config, os.environ)
        reading = without_promised(_reading(self, settings), leased_device(self, settings))
        kept = keep_free(settings.keep_free_bytes, device_facts(self), reading.total_bytes)
        return asdict(RankMemory(reading, kept.bytes))


def rank_memory(told: Mapping[str, Any]) -> RankMemory:
    """What `brim_memory` has told."""
    return RankMemory(MemoryReading(**told["reading"]), told["keep_free_bytes"])


def _reading(worker: Any, settings: WorkerSettings) -> MemoryReading:
    """By the worker's allocator and the driver; on the CPU, by what is resident of the budget."""
    if worker.device.type == "cuda":
        from brim.probes.cuda import CudaProbe

        return CudaProbe(worker.device.index or 0).reading()
    total, held = cpu_budget_bytes(worker, settings), resident_bytes(os.getpid())
    peak = max(held, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB)
    return MemoryReading(total, total - held, held, held, peak, peak, 0)


def without_promised(reading: MemoryReading, device: LeasedDevice | None) -> MemoryReading:
    """A reading in which the memory that neighbours may still take counts as theirs."""
    promised = 0 if device is None else promised_bytes(device)
    return replace(reading, free_bytes=reading.free_bytes - promised, other_bytes=reading.other_bytes + promised)

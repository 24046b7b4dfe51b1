"""NVML of a machine that is not here: the calls Brim makes, with the library's own error for what it refuses."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

GIB = 1 << 30


@dataclass
class FakeGpu:
    name: str
    uuid: str
    total: int
    used: int
    capability: tuple[int, int] = (9, 0)
    part_of: FakeGpu | None = None
    processes: dict[int, int | None] = field(default_factory=dict)  # bytes by pid; None: the driver does not say
    divided: bool = False


@dataclass
class FakeNvml:
    """Stands for the module `pynvml`."""

    gpus: list[FakeGpu]
    parts: list[FakeGpu] = field(default_factory=list)
    driver: bool = True
    open: int = 0

    class NVMLError(Exception):
        pass

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.driver:
            raise self.NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:  # noqa: N802
        assert self.open
        if not 0 <= index < len(self.gpus):
            raise self.NVMLError("Invalid Argument")
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:  # noqa: N802
        for one in (*self.gpus, *self.parts):
            if one.uuid == uuid:
                return one
        raise self.NVMLError("Not Found")

    def nvmlDeviceGetUUID(self, handle: FakeGpu) -> str:  # noqa: N802
        return handle.uuid

    def nvmlDeviceGetName(self, handle: FakeGpu) -> str:  # noqa: N802
        return handle.name

    def nvmlDeviceGetMemoryInfo(self, handle: FakeGpu) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(total=handle.total, used=handle.used)

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: FakeGpu) -> FakeGpu:  # noqa: N802
        if handle.part_of is None:
            raise self.NVMLError("Not Supported")
        return handle.part_of

    def nvmlDeviceGetCudaComputeCapability(self, handle: FakeGpu) -> tuple[int, int]:  # noqa: N802
        if handle.part_of is not None:
            raise self.NVMLError("Invalid Argument")
        return handle.capability

    def nvmlDeviceGetComputeRunningProcesses(self, handle: FakeGpu) -> list[SimpleNamespace]:  # noqa: N802
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in handle.processes.items()]

    def nvmlDeviceGetMigMode(self, handle: FakeGpu) -> tuple[int, int]:  # noqa: N802
        if handle.part_of is not None:
            raise self.NVMLError("Not Supported")
        return int(handle.divided), int(handle.divided)

"""The GPUs that CUDA shows to this process, as NVML reports them, without torch and without a CUDA context.

In: `CUDA_VISIBLE_DEVICES`. Out: `VisibleGpu`s, in CUDA's order where every GPU is of a kind or CUDA_DEVICE_ORDER is
PCI_BUS_ID: NVML counts by bus, and does not know which GPU CUDA takes for the fastest. A GPU that is divided (MIG) is
seen whole unless one of its parts is named by UUID.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from brim.errors import DeviceError, first_line

_REMEDY = "name a GPU, or give a size such as 24GiB"


@dataclass(frozen=True, slots=True)
class VisibleGpu:
    """What NVML says of a GPU, or of a part of one."""

    name: str
    total_bytes: int
    used_bytes: int  # by processes and by the driver
    compute_capability: tuple[int, int]
    uuid: str


def visible_gpus(environment: Mapping[str, str] = os.environ, remedy: str = _REMEDY) -> tuple[VisibleGpu, ...]:
    """Every GPU this process may use, at least one; `DeviceError` with the remedy where there is none."""
    asked = environment.get("CUDA_VISIBLE_DEVICES")
    with nvml_session(remedy) as nvml:
        handles = _all_handles(nvml) if asked is None else _named_handles(nvml, asked)
        found = tuple(_described(nvml, handle) for handle in handles)
    if not found:
        hidden = "" if asked is None else f" (CUDA_VISIBLE_DEVICES is '{asked[:60]}')"
        raise DeviceError(f"this process sees no GPU{hidden}; {remedy}")
    return found


def numbered_as_cuda_does(gpus: Sequence[VisibleGpu], environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the n-th of these is CUDA's n-th for sure."""
    return len({gpu.name for gpu in gpus}) < 2 or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"


@contextmanager
def nvml_session(remedy: str = _REMEDY) -> Iterator[Any]:
    """NVML, started and stopped; its errors in Brim's words."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise DeviceError(
            f"asking for this machine's GPUs needs an NVIDIA driver, and NVML says: {first_line(error)}; {remedy}"
        ) from None
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        raise DeviceError(f"NVML says of this machine's GPUs: {first_line(error)}; {remedy}") from None
    finally:
        pynvml.nvmlShutdown()


def _all_handles(nvml: Any) -> list[Any]:
    return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]


def _named_handles(nvml: Any, asked: str) -> list[Any]:
    """As CUDA reads its variable: up to the first entry that is not a GPU; none where one is named twice."""
    handles: dict[str, Any] = {}
    for entry in (part.strip() for part in asked.split(",")):
        found = _by_index(nvml, entry) if entry.isdecimal() else _by_uuid(nvml, entry)
        if found is None:
            break
        uuid = str(nvml.nvmlDeviceGetUUID(found))
        if uuid in handles:
            return []
        handles[uuid] = found
    return list(handles.values())


def _by_index(nvml: Any, entry: str) -> Any:
    known = len(entry) < 6 and int(entry) < nvml.nvmlDeviceGetCount()
    return nvml.nvmlDeviceGetHandleByIndex(int(entry)) if known else None


def _by_uuid(nvml: Any, entry: str) -> Any:
    """By a UUID, or by as much of a GPU's as is unique; None where there is no such GPU."""
    if entry.startswith("GPU-"):
        begun = [one for one in _all_handles(nvml) if str(nvml.nvmlDeviceGetUUID(one)).startswith(entry)]
        return begun[0] if len(begun) == 1 else None
    if not entry.startswith("MIG-"):
        return None
    try:
        return nvml.nvmlDeviceGetHandleByUUID(entry)
    except nvml.NVMLError:
        return None


def _described(nvml: Any, handle: Any) -> VisibleGpu:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    whole = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if _is_part(nvml, handle) else handle
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(whole)
    return VisibleGpu(
        name=str(nvml.nvmlDeviceGetName(handle)),
        total_bytes=int(memory.total),
        used_bytes=int(memory.used),
        compute_capability=(int(major), int(minor)),
        uuid=str(nvml.nvmlDeviceGetUUID(handle)),
    )


def _is_part(nvml: Any, handle: Any) -> bool:
    return str(nvml.nvmlDeviceGetUUID(handle)).startswith("MIG-")

"""The NVML handle of a torch device, and its UUID."""

from __future__ import annotations

from typing import Any

from brim.errors import DeviceError


def nvml_device(device_index: int) -> tuple[Any, Any] | None:
    """(pynvml, its handle of a device); None where NVML cannot be asked.

    By UUID: CUDA_VISIBLE_DEVICES changes torch's numbers and not NVML's.
    """
    import pynvml
    import torch

    uuid = getattr(torch.cuda.get_device_properties(device_index), "uuid", None)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    for kind in ("GPU", "MIG"):  # torch writes both without
        try:
            return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"{kind}-{uuid}")
        except pynvml.NVMLError:
            continue
    return None


def device_uuid(device_index: int) -> str:
    """The UUID of a torch device, as NVML writes it."""
    found = nvml_device(device_index)
    if found is None:
        raise DeviceError(f"NVML does not know the GPU that torch calls cuda:{device_index}")
    nvml, handle = found
    return str(nvml.nvmlDeviceGetUUID(handle))

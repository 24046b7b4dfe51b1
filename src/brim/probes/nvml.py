"""The NVML handle of a torch device."""

from __future__ import annotations

from typing import Any


def nvml_device(device_index: int) -> tuple[Any, Any] | None:
    """(pynvml, its handle of a device); None where NVML cannot be asked.

    By UUID: CUDA_VISIBLE_DEVICES changes torch's numbers and not NVML's.
    """
    import pynvml
    import torch

    uuid = getattr(torch.cuda.get_device_properties(device_index), "uuid", None)
    try:
        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except pynvml.NVMLError:
        return None

"""Properties of a GPU that a fit needs: whether it drives a display, and whether its driver spills to host memory.

In: the device's index, as torch counts. Out: `DeviceFacts`. What NVML does not report counts as no.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

from brim.probes.nvml import nvml_device
from brim.records.memory import DeviceFacts


def gpu_facts(device_index: int) -> DeviceFacts:
    found = nvml_device(device_index)
    return DeviceFacts(drives_display=found is not None and drives_display(*found), spills=under_wsl(_kernel()))


def drives_display(nvml: Any, handle: Any) -> bool:
    """Whether a display has memory on this device, with or without a monitor.

    NVML's display mode is not used: it reads "enabled" on cards with nothing connected.
    """
    try:
        return bool(nvml.nvmlDeviceGetDisplayActive(handle) == nvml.NVML_FEATURE_ENABLED)
    except nvml.NVMLError:
        return False


def under_wsl(kernel: str) -> bool:
    """Whether this kernel is WSL's: there Windows manages the memory of GPUs."""
    return "microsoft" in kernel.lower()


def _kernel() -> str:
    """The kernel's name and version. Containers see that of their host."""
    try:
        version = Path("/proc/version").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        version = ""
    return f"{platform.uname().release} {version}"

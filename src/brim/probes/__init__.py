"""Readings of a device's memory: of a CUDA device, or of a budget on the CPU that counts and refuses like a device.

For authors of engines: a probe for a fit, facts about a GPU, and torch's out-of-memory errors as Brim's (`translated`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brim.exports import lazily

if TYPE_CHECKING:
    from brim.probes.cpu import CpuProbe
    from brim.probes.cuda import CudaProbe
    from brim.probes.facts import gpu_facts
    from brim.probes.translate import translated

__all__ = [
    "CpuProbe",
    "CudaProbe",
    "gpu_facts",
    "translated",
]

__getattr__ = lazily(
    __name__,
    {
        "CpuProbe": "brim.probes.cpu",
        "CudaProbe": "brim.probes.cuda",
        "gpu_facts": "brim.probes.facts",
        "translated": "brim.probes.translate",
    },
)

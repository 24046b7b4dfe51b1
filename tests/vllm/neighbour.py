"""Brim's worker on a device of which another process takes memory between the measurement and the validation."""

from __future__ import annotations

import brim.vllm.worker
from brim.records.memory import StressShape
from brim.units import MIB
from brim.vllm.runner.engine import VllmEngine

TAKEN_BYTES = 6 * MIB


class TakenFrom(VllmEngine):
    """From the second build on, a step finds less memory than the measured one did."""

    def stress(self, shape: StressShape) -> None:
        import torch

        taken = torch.empty(TAKEN_BYTES if self.builds > 1 else 0, dtype=torch.uint8)
        super().stress(shape)
        del taken


brim.vllm.worker.VllmEngine = TakenFrom  # type: ignore[misc]
Worker = brim.vllm.worker.worker_class()

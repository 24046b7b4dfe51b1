"""Whether an engine can be trusted after a rescue: requests, slots and blocks agree, and no tensor was left behind.

Run while nothing is in flight and the canary is lent. Of the host's memory it sees what a step could leave there: the
request of features that were kept, with its prompt and its pixels. Results on their way to the host go with their step,
and steps are sent from a fixed number of buffers. Pinned memory in torch's own cache is not seen.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass

from brim.engine.run.runner import Runner
from brim.engine.schedule.audit import scheduler_problems
from brim.engine.schedule.scheduler import Scheduler
from brim.ports import CanaryProbe
from brim.records.fit import CUDA_WORKSPACE_BYTES
from brim.units import format_bytes

_SETTLING = 20  # looks, before what is still there counts as a leak


@dataclass(frozen=True, slots=True)
class MemoryAtRest:
    """What is allocated while nothing is in flight, without the canary and what the runner keeps between steps."""

    allocated_bytes: int
    tolerance_bytes: int

    @classmethod
    def now(cls, probe: CanaryProbe, runner: Runner) -> MemoryAtRest:
        """The canary is lent."""
        tolerance = CUDA_WORKSPACE_BYTES if runner.shape.device.type == "cuda" else 0
        return cls(probe.reading().allocated_bytes - runner.kept_bytes, tolerance)

    def problems(self, probe: CanaryProbe, runner: Runner) -> list[str]:
        """A leak, if there is one."""
        leaked = self._more_than_before(probe, runner)
        if leaked > 0:
            gc.collect()  # garbage that is not collected yet is no leak
            leaked = self._more_than_before(probe, runner)
        for _ in range(_SETTLING):
            if leaked <= 0:
                break
            time.sleep(0.01)  # threads of collectives let go of a tensor when they come to it
            leaked = self._more_than_before(probe, runner)
        return [f"{format_bytes(leaked)} of tensors were left behind"] if leaked > 0 else []

    def _more_than_before(self, probe: CanaryProbe, runner: Runner) -> int:
        return MemoryAtRest.now(probe, runner).allocated_bytes - self.allocated_bytes - self.tolerance_bytes


def audit(scheduler: Scheduler, runner: Runner, probe: CanaryProbe | None, rest: MemoryAtRest | None) -> list[str]:
    """Everything that is wrong; nothing where all is well. Memory of the device is checked where there is a probe."""
    found = scheduler_problems(scheduler) + runner.host_problems(scheduler.running)
    if probe is not None and rest is not None:
        found += rest.problems(probe, runner)
    return found

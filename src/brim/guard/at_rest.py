"""What is allocated while nothing is in flight: more than that after a rescue is a leak.

In: a probe and an engine, with the canary lent. Out: a `MemoryAtRest`, and what is wrong. Pinned memory of the host is
not seen.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass

from brim.ports import AuditedEngine, CanaryProbe
from brim.units import format_bytes

_SETTLING = 20  # looks, before what is still there counts as a leak


@dataclass(frozen=True, slots=True)
class MemoryAtRest:
    """What is allocated, without the canary and what the engine keeps between steps."""

    allocated_bytes: int
    tolerance_bytes: int

    @classmethod
    def now(cls, probe: CanaryProbe, engine: AuditedEngine) -> MemoryAtRest:
        """The canary is lent."""
        return cls(probe.reading().allocated_bytes - engine.kept_bytes, engine.library_bytes)

    def problems(self, probe: CanaryProbe, engine: AuditedEngine) -> list[str]:
        """A leak, if there is one."""
        leaked = self._more_than_before(probe, engine)
        if leaked > 0:
            gc.collect()  # garbage that is not collected yet is no leak
            leaked = self._more_than_before(probe, engine)
        for _ in range(_SETTLING):
            if leaked <= 0:
                break
            time.sleep(0.01)  # threads of collectives let go of a tensor when they come to it
            leaked = self._more_than_before(probe, engine)
        return [f"{format_bytes(leaked)} of tensors were left behind"] if leaked > 0 else []

    def _more_than_before(self, probe: CanaryProbe, engine: AuditedEngine) -> int:
        return MemoryAtRest.now(probe, engine).allocated_bytes - self.allocated_bytes - self.tolerance_bytes

"""The CPU's budget while serving: what a fit has proven is relied on, and checked at a cost that cannot be measured.

In: a `CpuProbe` under which the worst steps have run at the size that is served, and how many tokens they had. Out: a
refusal (`torch.OutOfMemoryError`, as of the probe) for a step that is larger, and for any step while what this process
holds is beyond the budget. All that is held between steps was counted when it was built. Whether more has been left
behind is asked once a second: of the operating system first, how much memory this process has taken since the proof;
only where that is more than the budget has left are the tensors themselves looked for and counted.

What it does not see: the temporaries of a step that is no larger than the proven ones, and what has been left behind
where the system does not say what a process has taken (other than Linux), or below 64 MiB.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from brim.probes.holders import live_tensors
from brim.units import MIB

if TYPE_CHECKING:
    import torch

    from brim.probes.cpu import CpuProbe

_LOOK_SECONDS = 1.0
_UNREMARKABLE_BYTES = 64 * MIB  # of growth: caches of kernels, objects of requests
_STATM = Path("/proc/self/statm")
_DATA_FIELD = 5


def data_bytes() -> int:
    """Private memory that this process has taken, used or not; 0 where the system does not say."""
    try:
        pages = int(_STATM.read_bytes().split()[_DATA_FIELD])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


class ProvenBound:
    """The bound of one engine, from its fit until it is torn down."""

    def __init__(
        self,
        probe: CpuProbe,
        step_tokens: int,
        *,
        taken_bytes: Callable[[], int] = data_bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.probe = probe
        self.step_tokens = step_tokens
        self._taken_bytes = taken_bytes
        self._clock = clock
        self._at_proof = taken_bytes()
        self._spare_bytes = max(probe.reading().free_bytes, _UNREMARKABLE_BYTES)
        self._expected = self._spare_bytes  # growth that needs no explanation
        self._next_look = clock() + _LOOK_SECONDS

    def check(self, tokens: int) -> None:
        """Refuse a step of so many tokens that is not known to fit."""
        if tokens > self.step_tokens:
            import torch

            raise torch.OutOfMemoryError(f"a step of {tokens} tokens; {self.step_tokens} are proven to fit the budget")
        if self._clock() >= self._next_look:
            self._look()

    def _look(self) -> None:
        grown = self._taken_bytes() - self._at_proof
        if grown > self._expected:
            passed = self.probe.note(live_tensors(_made_in_a_step))
            if passed:
                raise self.probe.refusal(passed)  # the next step looks again
            self._expected = grown + self._spare_bytes  # the host's own: texts, tokens, bodies of requests
        self._next_look = self._clock() + _LOOK_SECONDS


def _made_in_a_step(tensor: torch.Tensor) -> bool:
    """Steps run in inference mode; what requests bring along (pixels) was made outside of it."""
    return tensor.is_cpu and tensor.is_inference()

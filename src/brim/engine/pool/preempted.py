"""The host memory of an engine: how much it is, opened when the engine is built, measured the first time.

In: the model of an engine. Out: `HostCopies` for its scheduler and `HostMemory` for its runner, the same on all ranks.
Where host memory cannot be had, preempted requests are recomputed, and `warnings` says why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from brim.engine.kv.host import HostRoom, HostSizes
from brim.engine.loop import ServingLoop
from brim.engine.model import ServingModel
from brim.engine.run.host_memory import HostMemory, state_bytes
from brim.engine.schedule.host_copies import HostCopies
from brim.engine.settings import EngineSettings
from brim.engine.stress.rates import prefill_rate
from brim.errors import DeviceError
from brim.guard.preemption import PreemptionRates
from brim.probes.host import available_host_bytes
from brim.units import GIB, format_bytes

if TYPE_CHECKING:
    from brim.engine.ranks.ranks import Ranks

MOST_BYTES = 4 * GIB  # by default: pinning takes about a second for so much
AVAILABLE_PART = 4  # by default a quarter of the memory that the host has left, all ranks together


class PreemptedMemory:
    """The host memory that one engine keeps preempted requests in."""

    def __init__(self, model: ServingModel, ranks: Ranks | None = None) -> None:
        self.warnings: tuple[str, ...] = ()
        self._model = model
        self._ranks = ranks
        self._memory: HostMemory | None = None
        self.rates: PreemptionRates | None = None  # measured once, whatever the engine is built at later

    def open(self, loop: ServingLoop, kv_tokens: int) -> None:
        """Take the memory, and measure what has not been measured yet. Ranks run this each by itself."""
        self.warnings = ()
        wanted = wanted_bytes(self._model, kv_tokens, 1 if self._ranks is None else self._ranks.size)
        if not wanted:
            return
        try:
            self._memory = HostMemory(wanted, self._model.runner.shape.device, self._largest_row_bytes)
            if self.rates is None:
                self.rates = self._measured(self._memory, loop)
        except (DeviceError, OSError, torch.OutOfMemoryError) as error:
            self.close()
            self.warnings = (
                f"preempted requests are recomputed: no {format_bytes(wanted)} of host memory for them ({error})",
            )

    def connect(self, loop: ServingLoop) -> None:
        """Let the loop use what was opened, if every rank has it."""
        total = 0 if self._memory is None or self.rates is None else self._memory.bytes
        if self._ranks is not None:
            total = self._ranks.least(total)
        if not total:
            self.close()
            return
        assert self.rates is not None
        self.rates = self._agreed(self.rates)
        self._model.runner.host_memory = self._memory
        loop.scheduler.keep_preempted(HostCopies(HostRoom(total), copy_sizes(self._model), self.rates))

    def close(self) -> None:
        """Give it back to the host."""
        self._model.runner.host_memory = None
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def _measured(self, memory: HostMemory, loop: ServingLoop) -> PreemptionRates:
        tokens = prefill_rate(self._model.runner, loop.scheduler.ledger, self._model.max_length)
        return PreemptionRates(*memory.rates(), tokens)

    def _agreed(self, mine: PreemptionRates) -> PreemptionRates:
        """The rates of rank 0: all ranks must choose alike."""
        if self._ranks is None:
            return mine
        same = self._ranks.from_first
        return PreemptionRates(same(mine.out_bytes), same(mine.back_bytes), same(mine.prefill_tokens))

    @property
    def _largest_row_bytes(self) -> int:
        """A block of one layer, its keys or its values."""
        elements = [one.kv_heads * max(one.key_dim, one.value_dim) for one in self._model.runner.geometry]
        return max(elements, default=0) * self._model.settings.block_size * self._model.sizes.element_bytes


def wanted_bytes(model: ServingModel, kv_tokens: int, ranks: int) -> int:
    """As set; by default no more than is useful: what the pool holds, and nothing where nobody is preempted."""
    settings: EngineSettings = model.settings
    if settings.host_memory is not None:
        return settings.host_memory
    if settings.admission == "worst":
        return 0
    useful = model.sizes.kv_bytes(kv_tokens) + model.sizes.state_bytes
    return min(MOST_BYTES, useful, available_host_bytes() // AVAILABLE_PART // ranks)


def copy_sizes(model: ServingModel) -> HostSizes:
    """What a preempted request takes."""
    block_bytes = [
        group.elements_per_token * model.settings.block_size * model.sizes.element_bytes for group in model.sizes.groups
    ]
    return HostSizes(tuple(block_bytes), state_bytes(model.runner.state_sizes))

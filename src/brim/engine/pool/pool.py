"""The pool that an engine serves from: everything that has a KV size, present or absent as a whole.

In: a model without a pool (`ServingModel`), and KV tokens. Out: `EnginePool`: the loop that serves, what rescues it,
and how its steps are counted. Knows nothing of prompts and answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from brim.engine.drafts.weighing import FittedLimit
from brim.engine.loop import ServingLoop
from brim.engine.model import ServingModel
from brim.engine.pool.bounded import BoundedRunner
from brim.engine.pool.build import build_loop, free, rescue_for
from brim.engine.pool.preempted import PreemptedMemory
from brim.engine.rescue import Rescue
from brim.engine.stress.worst_steps import WorstSteps
from brim.ports import CanaryProbe
from brim.progress import showing
from brim.records.progress import Progress
from brim.records.scaling import ScalingReport

if TYPE_CHECKING:
    from brim.engine.ranks.ranks import Ranks
    from brim.probes.proven import ProvenBound

OnDevice = Callable[[], AbstractContextManager[None]]  # translates errors of the device, and counts what is allocated


class EnginePool:
    """A pool of so many KV tokens, and what serves from it."""

    def __init__(self, model: ServingModel, kv_tokens: int, loop: ServingLoop) -> None:
        self.kv_tokens = kv_tokens
        self.loop = loop
        self.rescue: Rescue | None = rescue_for(model, loop, kv_tokens) if model.rescues else None
        self._model = model
        self._bound: ProvenBound | None = None  # None: a probe that counts does so in every step

    @property
    def idle(self) -> bool:
        return self.loop.idle and not (self.rescue is not None and self.rescue.under_way)

    def advance(self) -> bool:
        """Launch one step and read one back, or run a part of a step that failed; whether anything was launched."""
        steps = self.loop.figures.steps
        (self.rescue or self.loop).advance()
        return self.loop.figures.steps > steps

    def watch(self, probe: CanaryProbe) -> None:
        """Let rescues spend this probe's canary and check memory with it. Nothing is in flight."""
        if self.rescue is not None:
            self.rescue.watch(probe)

    def serve_within(self, bound: ProvenBound) -> None:
        """Serve within what a fit has proven: a probe counts the steps of rescues, and no others."""
        self._bound = bound
        self.loop.runner = BoundedRunner(self.loop.runner, bound)

    def weigh_by(self, report: ScalingReport | None) -> None:
        """Let the gate of speculation weigh batches by the laws of a fit, or by their blocks alone."""
        speculator, model = self.loop.speculator, self._model
        if speculator is not None:
            limit = None
            if report is not None:
                step_tokens = model.settings.max_batch_tokens
                limit = FittedLimit(report.scaling, report.limit_bytes, model.sizes.kv_bytes, step_tokens)
            speculator.weigh_by(limit)

    @contextmanager
    def counted(self, counting: OnDevice, uncounted: OnDevice) -> Iterator[None]:
        """Around a step: counted where no fit has proven that it fits, and where one did not."""
        if self._bound is not None and (self.rescue is None or self.rescue.calm):
            with uncounted():
                yield
            return
        with counting():
            if self._bound is not None:
                self._bound.probe.note(self._model.runner.kept_tensors)  # by steps that were not counted
            yield


class PoolBuilder:
    """Builds the pools of an engine, one at a time."""

    def __init__(self, model: ServingModel, worst_steps: WorstSteps, ranks: Ranks | None) -> None:
        self.preempted = PreemptedMemory(model, ranks)
        self._model = model
        self._worst_steps = worst_steps
        self._ranks = ranks

    def build(self, kv_tokens: int, on_device: OnDevice, progress: Progress) -> EnginePool:
        """Make a pool and everything else that serving holds, and run a step of every kind once."""
        model = self._model
        try:
            kv_tokens = kv_tokens if self._ranks is None else self._ranks.least(kv_tokens)
            with model.each_rank_by_itself("build"), on_device(), showing(progress) as told:
                loop = build_loop(model, kv_tokens, told)
                ledger = loop.scheduler.ledger
                if model.runner.shape.device.type == "cuda":  # elsewhere nothing is compiled or loaded
                    self._worst_steps.warm_up(ledger, told)
                self._worst_steps.rehearse(ledger)
                self.preempted.open(loop, kv_tokens)
            self.preempted.connect(loop)
        except BaseException:
            self.free()  # what was half made must not stay
            raise
        return EnginePool(model, kv_tokens, loop)

    def free(self) -> None:
        """Give all of that back to the device."""
        self.preempted.close()
        free(self._model)

"""Brim's serving loop under the driver of rescues (`brim.guard.driver`).

In: a loop, its runner and what rebuilds the pool. Out: a `Rescue`, which advances the loop whatever runs out of memory
in its steps. The loop abandons a failed step by itself, so that an error of any kind leaves every request as it was:
`undo` says what the step was to compute.

The audit sees the requests, slots and blocks, and of the host's memory what a step could leave there: the request of
features that were kept, with its prompt and its pixels. Results on their way to the host go with their step, and steps
are sent from a fixed number of buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, cast

from brim.engine.kv.ledger import KvLedger
from brim.engine.loop import ServingLoop
from brim.engine.ranks.agreement import EngineAgreement, WholeEngine, each_rank_by_itself
from brim.engine.schedule.audit import scheduler_problems
from brim.engine.schedule.plan import NO_DRAFT, StepBounds, StepPlan
from brim.guard.driver import RescueDriver
from brim.guard.rescue import RescuePolicy
from brim.probes.translate import translated
from brim.records.fit import CUDA_WORKSPACE_BYTES
from brim.records.rescue import LaunchBounds, RequestKey, RequestProgress, Work

if TYPE_CHECKING:
    from brim.engine.run.runner import Runner

_Key = tuple[str, int]  # a request's id, and which of its answers


class Rescue(RescueDriver):
    """Advances a loop, whatever runs out of memory in its steps."""

    def __init__(
        self,
        loop: ServingLoop,
        runner: Runner,
        rebuild: Callable[[], KvLedger],
        policy: RescuePolicy,
        ranks: EngineAgreement | None = None,
    ) -> None:
        ranks = ranks or WholeEngine()
        rescued = RescuedLoop(loop, runner, rebuild, ranks)
        super().__init__(rescued, policy, audited=rescued, graphs=rescued, ranks=ranks)


class RescuedLoop:
    """A loop and its runner as the driver sees them."""

    def __init__(
        self, loop: ServingLoop, runner: Runner, rebuild: Callable[[], KvLedger], ranks: EngineAgreement
    ) -> None:
        self._loop = loop
        self._runner = runner
        self._rebuild = rebuild  # everything that holds KV, at the same size
        self._ranks = ranks

    # -- steps ---------------------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        return self._loop.figures.steps

    def launch(self, bounds: LaunchBounds) -> None:
        only = cast("frozenset[_Key] | None", bounds.only)
        with translated():
            self._loop.advance(StepBounds(bounds.tokens, only, bounds.calm))

    def undo(self) -> tuple[Work, ...]:
        """As they would be planned again: a failed step puts some of its requests back into the queue."""
        failed = self._loop.failed
        if failed is None:
            return ()
        work = _work(failed)
        return tuple(work[one.request] for one in self.progress(work))

    def end(self, request: RequestKey, error: str) -> None:
        sequence = self._loop.scheduler.find(cast("_Key", request))
        assert sequence is not None, "it is ended by the step in which it failed"
        self._loop.end(sequence, error)

    def progress(self, requests: Collection[RequestKey]) -> tuple[RequestProgress, ...]:
        scheduler = self._loop.scheduler
        if not requests:
            return ()
        return tuple(
            RequestProgress(one.request.key, scheduler.begins_at(one), one.length, running=one.slot is not None)
            for one in (*scheduler.running, *scheduler.waiting)
            if one.request.key in requests
        )

    # -- the audit -----------------------------------------------------------------------------------------------

    @property
    def kept_bytes(self) -> int:
        return self._runner.kept_bytes

    @property
    def library_bytes(self) -> int:
        return CUDA_WORKSPACE_BYTES if self._runner.shape.device.type == "cuda" else 0

    def read_back(self) -> None:
        with translated():
            self._loop.read_all()

    def problems(self) -> list[str]:
        scheduler = self._loop.scheduler
        return scheduler_problems(scheduler) + self._runner.host_problems(scheduler.running)

    def rebuild(self) -> None:
        with translated():
            self._loop.start_over(self._rebuild)

    # -- graphs --------------------------------------------------------------------------------------------------

    @property
    def graphs_failed(self) -> bool:
        return self._runner.graphs_failed

    @property
    def graphs_dropped(self) -> bool:
        return self._runner.graphs_dropped

    def drop_graphs(self) -> None:
        self._runner.drop_graphs()

    def capture_graphs(self) -> None:
        with each_rank_by_itself(self._ranks, self._runner.alone, "the capture of graphs"), translated():
            self._runner.capture_again()


def _work(plan: StepPlan) -> dict[RequestKey, Work]:
    """What a step was to compute, by request."""
    drafts = plan.drafts or (NO_DRAFT,) * len(plan.decodes)
    decodes = [
        Work(one.request.key, draft.rows, length - 1)
        for one, length, draft in zip(plan.decodes, plan.lengths, drafts, strict=True)
    ]
    chunks = [Work(chunk.sequence.request.key, chunk.length, chunk.start) for chunk in plan.chunks]
    return {work.request: work for work in (*decodes, *chunks)}

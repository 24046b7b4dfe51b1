"""A step that runs out of memory is run again in parts, and costs one request at most.

In: a serving loop. Out: the same loop, advanced; an out-of-memory of a step ends here. The canary is lent to the steps
that follow, what was launched before is read, and the failed step is run again in the parts that `guard.rescue` names,
each until its requests are past the place where they stood (`catch_up`). One step for each call, so that requests may
come and be cancelled in between. A request that cannot run alone ends with an error. Then an audit, and the canary is
held again. An audit that fails, and a launched step that cannot be read, are answered by a pool that is rebuilt:
every request is recomputed. Where that pool is refused, each call tries again, for a few seconds.

Parts are only advice to the scheduler. A request that is in none of them, because it was cancelled, preempted or
submitted meanwhile, is served as ever afterwards; so an interrupt at any point here loses nothing.

With several ranks, a step that fails on one has failed on all when it comes here (`ranks.failed_rank`), and everything
that is seen on one rank only is agreed on before anybody acts on it: an audit that failed, graphs whose replay did, a
canary that cannot be held. All else follows from these in the same way on all ranks. A launched step that cannot be
read is the one thing that stays an error there: reading takes no memory of the device, and the others have read it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from brim.engine.audit import MemoryAtRest, audit
from brim.engine.catch_up import CatchUp
from brim.engine.kv.ledger import KvLedger
from brim.engine.loop import ServingLoop
from brim.engine.ranks.agreement import Agreement, OneRank, each_rank_by_itself
from brim.engine.schedule.plan import NO_DRAFT, StepBounds, StepPlan
from brim.errors import OutOfMemory
from brim.guard.rescue import (
    CHUNK_FLOOR_TOKENS,
    Condition,
    RescuePolicy,
    RetryPart,
    Work,
    after_rebuild,
    after_rescue,
    after_step,
    health,
    smaller_parts,
)
from brim.ports import CanaryProbe
from brim.probes.translate import translated
from brim.records.health import Health
from brim.units import format_bytes

if TYPE_CHECKING:
    from brim.engine.requests.sequence import Sequence
    from brim.engine.run.runner import Runner

_FRUITLESS = 3  # rescues in a row in which nothing ran and nobody ended: more of them will not help
_READS = 3  # of a launched step, before it is given up
_REBUILDS = 20  # attempts in a row to rebuild the pool
_PAUSE_SECONDS = 0.25  # between them: another process may hold the memory for a moment only
_CANARY_STEPS = 64  # between attempts to hold it again
_SHOWN = 3  # problems of an audit


class Rescue:
    """Advances a loop, whatever runs out of memory in its steps."""

    def __init__(
        self,
        loop: ServingLoop,
        runner: Runner,
        rebuild: Callable[[], KvLedger],
        policy: RescuePolicy,
        ranks: Agreement | None = None,
    ) -> None:
        self._loop = loop
        self._runner = runner
        self._rebuild = rebuild  # everything that holds KV, at the same size
        self._policy = policy
        self._ranks = ranks or OneRank()
        self._condition = Condition(policy.usual_tokens)
        self._parts: deque[RetryPart] | None = None  # to run in place of a failed step; None: no rescue is under way
        self._catch_up = CatchUp(loop.scheduler)  # of this rescue
        self._ended = 0  # requests, in this rescue
        self._failed_reads = 0  # in a row
        self._rebuild_reason = ""  # why the pool must be rebuilt before anything is served from it
        self._failed_rebuilds = 0  # in a row
        self._fruitless = 0  # rescues in a row
        self._steps_before = -1  # of the loop, when the last rescue began
        self._probe: CanaryProbe | None = None
        self._rest: MemoryAtRest | None = None
        self._lent_bytes = 0  # of the canary, on the rank that lent the most
        self._next_attempt = 0  # to hold the canary again: at this step

    @property
    def under_way(self) -> bool:
        return self._parts is not None

    @property
    def calm(self) -> bool:
        """No step has run out of memory for a while, and nothing that rescues took is missing."""
        return self._parts is None and self._condition.calm and not self._lent_bytes

    @property
    def health(self) -> Health:
        return health(self._policy, self._condition, canary_held=not self._lent_bytes)

    def watch(self, probe: CanaryProbe) -> None:
        """Spend this probe's canary, and check memory with it. Nothing is in flight."""
        self._probe = probe
        probe.lend_canary()
        self._rest = MemoryAtRest.now(probe, self._runner)
        probe.take_canary_back()

    def advance(self) -> None:
        """Launch one step and read one back, or run a part of a step that failed."""
        if self._rebuild_reason:
            self._start_over()
        if self._rebuild_reason:
            time.sleep(_PAUSE_SECONDS)  # requests may be cancelled before the next attempt
        elif self._parts is None:
            self._serve()
        else:
            self._run_part(self._parts)

    # -- serving -------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            with translated():
                self._loop.advance(StepBounds(self._condition.step_tokens, calm=self._condition.calm))
        except OutOfMemory as error:
            self._begin(error)
        else:
            if self._lent_bytes or not self._condition.calm:
                self._restore()

    def _restore(self) -> None:
        """A while without rescues brings back what they took: the limit of a step, graphs, the canary."""
        before, step = self._condition, self._loop.figures.steps
        self._condition = after_step(self._policy, before, step)
        if self._condition is not before and self._condition.calm:
            self._capture_again()
        if self._lent_bytes and step >= self._next_attempt:
            self._hold_canary()

    def _capture_again(self) -> None:
        """Graphs again, on all ranks or on none: a graph has rows of padding that other steps have not."""
        if not self._runner.graphs_dropped:
            return
        try:
            with translated():
                self._loop.read_all()
        except OutOfMemory as error:
            self._raise_if_alone(error)
            return  # steps run without graphs until the next rescue has been forgotten
        try:
            with each_rank_by_itself(self._ranks, self._runner.alone, "the capture of graphs"), translated():
                self._runner.capture_again()
        except OutOfMemory:
            self._runner.drop_graphs()  # also where they were captured

    # -- a rescue ------------------------------------------------------------------------------------------------

    def _begin(self, error: OutOfMemory) -> None:
        self._raise_if_alone(error)
        steps = self._loop.figures.steps
        self._fruitless = self._fruitless + 1 if steps == self._steps_before else 0
        self._steps_before = steps
        if self._fruitless == _FRUITLESS:
            self._fruitless = 0
            raise error
        self._parts, self._ended, self._failed_reads = deque(), 0, 0
        self._catch_up = CatchUp(self._loop.scheduler)
        self._make_room()
        if self._loop.failed is not None:
            self._split(self._parts, self._loop.failed, None, error)

    def _raise_if_alone(self, error: OutOfMemory) -> None:
        """What no launch raised is not known to the other ranks."""
        if self._ranks.size > 1 and self._loop.failed is None:
            raise error

    def _make_room(self) -> None:
        """What the failed step held has been freed with it; the canary is added. Both stay with this process.

        The allocator's cache is not emptied: torch has done so before it raised, and other processes would take more.
        """
        if not self._ranks.all(not self._runner.graphs_failed):
            self._runner.drop_graphs()
        self._lent_bytes = self._ranks.most(0 if self._probe is None else self._probe.lend_canary())

    def _run_part(self, parts: deque[RetryPart]) -> None:
        loop = self._loop
        steps = loop.figures.steps
        try:
            with translated():
                loop.read_all()
                self._failed_reads = 0
                for _ in range(2):  # tokens that must be computed together are planned the second time
                    self._forget_done(parts)
                    if parts and loop.figures.steps == steps:
                        loop.advance(self._catch_up.bounds(parts[0], self._step_tokens))
        except OutOfMemory as error:
            self._raise_if_alone(error)
            self._make_room()
            self._failed_again(parts, error)
        else:
            if parts and loop.figures.steps == steps:
                parts.popleft()  # nothing of it can run before others have: it is served with them
            self._forget_done(parts)
            if not parts:
                self._finish()

    @property
    def _step_tokens(self) -> int:
        """Of a part: a limit that rescues have lowered does not make the way back longer than the floor does."""
        return max(self._condition.step_tokens, min(CHUNK_FLOOR_TOKENS, self._policy.usual_tokens))

    def _forget_done(self, parts: deque[RetryPart]) -> None:
        while parts and not self._catch_up.behind(parts[0]):
            parts.popleft()

    def _failed_again(self, parts: deque[RetryPart], error: OutOfMemory) -> None:
        failed = self._loop.failed
        if failed is not None:
            self._split(parts, failed, parts.popleft(), error)
            return
        self._failed_reads += 1
        if self._failed_reads == _READS:
            self._rebuild_reason = "a launched step could not be read"
            self._start_over()
            parts.clear()

    def _split(self, parts: deque[RetryPart], failed: StepPlan, part: RetryPart | None, error: OutOfMemory) -> None:
        sequences = self._in_order(failed)
        work = _work(failed)
        self._catch_up.expect(sequences, work)
        smaller = smaller_parts(
            tuple(self._catch_up.with_history(work[sequence.request.key]) for sequence in sequences), part
        )
        parts.extendleft(reversed(smaller))
        if not smaller:
            (alone,) = sequences
            self._end(alone, work[alone.request.key].tokens, error)

    def _in_order(self, failed: StepPlan) -> list[Sequence]:
        """As they would be planned again: a failed step puts some of its requests back into the queue."""
        scheduler = self._loop.scheduler
        touched = {sequence.request.key for sequence in failed.sequences}
        return [one for one in (*scheduler.running, *scheduler.waiting) if one.request.key in touched]

    def _end(self, sequence: Sequence, tokens: int, error: OutOfMemory) -> None:
        self._ended += 1
        self._steps_before = -1
        canary = f", with the canary of {format_bytes(self._lent_bytes)} released" if self._lent_bytes else ""
        share = f"{tokens} of the {sequence.length} tokens of this request"
        self._loop.end(sequence, f"{share} do not fit in a step even alone{canary}: {error}")

    # -- afterwards ----------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Trust again only what an audit has found consistent."""
        problems = audit(self._loop.scheduler, self._runner, self._probe, self._rest)
        more = f", and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        self._rebuild_reason = self._ranks.problem("; ".join(problems[:_SHOWN]) + more)
        if self._rebuild_reason:
            self._start_over()
        if self._rebuild_reason:
            return  # this rescue ends when the pool has been built
        step = self._loop.figures.steps
        self._condition = after_rescue(self._policy, self._condition, step, self._ended)
        self._parts = None
        self._hold_canary()

    def _start_over(self) -> None:
        """Rebuild the pool, at the same size; all requests are recomputed. Nothing is served before.

        Where the memory for it is refused, the doubt remains, and a later call tries again.
        """
        try:
            with translated():
                self._loop.start_over(self._rebuild)
        except OutOfMemory:
            self._failed_rebuilds += 1
            if self._failed_rebuilds < _REBUILDS:
                return
            self._failed_rebuilds = 0
            raise
        self._failed_rebuilds = 0
        self._condition, self._rebuild_reason = after_rebuild(self._condition, self._rebuild_reason), ""
        if self._probe is not None:
            self._rest = MemoryAtRest.now(self._probe, self._runner)

    def _hold_canary(self) -> None:
        """Where one rank cannot, the others keep theirs and all try again later."""
        if self._ranks.all(self._holds_canary()):
            self._lent_bytes = 0
        else:
            self._next_attempt = self._loop.figures.steps + _CANARY_STEPS

    def _holds_canary(self) -> bool:
        try:
            if self._probe is not None:
                self._probe.take_canary_back()
        except OutOfMemory:
            return False
        return True


def _work(plan: StepPlan) -> dict[tuple[str, int], Work]:
    """What a step was to compute, by request."""
    drafts = plan.drafts or (NO_DRAFT,) * len(plan.decodes)
    decodes = [
        Work(one.request.key, draft.rows, length - 1)
        for one, length, draft in zip(plan.decodes, plan.lengths, drafts, strict=True)
    ]
    chunks = [Work(chunk.sequence.request.key, chunk.length, chunk.start) for chunk in plan.chunks]
    return {work.request: work for work in (*decodes, *chunks)}

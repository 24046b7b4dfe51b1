"""A step that runs out of memory is run again in parts, and costs one request at most: for any engine.

In: an engine that can `launch` a step, `undo` one that failed and `end` a request (`brim.ports.RescuableEngine`).
Out: the same engine, advanced; an out-of-memory of a step ends here. The canary is lent to the steps that follow, what
was launched before is read, and the failed step is run again in the parts that `guard.rescue` names, each until its
requests are past the place where they stood (`guard.catch_up`). One step for each call, so that requests may come and
be cancelled in between. A request that cannot run alone ends with an error. Then an audit, and the canary is held
again. An audit that fails, and a launched step that cannot be read, are answered by a pool that is rebuilt: every
request is recomputed. Where that pool is refused, each call tries again, for a few seconds.

Parts are only advice to the engine's scheduler. A request that is in none of them, because it was cancelled, preempted
or submitted meanwhile, is served as ever afterwards; so an interrupt at any point here loses nothing.

With several ranks, a step that fails on one must have failed on all when it comes here, and everything that is seen on
one rank only is agreed on before anybody acts on it: an audit that failed, graphs whose replay did, a canary that
cannot be held. All else follows from these in the same way on all ranks. A launched step that cannot be read is the one
thing that stays an error there: reading takes no memory of the device, and the others have read it.

Knows records and ports only: where a library has out-of-memory errors of its own, the engine translates them
(`brim.errors.OutOfMemory`; `brim.probes.translate` for torch's).
"""

from __future__ import annotations

import time
from dataclasses import replace

from brim.errors import OutOfMemory
from brim.guard.at_rest import MemoryAtRest
from brim.guard.rescue import (
    Condition,
    RescuePolicy,
    after_rebuild,
    after_rescue,
    after_step,
    cannot_run,
    health,
    way_back_tokens,
)
from brim.guard.states import (
    MOST_FRUITLESS,
    UNKNOWN_STEP,
    Canary,
    Fruitless,
    Rebuilding,
    RescueState,
    Retrying,
    Serving,
)
from brim.ports import Agreement, AuditedEngine, CanaryProbe, GraphedEngine, RescuableEngine
from brim.records.health import Health
from brim.records.rescue import LaunchBounds, Work
from brim.units import format_bytes

MOST_READS = 3  # of a launched step, before it is given up
MOST_REBUILDS = 20  # attempts in a row to rebuild the pool
PAUSE_SECONDS = 0.25  # between them: another process may hold the memory for a moment only
CANARY_STEPS = 64  # between attempts to hold it again
_SHOWN = 3  # problems of an audit


class OneRank:
    """An engine of one rank, which agrees with itself."""

    size = 1

    def most(self, number: int) -> int:
        return number

    def all(self, condition: bool) -> bool:
        return condition

    def problem(self, mine: str) -> str:
        return mine


class RescueDriver:
    """Advances an engine, whatever runs out of memory in its steps.

    Without `audited`, nothing is checked after a rescue and nothing can be rebuilt; without `graphs` there are none.
    """

    def __init__(
        self,
        engine: RescuableEngine,
        policy: RescuePolicy,
        *,
        audited: AuditedEngine | None = None,
        graphs: GraphedEngine | None = None,
        ranks: Agreement | None = None,
    ) -> None:
        self._engine = engine
        self._policy = policy
        self._audited = audited
        self._graphs = graphs
        self._ranks = ranks or OneRank()
        self._probe: CanaryProbe | None = None
        self._rest: MemoryAtRest | None = None
        self._state: RescueState = Serving()
        self._condition = Condition(policy.usual_tokens)
        self._canary = Canary()
        self._fruitless = Fruitless()

    @property
    def under_way(self) -> bool:
        return not isinstance(self._state, Serving)

    @property
    def calm(self) -> bool:
        """No step has run out of memory for a while, and nothing that rescues took is missing."""
        return not self.under_way and self._condition.calm and not self._canary.lent_bytes

    @property
    def health(self) -> Health:
        return health(self._policy, self._condition, canary_held=not self._canary.lent_bytes)

    def watch(self, probe: CanaryProbe) -> None:
        """Spend this probe's canary, and check memory with it. Nothing is in flight."""
        self._probe = probe
        probe.lend_canary()
        self._note_rest()
        probe.take_canary_back()

    def _note_rest(self) -> None:
        if self._probe is not None and self._audited is not None:
            self._rest = MemoryAtRest.now(self._probe, self._audited)

    def advance(self) -> None:
        """Launch one step, or run a part of a step that failed."""
        if isinstance(self._state, Rebuilding):
            self._rebuild(self._state)
        match self._state:
            case Serving():
                self._serve()
            case Retrying() as retrying:
                self._run_part(retrying)
            case Rebuilding():
                time.sleep(PAUSE_SECONDS)  # requests may be cancelled before the next attempt

    # -- serving -------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            self._engine.launch(LaunchBounds(self._condition.step_tokens, calm=self._condition.calm))
        except OutOfMemory as error:
            self._begin(error)
        else:
            if self._canary.lent_bytes or not self._condition.calm:
                self._restore()

    def _restore(self) -> None:
        """A while without rescues brings back what they took: the limit of a step, graphs, the canary."""
        before, step = self._condition, self._engine.steps
        self._condition = after_step(self._policy, before, step)
        if self._condition is not before and self._condition.calm:
            self._capture_again()
        if self._canary.lent_bytes and step >= self._canary.next_attempt:
            self._hold_canary()

    def _capture_again(self) -> None:
        """Graphs again, on all ranks or on none: a graph has rows of padding that other steps have not."""
        if self._graphs is None or not self._graphs.graphs_dropped:
            return
        try:
            self._read_back()
        except OutOfMemory as error:
            self._raise_if_alone(error, self._engine.undo())
            return  # steps run without graphs until the next rescue has been forgotten
        try:
            self._graphs.capture_graphs()
        except OutOfMemory:
            self._graphs.drop_graphs()  # also where they were captured

    def _read_back(self) -> None:
        if self._audited is not None:
            self._audited.read_back()

    # -- a rescue ------------------------------------------------------------------------------------------------

    def _begin(self, error: OutOfMemory) -> None:
        failed = self._engine.undo()
        self._raise_if_alone(error, failed)
        self._fruitless = self._fruitless.another(self._engine.steps)
        if self._fruitless.rescues == MOST_FRUITLESS:
            self._fruitless = replace(self._fruitless, rescues=0)
            raise error
        self._state = Retrying()
        self._make_room()
        if failed:
            self._split(Retrying(), failed, error)

    def _raise_if_alone(self, error: OutOfMemory, failed: tuple[Work, ...]) -> None:
        """What no launch raised is not known to the other ranks."""
        if self._ranks.size > 1 and not failed:
            raise error

    def _make_room(self) -> None:
        """What the failed step held has been freed with it; the canary is added. Both stay with this process.

        The allocator's cache is not emptied: torch has done so before it raised, and other processes would take more.
        """
        if self._graphs is not None and not self._ranks.all(not self._graphs.graphs_failed):
            self._graphs.drop_graphs()
        lent = self._ranks.most(0 if self._probe is None else self._probe.lend_canary())
        self._canary = replace(self._canary, lent_bytes=lent)

    def _run_part(self, state: Retrying) -> None:
        """One step of the first part. Tokens that must be computed together are planned by a second launch."""
        engine, steps = self._engine, self._engine.steps
        counted = replace(state, failed_reads=state.failed_reads + 1)  # if what follows raises
        try:
            self._read_back()
            state = self._state = self._without_done(replace(state, failed_reads=0))
            for _ in range(2):
                if state.parts and engine.steps == steps:
                    counted = replace(state, failed_plans=state.failed_plans + 1)
                    engine.launch(self._bounds(state))
                    state = self._state = self._without_done(replace(state, failed_plans=0))
        except OutOfMemory as error:
            failed = engine.undo()
            self._raise_if_alone(error, failed)
            self._make_room()
            if engine.steps > steps:  # launched, and not read
                counted = replace(state, failed_reads=1, failed_plans=0)
            self._failed_again(counted, failed, error)
            return
        if state.parts and engine.steps == steps:  # nothing of it can run before others have: it is served with them
            state = self._state = self._without_done(replace(state, parts=state.parts[1:]))
        if not state.parts:
            self._finish(state)

    def _bounds(self, state: Retrying) -> LaunchBounds:
        usual = way_back_tokens(self._policy, self._condition)
        return state.bounds(self._engine.progress(state.catch_up.places), usual)

    def _without_done(self, state: Retrying) -> Retrying:
        return state.without_done(self._engine.progress(state.catch_up.places))

    def _failed_again(self, state: Retrying, failed: tuple[Work, ...], error: OutOfMemory) -> None:
        if failed:
            self._split(state, failed, error)
        elif max(state.failed_reads, state.failed_plans) < MOST_READS:
            self._state = state
        elif self._audited is None:
            self._state = Serving()
            raise error
        else:
            what = "a launched step could not be read" if state.failed_reads else "no step could be planned"
            self._rebuild(Rebuilding(what, state.ended))

    def _split(self, state: Retrying, failed: tuple[Work, ...], error: OutOfMemory) -> None:
        progress = self._engine.progress([work.request for work in failed])
        self._state, runs = state.after_failure(failed, progress)
        if not runs:
            (alone,), (at,) = failed, progress
            self._fruitless = replace(self._fruitless, began_at=UNKNOWN_STEP)
            lent = self._canary.lent_bytes
            canary = f", with the canary of {format_bytes(lent)} released" if lent else ""
            self._engine.end(alone.request, cannot_run(alone, at.length, f"{canary}: {error}"))

    # -- afterwards ----------------------------------------------------------------------------------------------

    def _finish(self, state: Retrying) -> None:
        """Trust again only what an audit has found consistent."""
        reason = self._ranks.problem(self._audit())
        if reason:
            self._rebuild(Rebuilding(reason, state.ended))
        if isinstance(self._state, Rebuilding):
            return  # this rescue ends when the pool has been built
        self._condition = after_rescue(self._policy, self._condition, self._engine.steps, state.ended)
        self._state = Serving()
        self._hold_canary()

    def _audit(self) -> str:
        """Everything that is wrong, in words. Memory of the device is checked where there is a probe."""
        if self._audited is None:
            return ""
        found = self._audited.problems()
        if self._probe is not None and self._rest is not None:
            found = found + self._rest.problems(self._probe, self._audited)
        more = f", and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        return "; ".join(found[:_SHOWN]) + more

    def _rebuild(self, state: Rebuilding) -> None:
        """The pool again, at the same size; all requests are recomputed. Nothing is served before.

        Where the memory for it is refused, a later call tries again.
        """
        assert self._audited is not None, "only an audit finds a reason"
        self._state = state
        try:
            self._audited.rebuild()
        except OutOfMemory:
            if state.attempts + 1 == MOST_REBUILDS:
                self._state = replace(state, attempts=0)
                raise
            self._state = replace(state, attempts=state.attempts + 1)
            return
        self._state = Retrying(ended=state.ended)
        self._condition = after_rebuild(self._condition, state.reason)
        self._note_rest()

    def _hold_canary(self) -> None:
        """Where one rank cannot, the others keep theirs and all try again later."""
        held = self._ranks.all(self._holds_canary())
        self._canary = Canary() if held else replace(self._canary, next_attempt=self._engine.steps + CANARY_STEPS)

    def _holds_canary(self) -> bool:
        try:
            if self._probe is not None:
                self._probe.take_canary_back()
        except OutOfMemory:
            return False
        return True

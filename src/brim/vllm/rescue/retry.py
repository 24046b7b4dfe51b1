"""What to run after a step failed inside vLLM: the decisions of `brim.guard`, for an engine that is not driven.

In: which steps ran and which failed, in the order in which vLLM's core reads them, and how far requests are. Out: the
bounds of the next step, and which request ends. `brim.guard.driver.RescueDriver` cannot drive vLLM: it launches a step
and hears at once that there was no memory, but here the core asks the scheduler for a step, runs it in another process
and returns later with what came of it. States, parts, limits and their restoration are the driver's own.

vLLM has no way to audit the worker's records, to rebuild the pool or to capture graphs again while it serves: these are
left out. Where the driver would give up, because nothing of some rescues in a row could run, the request with the most
tokens ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from brim.guard.catch_up import Progress
from brim.guard.rescue import Condition, RescuePolicy, after_rescue, after_step, cannot_run, way_back_tokens
from brim.guard.states import MOST_FRUITLESS, UNKNOWN_STEP, Fruitless, Retrying, Serving
from brim.records.rescue import LaunchBounds, RequestKey, Work

ProgressOf = Callable[[Collection[RequestKey]], Progress]


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """A request that cannot run, and why."""

    request: RequestKey
    words: str


class StepRetry:
    """Time is counted in steps that ran."""

    def __init__(self, policy: RescuePolicy) -> None:
        self.policy = policy
        self.condition = Condition(policy.usual_tokens)
        self._state: Serving | Retrying = Serving()
        self._steps = 0
        self._fruitless = Fruitless()

    @property
    def under_way(self) -> bool:
        return isinstance(self._state, Retrying)

    def bounds(self, progress: ProgressOf) -> LaunchBounds:
        """Of the next step. During a rescue no other is in flight."""
        self.settle(progress)
        if isinstance(self._state, Retrying):
            usual = way_back_tokens(self.policy, self.condition)
            return self._state.bounds(progress(self._state.catch_up.places), usual)
        return LaunchBounds(self.condition.step_tokens, calm=self.condition.calm)

    def nothing_ran(self) -> None:
        """Nothing of the first part can run before others have: it is served with them."""
        assert isinstance(self._state, Retrying), "a part is of a rescue"
        self._state = replace(self._state, parts=self._state.parts[1:])

    def ran(self, progress: ProgressOf) -> None:
        """A step has run."""
        self._steps += 1
        if isinstance(self._state, Serving):
            self.condition = after_step(self.policy, self.condition, self._steps)
        self.settle(progress)

    def settle(self, progress: ProgressOf) -> None:
        """A rescue whose parts are done is over."""
        if not isinstance(self._state, Retrying):
            return
        self._state = self._state.without_done(progress(self._state.catch_up.places))
        if not self._state.parts:
            self.condition = after_rescue(self.policy, self.condition, self._steps, self._state.ended)
            self._state = Serving()

    def failed(self, failed: tuple[Work, ...], progress: ProgressOf, reason: str) -> EndedRequest | None:
        """A step ran out of memory; its requests are back where they were. Those that are gone are not in `failed`."""
        before = self._state
        if isinstance(before, Serving):
            self._fruitless = self._fruitless.another(self._steps)
            before = Retrying()
        self._state = before
        if not failed:
            return None
        now = progress([work.request for work in failed])
        if self._fruitless.rescues == MOST_FRUITLESS:
            return self._given_up(before, max(failed, key=lambda work: work.tokens), now, reason)
        self._state, runs = before.after_failure(failed, now)
        if runs:
            return None
        (alone,) = failed
        return self._ending(alone, now, reason)

    def _given_up(self, before: Retrying, largest: Work, now: Progress, reason: str) -> EndedRequest:
        self._state = replace(before, ended=before.ended + 1)
        return self._ending(largest, now, reason)

    def _ending(self, work: Work, now: Progress, reason: str) -> EndedRequest:
        self._fruitless = Fruitless(began_at=UNKNOWN_STEP)
        length = next(one.length for one in now if one.request == work.request)
        return EndedRequest(work.request, cannot_run(work, length, f": {reason}"))

"""Whether an engine can be rescued: what the driver relies on, checked with a load that is disturbed in every step.

In: a `RescueLoad` (an engine, and requests that can be submitted to it again and again), and a `RefusingProbe` of its
device. Out: nothing, or `NotConforming` for the first thing that is wrong. The load is run once undisturbed; then each
of its allocations (or as many as `refusals`) is refused once, and every answer must be as before.
"""

from __future__ import annotations

import gc
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from brim.errors import OutOfMemory
from brim.guard.driver import RescueDriver
from brim.guard.rescue import RescuePolicy
from brim.ports import AuditedEngine, RescuableEngine
from brim.records.health import Health
from brim.records.rescue import LaunchBounds, RequestKey, RequestProgress
from brim.testing.conformance import NotConforming, RefusingProbe, only_out_of_memory, spread
from brim.units import format_bytes

_MOST_STEPS = 10_000  # of a load


class RescueLoad(Protocol):
    """Requests that can be served from the beginning any number of times, on an engine that is built."""

    @property
    def engine(self) -> RescuableEngine: ...

    @property
    def requests(self) -> Collection[RequestKey]:
        """Their keys: two at least, of which the first two can run in one step."""
        ...

    def begin(self) -> None:
        """Cancel what is left of an earlier run, and submit all requests."""
        ...

    def answers(self) -> Mapping[RequestKey, object]:
        """What has been answered, by request, with errors; compared between runs."""
        ...


def check_rescuable(
    load: RescueLoad,
    probe: RefusingProbe,
    *,
    step_tokens: int,
    audited: AuditedEngine | None = None,
    refusals: int = 64,
) -> None:
    """Serve the load with each of its allocations refused; `step_tokens` is the usual limit of a step."""
    checks = _RescuableChecks(load, probe, step_tokens, audited, refusals)
    try:
        checks.bounds_are_kept()
        checks.undo_puts_back()
        checks.end_frees()
        checks.refusals_change_nothing()
        checks.one_request_ends()
    finally:
        probe.fail_at = None
        load.begin()


@dataclass(frozen=True, slots=True)
class _RescuableChecks:
    load: RescueLoad
    probe: RefusingProbe
    step_tokens: int
    audited: AuditedEngine | None
    refusals: int

    @property
    def engine(self) -> RescuableEngine:
        return self.load.engine

    def bounds_are_kept(self) -> None:
        """A step of one request only, and of a few tokens, computes no others."""
        self.load.begin()
        chosen, *others = self.load.requests
        before, steps = self._progress(), self.engine.steps
        hidden = [request for request in self.load.requests if request not in before]
        if hidden:
            raise NotConforming("progress", f"{hidden[0]!r} was submitted, and neither waits nor runs")
        self.engine.launch(LaunchBounds(1, frozenset({chosen})))
        after = self._progress()
        if self.engine.steps != steps + 1:
            raise NotConforming("launch", f"one step was launched, and steps went from {steps} to {self.engine.steps}")
        moved = [other for other in others if other in after and after[other].computed > before[other].computed]
        if moved:
            raise NotConforming("launch", f"a step of {chosen!r} only has computed tokens of {moved[0]!r}")
        computed = after[chosen].computed - before[chosen].computed if chosen in after else 1
        if computed > 1:
            raise NotConforming("launch", f"a step of 1 token has computed {computed}")

    def undo_puts_back(self) -> None:
        """After a step that failed, its requests stand where they stood, and it says what it was to compute."""
        self.load.begin()
        before, held = self._progress(), self._allocated()
        self.probe.allocations, self.probe.fail_at = 0, 1
        try:
            with only_out_of_memory("launch"):
                self.engine.launch(LaunchBounds(self.step_tokens))
        except OutOfMemory:
            pass
        else:
            raise NotConforming("launch", "the first allocation of a step was refused, and nothing was raised")
        finally:
            self.probe.fail_at = None
        failed, after = self.engine.undo(), self._progress()
        if not failed:
            raise NotConforming("undo", "it does not say what the failed step was to compute")
        if len({work.request for work in failed}) != len(failed):
            raise NotConforming("undo", "it names a request twice")
        for work in failed:
            if work.request not in after:
                raise NotConforming("undo", f"{work.request!r} is gone after a step that failed")
            if after[work.request].computed > before[work.request].computed:
                raise NotConforming(
                    "undo",
                    f"{work.request!r} stands at {after[work.request].computed} tokens, and stood at "
                    f"{before[work.request].computed} before the step that failed",
                )
        self._check_left(held, "undo")
        self._check_consistent("undo")

    def end_frees(self) -> None:
        """A request that is ended is gone, and what it held is free."""
        self.load.begin()
        held = self._allocated()
        self.engine.launch(LaunchBounds(self.step_tokens))
        chosen = next(iter(self._progress()), None)
        if chosen is None:
            return  # all have ended in one step
        self.engine.end(chosen, "ended by a check")
        if chosen in self._progress():
            raise NotConforming("end", f"{chosen!r} was ended, and still waits or runs")
        self._check_consistent("end")
        self._serve()
        self._check_left(held, "end")

    def refusals_change_nothing(self) -> None:
        """Whichever allocation is refused once: one rescue, and the same answers."""
        self.load.begin()
        held = self._allocated()
        self.probe.allocations = 0
        self._serve()
        count, wanted = self.probe.allocations, dict(self.load.answers())
        for number in spread(count, self.refusals):
            self.load.begin()
            self.probe.allocations, self.probe.fail_at = 0, number
            health = self._serve()
            self.probe.fail_at = None
            if health.ended_requests or health.rebuilds:
                raise NotConforming("rescue", f"allocation {number} was refused once, and this was lost: {health}")
            if dict(self.load.answers()) != wanted:
                raise NotConforming("rescue", f"allocation {number} was refused once, and answers are not as before")
            self._check_left(held, f"a rescue after allocation {number} was refused")
            self._check_consistent("rescue")

    def one_request_ends(self) -> None:
        """Where nothing more can be allocated for a while, requests end with an error, and the engine lives on."""
        self.load.begin()
        driver, steps = self._driver(), 0
        while self._progress() and steps < _MOST_STEPS:
            self.probe.allocations, self.probe.fail_at = 0, 1
            try:
                driver.advance()
            except OutOfMemory:
                raise NotConforming("end", "requests that cannot run alone must end, and the step raised") from None
            steps += 1
        self.probe.fail_at = None
        if self._progress():
            raise NotConforming("end", f"{len(self._progress())} requests are left after {_MOST_STEPS} steps")
        self._check_consistent("end")

    # -- the load ------------------------------------------------------------------------------------------------

    def _driver(self) -> RescueDriver:
        policy = RescuePolicy(self.step_tokens, least_tokens=1)
        return RescueDriver(self.engine, policy, audited=self.audited)

    def _serve(self) -> Health:
        driver = self._driver()
        for _ in range(_MOST_STEPS):
            if not self._progress() and not driver.under_way:
                if self.audited is not None:
                    self.audited.read_back()  # a step that was launched before its requests had ended
                return driver.health
            with only_out_of_memory("launch"):
                driver.advance()
        raise NotConforming("launch", f"requests are left after {_MOST_STEPS} steps")

    def _progress(self) -> dict[RequestKey, RequestProgress]:
        return {one.request: one for one in self.engine.progress(self.load.requests)}

    def _allocated(self) -> int:
        kept = 0 if self.audited is None else self.audited.kept_bytes
        return self.probe.reading().allocated_bytes - kept

    def _check_left(self, held: int, what: str) -> None:
        if self._allocated() > held:
            gc.collect()  # garbage that is not collected yet is no leak
        left = self._allocated() - held
        if left > 0:
            raise NotConforming(what, f"{format_bytes(left)} were left behind")

    def _check_consistent(self, what: str) -> None:
        problems = [] if self.audited is None else self.audited.problems()
        if problems:
            raise NotConforming(what, f"the engine's own audit fails afterwards: {problems[0]}")

"""The serving loop, the one place where what happens feeds back into what is done.

Observe: read a launched step back. Decide: the scheduler plans, `guard` admits. Act: launch. By default the next step
is launched before the last one is read, so that the device never waits for Python; a request whose next token depends
on the text so far (penalties) is read back at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from brim.engine.requests.request import FinishReason
from brim.engine.requests.sequence import Sequence
from brim.engine.run.launched import Launched
from brim.engine.run.runner import Runner
from brim.engine.schedule.events import Event, TokenLogprobs
from brim.engine.schedule.plan import StepPlan
from brim.engine.schedule.scheduler import Scheduler


@dataclass(slots=True)
class LoopFigures:
    """What the loop has done so far."""

    steps: int = 0
    tokens: int = 0  # computed
    drawn: int = 0
    planning_seconds: float = 0.0
    launching_seconds: float = 0.0
    waiting_seconds: float = 0.0
    reading_seconds: float = 0.0
    largest_step: int = field(default=0)


class ServingLoop:
    """Runs steps until nothing is left to do."""

    def __init__(
        self, scheduler: Scheduler, runner: Runner, overlap: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.figures = LoopFigures()
        self._overlap = overlap
        self._clock = clock
        self._launched: Launched | None = None
        self._deadlines = False

    @property
    def idle(self) -> bool:
        return self.scheduler.idle and self._launched is None

    def submit(self, sequence: Sequence) -> None:
        self._deadlines = self._deadlines or sequence.request.deadline is not None
        self.scheduler.submit(sequence)

    def step(self) -> list[Event]:
        """Launch one step and read one back; what happened."""
        events = self._end_overdue() if self._deadlines else []
        started = time.perf_counter()
        plan = self.scheduler.plan()
        planned = time.perf_counter()
        launched = self._launch(plan) if plan else None
        self.figures.planning_seconds += planned - started
        self.figures.launching_seconds += time.perf_counter() - planned
        if launched is not None:
            self.figures.steps += 1
            self.figures.tokens += plan.tokens
            self.figures.largest_step = max(self.figures.largest_step, plan.tokens)
        events += self._read_back()
        self._launched = launched
        if not self._overlap or any(sequence.needs_history for sequence in plan.drawing):
            events += self._read_back()
        return events

    def _launch(self, plan: StepPlan) -> Launched:
        try:
            return self.runner.launch(plan, self.scheduler.ledger)
        except BaseException:
            # The plan made blocks findable that nobody has written now.
            for pool in self.scheduler.ledger.pools:
                pool.forget_content()
            raise

    def _end_overdue(self) -> list[Event]:
        now = self._clock()
        overdue = [
            sequence
            for sequence in [*self.scheduler.running, *self.scheduler.waiting]
            if sequence.request.deadline is not None and sequence.request.deadline <= now
        ]
        for sequence in overdue:
            self.scheduler.finish(sequence, FinishReason.DEADLINE)
        return [Event(sequence, finish=FinishReason.DEADLINE) for sequence in overdue]

    def _read_back(self) -> list[Event]:
        """What the launched step has drawn."""
        launched, self._launched = self._launched, None
        if launched is None:
            return []
        started = time.perf_counter()
        tokens = launched.tokens()
        waited = time.perf_counter()
        events = _prompt_events(launched)
        logprobs = _logprobs(launched)
        scheduler = self.scheduler
        size = scheduler.ledger.block_size
        for row, (sequence, token) in enumerate(zip(launched.plan.drawing, tokens, strict=True)):
            if not scheduler.record(sequence, token):
                continue
            reason = _reason_to_stop(sequence, token)
            if sequence.computed % size == 0 or reason is not None:
                scheduler.publish(sequence)
            if reason is not None:
                scheduler.finish(sequence, reason)
            events.append(Event(sequence, token, logprobs[row] if logprobs else None, reason))
        self.figures.drawn += len(tokens)
        self.figures.waiting_seconds += waited - started
        self.figures.reading_seconds += time.perf_counter() - waited
        return events


def _reason_to_stop(sequence: Sequence, token: int) -> FinishReason | None:
    request = sequence.request
    length = len(sequence.tokens)
    if token in request.stop_ids and length - sequence.prompt_length > request.params.min_tokens:
        return FinishReason.STOP
    return FinishReason.LENGTH if length >= sequence.longest else None


def _logprobs(launched: Launched) -> list[TokenLogprobs | None]:
    sampled = launched.sampled
    if sampled is None or sampled.chosen_logprob is None:
        return []
    chosen, tokens = sampled.chosen_logprob.tolist(), launched.tokens()
    top_tokens = sampled.top_tokens.tolist() if sampled.top_tokens is not None else [[]] * len(tokens)
    top = sampled.top_logprobs.tolist() if sampled.top_logprobs is not None else [[]] * len(tokens)
    found: list[TokenLogprobs | None] = []
    for row, sequence in enumerate(launched.plan.drawing):
        count = sequence.request.params.logprobs
        pairs = () if count is None else tuple(zip(top_tokens[row], top[row], strict=True))[:count]
        found.append(None if count is None else TokenLogprobs(tokens[row], chosen[row], pairs))
    return found


def _prompt_events(launched: Launched) -> list[Event]:
    events = []
    for number, scores in launched.prompt.items():
        chunk = launched.plan.chunks[number]
        following = chunk.sequence.request.prompt[chunk.start + 1 : chunk.start + chunk.length + 1]
        rows = zip(
            following, scores.logprob.tolist(), scores.top_tokens.tolist(), scores.top_logprobs.tolist(), strict=True
        )
        found = tuple(
            TokenLogprobs(token, logprob, tuple(zip(tokens, values, strict=True)))
            for token, logprob, tokens, values in rows
        )
        if chunk.sequence.finish is None:
            events.append(Event(chunk.sequence, prompt_logprobs=found, prompt_start=chunk.start + 1))
    return events

"""The serving loop: what happened in the last steps decides what the next one does.

Observe: read a launched step back. Decide: the scheduler plans, `guard` admits. Act: launch. By default the next step
is launched before the last one is read, so that the device never waits for Python. A step is read at once where the
device cannot hold what the next one needs of it (penalties over more tokens than `sampling/history.py` has room for),
and where tokens are drafted: how a text goes on is guessed from all of its tokens, and what was guessed stands or falls
before the next step. Requests with a grammar are in a step only when their last token has been read.

A step that raises, for whatever reason, leaves every request as it was before it or to be recomputed, and the loop
may go on: nothing counts before its launch has succeeded, nothing launched is lost before it has been read, and events
wait until they are taken. Records change with interrupts held back. `brim.engine.rescue` runs a step that ran out of
memory again, in parts.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Protocol

import numpy as np

from brim.engine.device.interrupts import Interrupts
from brim.engine.drafts.speculator import Drafts, Speculator
from brim.engine.kv.ledger import KvLedger
from brim.engine.requests.request import FinishReason
from brim.engine.requests.sequence import Sequence
from brim.engine.run.launched import Launched
from brim.engine.schedule.events import SequenceEvent, TokenLogprobs, TopLogits
from brim.engine.schedule.plan import DraftTokens, StepBounds, StepPlan
from brim.engine.schedule.prompt_scores import PromptScores
from brim.engine.schedule.scheduler import Scheduler

_FEW_DEADLINES = 64  # of requests that have ended: not worth looking for


class StepRunner(Protocol):
    """What runs planned steps."""

    def launch(self, plan: StepPlan, ledger: KvLedger) -> Launched:
        """Queue a step. If it raises, it may be launched again."""
        ...

    def accept(self, launched: Launched) -> None:
        """This step counts: the next one goes on from the tokens that it draws."""
        ...

    def go_on_from(self, tokens: Mapping[int, int]) -> None:
        """By slot, the last token of the requests of a step with drafts, which has been read."""
        ...


class StepObserver(Protocol):
    """Sees every step, in the engine's thread. It raises nothing that the step would not have raised."""

    def planned(self, plan: StepPlan, scheduler: Scheduler, bounds: StepBounds | None) -> None:
        """This step is about to be launched."""
        ...

    def launched(self) -> None:
        """It was."""
        ...

    def failed(self, error: BaseException) -> None:
        """It could not be."""
        ...


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


@dataclass(frozen=True, slots=True)
class _Scores:
    """What a step says of the tokens that it drew, by row; empty lists where no request asks."""

    logprobs: list[TokenLogprobs | None]
    top_logits: list[TopLogits | None]

    def event(self, row: int, sequence: Sequence, token: int, finish: FinishReason | None) -> SequenceEvent:
        return SequenceEvent(
            sequence,
            token,
            self.logprobs[row] if self.logprobs else None,
            finish,
            top_logits=self.top_logits[row] if self.top_logits else None,
        )


class ServingLoop:
    """Runs steps until nothing is left to do."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: StepRunner,
        overlap: bool = True,
        clock: Callable[[], float] = time.monotonic,
        interrupts: Interrupts | None = None,
        speculator: Speculator | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.speculator = speculator
        self.observer: StepObserver | None = None
        self.figures = LoopFigures()
        self.events: deque[SequenceEvent] = deque()  # what happened and nobody has taken yet
        self.failed: StepPlan | None = None  # the step that the last `advance` planned, and could not launch
        self._overlap = overlap
        self._clock = clock
        self._interrupts = interrupts or Interrupts()
        self._launched: deque[Launched] = deque()  # not read back; two only after a step was interrupted
        self._deadlines: list[tuple[float, tuple[str, int]]] = []  # a heap; also of some requests that have ended
        self._constrained = False

    @property
    def idle(self) -> bool:
        return self.scheduler.idle and not self._launched and not self.events

    def submit(self, sequence: Sequence) -> None:
        self._constrained = self._constrained or sequence.stepwise
        self.scheduler.submit(sequence)
        if sequence.request.deadline is not None:
            self._note_deadline(sequence.request.deadline, sequence.request.key)

    def step(self) -> list[SequenceEvent]:
        """Launch one step and read one back; what happened."""
        self.advance()
        events = list(self.events)
        self.events.clear()
        return events

    def advance(self, bounds: StepBounds | None = None) -> None:
        """The same; what happened is in `events`. A step of some requests only is read at once."""
        self.failed = None
        while len(self._launched) > 1:
            self._read_back()
        if self._deadlines:
            with self._interrupts.held():
                self._end_overdue()
        plan = self._launch_next(bounds, self._drafts(bounds))
        while len(self._launched) > bool(plan):
            self._read_back()
        overlap = self._overlap and (bounds is None or bounds.only is None)
        while self._launched and (not overlap or self._is_read_first(self._launched[-1])):
            self._read_back()

    def _is_read_first(self, launched: Launched) -> bool:
        """Whether a step is read before the next is launched.

        Requests whose constraint waits for every token (a grammar's) cannot be in the next step otherwise. The others
        go on without them, unless they are fewer, or answers have to grow alike (`worst`): then all wait for the device
        once.
        """
        if launched.read_first or not self._constrained:
            return launched.read_first
        drawing = launched.plan.drawing
        waiting = sum(sequence.stepwise for sequence in drawing)
        return 2 * waiting >= len(drawing) > 0 or (waiting > 0 and self.scheduler.admission.mode == "worst")

    def read_all(self) -> None:
        """Read every step that was launched."""
        self.failed = None
        while self._launched:
            self._read_back()

    def end(self, sequence: Sequence, error: str, *, passing: bool = False) -> None:
        """End a request that cannot run; `passing`: it may be able to later."""
        with self._interrupts.held():
            self.scheduler.finish(sequence, FinishReason.ERROR)
            self.events.append(SequenceEvent(sequence, finish=FinishReason.ERROR, error=error, passing=passing))

    def start_over(self, rebuild: Callable[[], KvLedger]) -> None:
        """Compute every running request again, in another pool; what was launched and not read is drawn again."""
        with self._interrupts.held():
            self.scheduler.restart(rebuild(), [launched.plan for launched in self._launched])
            self._launched.clear()

    def _drafts(self, bounds: StepBounds | None) -> Drafts:
        """What is drafted for the next step. A step of some requests only is one that failed, and gets no drafts."""
        if self.speculator is None or (bounds is not None and bounds.only is not None):
            return {}
        if not self.speculator.worthwhile(self.scheduler, calm=bounds is None or bounds.calm):
            return {}
        while self._launched:
            self._read_back()
        return self.speculator.propose(self.scheduler)

    def _launch_next(self, bounds: StepBounds | None, drafts: Drafts) -> StepPlan:
        """Plan a step and launch it; what was planned counts when it has been launched, or not at all."""
        scheduler, figures = self.scheduler, self.figures
        started = time.perf_counter()
        with self._interrupts.held():
            plan = scheduler.plan(bounds, drafts)
            planned = time.perf_counter()
            if plan:
                try:
                    if self.observer is not None:
                        self.observer.planned(plan, scheduler, bounds)
                    with self._interrupts.allow():
                        launched = self.runner.launch(plan, scheduler.ledger)
                except BaseException as error:
                    scheduler.abandon(plan)
                    self.failed = plan
                    if self.observer is not None:
                        self.observer.failed(error)
                    raise
                if self.observer is not None:
                    self.observer.launched()
                scheduler.commit(plan)
                self.runner.accept(launched)
                self._launched.append(launched)
                figures.steps += 1
                figures.tokens += plan.tokens
                figures.largest_step = max(figures.largest_step, plan.tokens)
            figures.planning_seconds += planned - started
            figures.launching_seconds += time.perf_counter() - planned
        return plan

    def _end_overdue(self) -> None:
        """End those whose time has come: the first of the heap, and no other is looked at."""
        now = self._clock()
        while self._deadlines and self._deadlines[0][0] <= now:
            sequence = self._due(self._deadlines[0])
            if sequence is not None:
                self.scheduler.finish(sequence, FinishReason.DEADLINE)
                self.events.append(SequenceEvent(sequence, finish=FinishReason.DEADLINE))
            heappop(self._deadlines)

    def _due(self, entry: tuple[float, tuple[str, int]]) -> Sequence | None:
        """The request of a deadline. A later one may have taken its key, and has a deadline of its own."""
        deadline, key = entry
        sequence = self.scheduler.find(key)
        return sequence if sequence is not None and sequence.request.deadline == deadline else None

    def _note_deadline(self, deadline: float, key: tuple[str, int]) -> None:
        """Those that have ended are forgotten when they are more than those that have not."""
        heappush(self._deadlines, (deadline, key))
        if len(self._deadlines) > 2 * self.scheduler.unfinished + _FEW_DEADLINES:
            self._deadlines = [entry for entry in self._deadlines if self._due(entry) is not None]
            heapify(self._deadlines)

    def _read_back(self) -> None:
        """Read the oldest launched step: it is gone from the queue when all that it drew has been recorded."""
        launched = self._launched[0]
        started = time.perf_counter()
        tokens = launched.tokens()
        waited = time.perf_counter()
        prompt_events = _prompt_events(launched)
        scores = _Scores(_logprobs(launched), _top_logits(launched))
        with self._interrupts.held():
            drawn = self._record(launched, tokens, prompt_events, scores)
            self._launched.popleft()
            self.figures.drawn += drawn
            self.figures.waiting_seconds += waited - started
            self.figures.reading_seconds += time.perf_counter() - waited

    def _record(
        self, launched: Launched, tokens: list[int], prompt_events: list[SequenceEvent], scores: _Scores
    ) -> int:
        """Record what a step drew; how many tokens were accepted."""
        self.events += [event for event in prompt_events if event.sequence.finish is None]
        if launched.plan.drafts:
            return self._record_verified(launched.plan, tokens, scores)
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
            self.events.append(scores.event(row, sequence, token, reason))
            if sequence.stepwise and reason is None:
                self._constrain(sequence, token)
        return len(tokens)

    def _constrain(self, sequence: Sequence, token: int) -> None:
        """Tell a grammar what was drawn; a request that it leaves nowhere to go ends."""
        assert sequence.constraint is not None
        problem = sequence.constraint.take(token)
        if problem is not None:
            self.scheduler.finish(sequence, FinishReason.ERROR)
            self.events.append(SequenceEvent(sequence, finish=FinishReason.ERROR, error=problem, in_request=True))

    def _record_verified(self, plan: StepPlan, tokens: list[int], scores: _Scores) -> int:
        """Record what a step with drafts drew: of each request up to the first token that was not drafted so."""
        scheduler, speculator = self.scheduler, self.speculator
        row = stand = 0
        for sequence, draft in plan.drawn_rows:
            drawn, first = tokens[row : row + draft.rows], row
            row += draft.rows
            accepted = draft.accepted(drawn)
            if not scheduler.record(sequence, drawn[0]):
                continue
            stand += 1 + accepted
            if draft.tokens and speculator is not None:
                speculator.learn(sequence, len(draft.tokens), accepted)
            self._record_tokens(sequence, draft, drawn[: accepted + 1], scores, first)
            if sequence.stepwise and sequence.finish is None:
                self._constrain(sequence, drawn[0])  # it has no draft
        if speculator is not None:
            speculator.stepped()
        self.runner.go_on_from({one.slot: one.tokens[-1] for one in plan.drawing if one.slot is not None})
        return stand

    def _record_tokens(
        self, sequence: Sequence, draft: DraftTokens, tokens: list[int], scores: _Scores, first_row: int
    ) -> None:
        """Tokens of one request that stand, up to one that ends it. The first has been recorded."""
        scheduler = self.scheduler
        for number, token in enumerate(tokens):
            if number:
                scheduler.accept(sequence, token)
            reason = _reason_to_stop(sequence, token)
            if reason is not None:
                scheduler.publish(sequence)
                scheduler.finish(sequence, reason)
            self.events.append(scores.event(first_row + number, sequence, token, reason))
            if reason is not None:
                return
        scheduler.settle(sequence, draft, len(tokens) - 1)


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
    for row, sequence in enumerate(launched.plan.row_sequences):
        count = sequence.request.params.alternatives
        pairs = () if count is None else tuple(zip(top_tokens[row], top[row], strict=True))[:count]
        found.append(None if count is None else TokenLogprobs(tokens[row], chosen[row], pairs))
    return found


def _top_logits(launched: Launched) -> list[TopLogits | None]:
    """Of each row, a copy of its own: a view would keep what other rows asked for."""
    sampled = launched.sampled
    if sampled is None or sampled.kept_logits is None:
        return []
    assert sampled.kept_tokens is not None
    assert sampled.log_normaliser is not None
    values, tokens = sampled.kept_logits.numpy(), sampled.kept_tokens.numpy()
    normalisers = sampled.log_normaliser.numpy()
    found: list[TopLogits | None] = []
    place = 0  # among those that asked
    for sequence in launched.plan.row_sequences:
        count = sequence.request.params.top_k_logits
        here = slice(place, place + 1)
        place += bool(count)
        kept = (values[here, :count], tokens[here, :count], normalisers[here])
        found.append(TopLogits(*(part.copy() for part in kept)) if count else None)
    return found


def _prompt_events(launched: Launched) -> list[SequenceEvent]:
    events = []
    for number, scores in launched.prompt.items():
        chunk = launched.plan.chunks[number]
        following = chunk.sequence.request.prompt[chunk.start + 1 : chunk.start + chunk.length + 1]
        columns = (scores.logprob, scores.top_tokens, scores.top_logprobs, scores.rank)
        copies = (np.array(column.numpy()) for column in columns)  # what they came in is needed for the next step
        found = PromptScores(np.array(following, dtype=np.int64), *copies)
        events.append(SequenceEvent(chunk.sequence, prompt_logprobs=found, prompt_start=chunk.start + 1))
    return events

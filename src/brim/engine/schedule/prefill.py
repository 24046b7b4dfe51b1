"""The prefill of a step: chunks of prompts that are being computed, and the first chunks of requests that start.

In: running requests in prefill, and the queue. Out: chunks for what is left of a step's tokens, with blocks for them.
Requests start in the order of the queue, by the policy of `guard`. While the first has to wait for blocks, a later one
that fits may pass it, a limited number of times. A request whose images are not encoded yet stays in the queue, and
those behind it go on (`media`). For a chunk, only requests that were admitted later and are in prefill are preempted.

Tokens that must be computed together and do not fit after the decodes come first, in every other step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from itertools import islice

from brim.engine.requests.sequence import Sequence
from brim.engine.schedule.batch import RunningBatch
from brim.engine.schedule.candidate import AdmissionCandidate, as_fork, from_cache, from_host
from brim.engine.schedule.forks import PromptForks
from brim.engine.schedule.media import MediaGate
from brim.engine.schedule.pending import PendingStep
from brim.engine.schedule.plan import Chunk
from brim.engine.schedule.spans import blocking_span, whole_spans
from brim.guard.admission import AdmissionSettings, AdmissionView, Cause, Decision, may_overtake


class PrefillPlanner:
    """Chooses the chunks of steps, and which waiting requests start."""

    def __init__(
        self,
        batch: RunningBatch,
        forks: PromptForks,
        admission: AdmissionSettings,
        policy: Callable[[AdmissionView], Decision],
        media: MediaGate,
    ) -> None:
        self.policy = policy
        self._batch = batch
        self._forks = forks
        self._admission = admission
        self._media = media
        self._nobody_passes: Hashable = None  # what was known when no later request could pass the first
        # Tokens that must be computed together and did not fit after the decodes: of which request, and how many.
        self._blocked: tuple[Sequence, int] | None = None

    def plan_blocked(self, step: PendingStep, *, allowed: bool) -> None:
        """Add tokens that did not fit after the decodes of the last step, before those of this one."""
        blocked, self._blocked = self._blocked, None
        if blocked is None or not allowed or not step.bounds.allow(blocked[0]):
            return
        sequence, tokens = blocked
        chunk = None
        if sequence.slot is not None:
            chunk = self._chunk(step, sequence, tokens)
        elif self._next_waiting(step) is sequence:
            chunk, _ = self._admit_first(step, tokens)
        if chunk is not None:
            step.first = chunk.sequence
            step.add(chunk)

    def plan(self, step: PendingStep) -> None:
        """Add chunks of running requests, then start waiting ones, as long as there are tokens left."""
        allow = step.bounds.allow
        for sequence in self._in_prefill_order():
            if step.budget == 0:
                break
            if sequence.drawn_on_device or sequence.slot is None or sequence is step.first or not allow(sequence):
                continue
            if not sequence.complete and sequence.computed < sequence.length:
                chunk = self._chunk(step, sequence, step.budget, sequence.snapshot)
                if chunk is not None:
                    step.add(chunk)
        while step.budget > 0 and self._batch.waiting and self._blocked is None:
            chunk = self._admit_next(step)
            if chunk is None:
                break
            step.add(chunk)

    def reusable(self, sequence: Sequence) -> int:
        """Tokens of a waiting request that would be found if it were admitted now. No step is being planned."""
        found = self._beginning(sequence, None)
        return 0 if found is None else found.reused

    def forget_blocked(self) -> None:
        """All requests are recomputed: none is in the middle of a prompt."""
        self._blocked = None

    # -- chunks --------------------------------------------------------------------------------------------------

    def _in_prefill_order(self) -> list[Sequence]:
        """Running requests; first those that generate, and whose last tokens are recomputed from a snapshot."""
        running = self._batch.running
        return sorted(running, key=lambda one: one.snapshot is None) if self._batch.snapshots else list(running)

    def _chunk(self, step: PendingStep, sequence: Sequence, budget: int, state_from: int | None = None) -> Chunk | None:
        start = sequence.computed
        length = whole_spans(sequence.request.spans, start, min(sequence.length - start, budget))
        if length == 0:
            span = blocking_span(sequence.request.spans, start)
            if span is not None and budget < span.end - start:
                self._blocked = self._blocked or (sequence, span.end - start)
            return None
        length = self._before_forks(sequence, start, length)
        assert sequence.slot is not None
        if not self._reserve(step, sequence, start, start + length):
            return None
        draws = start + length == sequence.length
        return Chunk(sequence, sequence.slot, start, length, draws, state_from)

    def _reserve(self, step: PendingStep, sequence: Sequence, start: int, end: int) -> bool:
        """Reserve blocks for a chunk, preempting requests that were admitted later and are still in prefill."""
        batch, blocks = self._batch, sequence.blocks
        assert blocks is not None
        while not batch.ledger.reserve(blocks, start, end):
            victim = batch.running[-1]
            if victim is sequence or victim is step.first or victim.decoding or victim.snapshot is not None:
                return False
            batch.preempt(victim)
        return True

    def _before_forks(self, sequence: Sequence, start: int, length: int) -> int:
        """Stop before the last token of a prompt whose other answers are admitted next: they fork there."""
        last = sequence.prompt_length - 1
        if not self._forks.early or not start < last < start + length:
            return length
        following = next(iter(self._batch.waiting), None)
        if following is None or self._forks.parent(following) is not sequence:
            return length
        return whole_spans(sequence.request.spans, start, last - start) or length

    # -- admission -----------------------------------------------------------------------------------------------

    def _next_waiting(self, step: PendingStep) -> Sequence | None:
        """The first that waits, of those that may be in this step and whose images are not being encoded."""
        allow, waits = step.bounds.allow, self._media.waits
        return next((one for one in self._batch.waiting if allow(one) and not waits(one)), None)

    def _admit_next(self, step: PendingStep) -> Chunk | None:
        """Start the request that has waited longest, or one that may pass it while it waits for blocks."""
        chunk, cause = self._admit_first(step, step.budget)
        may_pass = cause is Cause.BLOCKS and step.bounds.only is None
        return self._admit_passing(step) if may_pass else chunk

    def _admit_first(self, step: PendingStep, budget: int) -> tuple[Chunk | None, Cause | None]:
        """Start the request that has waited longest; what decided about it, if anything could be decided."""
        candidate: AdmissionCandidate | None = None
        while candidate is None:
            sequence = self._next_waiting(step)
            if sequence is not None and not self._batch.free_slots and sequence.request.media is None:
                return None, self._decide_about_slots().cause  # nothing else needs to be known of a text
            candidate = None if sequence is None else self._candidate(step, sequence)
            if candidate is None and (sequence is None or not self._media.waits(sequence)):
                return None, None
        decision = self._decide(candidate)
        if not decision.start:
            return None, decision.cause
        step.admitted.append(self._batch.waiting.step_out(candidate.sequence, candidate.reused))
        return self._start(step, candidate, budget), decision.cause

    def _admit_passing(self, step: PendingStep) -> Chunk | None:
        """Start the first of the later requests that fits. They are looked at when something has changed."""
        batch, media = self._batch, self._media
        waiting = batch.waiting
        known = batch.forecast.state, media.arrivals, tuple(islice(waiting, self._admission.lookahead + 1))
        if known == self._nobody_passes:
            return None
        behind = may_overtake((sequence.passed for sequence in waiting), self._admission)
        for sequence in list(islice(waiting, 1, behind + 1)):
            may_pass = _may_pass(sequence) and not media.waits(sequence)
            candidate = self._candidate(step, sequence) if may_pass else None
            if candidate is not None and self._decide(candidate).start:
                step.admitted.append(waiting.overtake(sequence, candidate.reused))
                chunk = self._start(step, candidate, step.budget)
                batch.counts.passes += chunk is not None
                return chunk
        self._nobody_passes = known
        return None

    def _candidate(self, step: PendingStep, sequence: Sequence) -> AdmissionCandidate | None:
        """Where a request would begin if it were admitted now; None: it has to wait for something on the device."""
        found = self._beginning(sequence, step)
        return found if found is not None and self._media.ready(sequence, found.reused) else None

    def _beginning(self, sequence: Sequence, step: PendingStep | None) -> AdmissionCandidate | None:
        """The same, whatever has become of its images."""
        ledger, limits = self._batch.ledger, self._batch.limits
        if sequence.unseen:
            return None  # its last token
        if sequence.host_copy is not None:
            return from_host(sequence, sequence.host_copy, ledger, limits.reuse_prefixes)
        parent = self._forks.parent(sequence)
        if parent is not None:
            if parent.computed < parent.prompt_length - 1:
                return None
            if not (step is not None and step.admits(parent)) and self._forks.possible(parent, ledger):
                return as_fork(sequence, parent)
            if not self._forks.early and parent.computed < parent.prompt_length:
                return None
        if not limits.reuse_prefixes or sequence.request.params.prompt_logprobs is not None:
            return AdmissionCandidate(sequence)
        return from_cache(sequence, ledger)

    def _decide(self, candidate: AdmissionCandidate) -> Decision:
        batch = self._batch
        if not batch.free_slots:
            return self._decide_about_slots()
        decision = self.policy(batch.forecast.view(candidate, len(batch.free_slots)))
        batch.counts.count(decision)
        return decision

    def _decide_about_slots(self) -> Decision:
        decision = Decision(False, Cause.SLOTS, limit=len(self._batch.running))
        self._batch.counts.count(decision)
        return decision

    def _start(self, step: PendingStep, candidate: AdmissionCandidate, budget: int) -> Chunk | None:
        """Give the request that was admitted last its slot, what it shares, and its first chunk; None if it cannot."""
        batch, sequence, parent = self._batch, candidate.sequence, candidate.parent
        batch.start(sequence)
        assert sequence.blocks is not None
        state_from = None
        if parent is not None:
            assert parent.blocks is not None
            batch.ledger.fork(parent.blocks, sequence.blocks, sequence.prompt_length)
            state_from = parent.slot if batch.limits.has_states else None
        elif candidate.copy is None:
            batch.ledger.reuse(sequence.blocks, candidate.digests)
        elif not batch.ledger.bring_back(sequence.blocks, candidate.copy, candidate.digests):
            self._take_back_last(step)
            return None
        sequence.computed = candidate.reused
        sequence.reused = candidate.reused if candidate.copy is None else candidate.copy.reused
        chunk = self._chunk(step, sequence, budget, state_from)
        if chunk is None:
            self._take_back_last(step)
        return chunk

    def _take_back_last(self, step: PendingStep) -> None:
        self._batch.take_back(step.admitted[-1])
        step.admitted.pop()


def _may_pass(sequence: Sequence) -> bool:
    """Answers that can share a prompt wait for its first one, and images come in the order of the queue."""
    return sequence.request.index == 0 and not any(span.together for span in sequence.request.spans)

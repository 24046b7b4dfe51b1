"""Which tokens of which requests make up the next step.

Continuous batching, first come first served among requests of one share and priority (`queue`): every decoding request
gets one token, the rest of the step goes to prefill chunks, and waiting requests are admitted by the policy of `guard`.
While the first of them has to wait for blocks, a later one that fits may pass it, a limited number of times. When
blocks run out, the request that was admitted last is preempted; later it goes on from a copy in host memory, or is
recomputed (`host_copies`). A request whose images are not encoded yet stays in the queue, and those behind it go on
(`media`).
Steps may be planned ahead: tokens of a launched step are counted (`Sequence.unseen`) before they are read.

A decode may come with a draft (`drafting`). When the step is launched it counts as the one token that is certain; when
it has been read, `accept` counts the accepted tokens, and `settle` gives the blocks of the rest back, moves windows on
and publishes. A rejected draft has moved recurrent states too far: such a request goes on from a snapshot.

`plan` only reserves. `commit`, when the step has been launched, counts its tokens, publishes full blocks and frees
those behind the windows; it cannot fail. `abandon`, when the step failed, leaves every request as it was before `plan`.
Two things cannot be undone: preemptions (the blocks may have been written to), and recurrent states that the failed
step has updated, whose requests are recomputed.

Knows nothing of tensors, time or text.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from brim.engine.kv.digests import extend_digests
from brim.engine.kv.ledger import KvLedger
from brim.engine.requests.request import FinishReason
from brim.engine.requests.sequence import Sequence
from brim.engine.schedule.candidate import AdmissionCandidate, as_fork, from_cache, from_host
from brim.engine.schedule.drafting import Snapshots, plan_drafts
from brim.engine.schedule.figures import AdmissionCounts
from brim.engine.schedule.forecast import BlockForecast
from brim.engine.schedule.host_copies import HostCopies
from brim.engine.schedule.media import MediaGate, NoWaiting
from brim.engine.schedule.plan import NO_DRAFT, Chunk, DraftTokens, StepBounds, StepPlan
from brim.engine.schedule.queue import Departure, WaitingQueue
from brim.engine.schedule.spans import blocking_span, whole_spans
from brim.guard.admission import AdmissionSettings, AdmissionView, Cause, Decision, may_overtake, may_start


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Limits of a step."""

    max_batch: int
    max_batch_tokens: int
    reuse_prefixes: bool = True
    has_states: bool = False  # recurrent layers keep a state in a request's slot
    max_drafted: int = 0  # most requests of a step with drafts


class Scheduler:
    """The waiting and running requests, and the blocks they hold."""

    def __init__(
        self,
        ledger: KvLedger,
        limits: StepLimits,
        admission: AdmissionSettings | None = None,
        policy: Callable[[AdmissionView], Decision] = may_start,
    ) -> None:
        self.ledger = ledger
        self.limits = limits
        self.admission = admission or AdmissionSettings()
        self.policy = policy
        self.forecast = BlockForecast(ledger, self.admission, limits.max_batch, limits.max_batch_tokens)
        self.counts = AdmissionCounts()
        self.host_copies = HostCopies.none()
        self.media: MediaGate = NoWaiting()
        self.waiting = WaitingQueue(self._comes_first)
        self.running: list[Sequence] = []  # in the order of admission
        self._free_slots = list(range(limits.max_batch - 1, -1, -1))
        self._by_key: dict[tuple[str, int], Sequence] = {}
        windows = [group.window for group in ledger.groups if group.window is not None]
        # Position in a block of a request's next token when its window has left another block.
        self._passing = {(window - 1) % ledger.block_size for window in windows}
        # Answers to one prompt fork at its last token. The window and state of that point are gone one token later.
        self._forks_early = limits.has_states or bool(windows)
        self._admitted: list[Departure] = []  # by the step that is being planned or launched
        self._ready = 0  # requests that could get a token from the step that is being planned
        self._nobody_passes: Hashable = None  # what was known when no later request could pass the first
        self._leaving: Sequence | None = None  # being preempted
        # Tokens that must be computed together and did not fit after the decodes: of which request, and how many.
        self._blocked: tuple[Sequence, int] | None = None
        self._first: Sequence | None = None  # they come first in the step that is being planned
        self._left_out = False  # decodes were left out of the last step for them
        self._bounds = StepBounds(limits.max_batch_tokens)  # of the step that is being planned
        self._snapshots = (
            Snapshots(limits.max_batch + 1, limits.max_drafted) if limits.has_states and limits.max_drafted else None
        )
        self._wanted: Mapping[Sequence, tuple[int, ...]] = {}  # drafts for the step that is being planned
        self._drafting: list[Sequence] = []  # with a draft in the step that is being planned or launched

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    @property
    def preemptions(self) -> int:
        return self.counts.preemptions

    @property
    def free_slots(self) -> list[int]:
        return list(self._free_slots)

    def snapshot_problems(self) -> list[str]:
        """Snapshots that are neither free nor a request's, or both."""
        return [] if self._snapshots is None else self._snapshots.problems(self.running)

    def begins_at(self, sequence: Sequence) -> int:
        """Tokens of a request that need not be computed: they are in the pool, or would be found on admission."""
        if sequence.slot is not None:
            return sequence.computed
        found = self._beginning(sequence)
        return 0 if found is None else found.reused

    def submit(self, sequence: Sequence) -> None:
        """Let a request wait for its turn. One that could never have it is refused."""
        self.forecast.check(sequence)
        self._by_key[sequence.request.key] = sequence
        self.waiting.join(sequence)

    def find(self, key: tuple[str, int]) -> Sequence | None:
        """The request with this key that waits or runs."""
        return self._by_key.get(key)

    @property
    def unfinished(self) -> int:
        """Requests that wait or run."""
        return len(self._by_key)

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a request, waiting or running; everything it holds is freed at once."""
        if sequence.finish is not None:
            return
        self._keep_session(sequence)  # before anything is changed
        sequence.finish = reason
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            self.forecast.growth.ended(sequence.generated)
        del self._by_key[sequence.request.key]
        self.host_copies.drop(sequence, self.ledger)
        if sequence.slot is None:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
            self._release(sequence)
        self.waiting.left(sequence)

    def _keep_session(self, sequence: Sequence) -> None:
        """What a conversation has computed stays findable for its next turn."""
        if sequence.request.session is not None and sequence.blocks is not None:
            self.publish(sequence)
            self.ledger.sessions.keep(sequence.request.session, sequence.digests[: sequence.blocks.published])

    def _release(self, sequence: Sequence) -> None:
        if sequence.blocks is not None:
            self.ledger.close(sequence.blocks)
            sequence.blocks = None
        if sequence.slot is not None:
            self.forecast.left(sequence.slot)
            self._free_slots.append(sequence.slot)
            sequence.slot = None
        if self._snapshots is not None:
            self._snapshots.free(sequence)

    # -- a step: planned, then committed or abandoned ------------------------------------------------------------

    def plan(
        self, bounds: StepBounds | None = None, drafts: Mapping[Sequence, tuple[int, ...]] | None = None
    ) -> StepPlan:
        """The next step. Empty when nothing can run before a launched step has been read back.

        `drafts` are for requests all of whose tokens have been read; the step must be read before the next is planned.
        """
        assert not self._admitted, "a planned step is committed or abandoned before the next one"
        self._bounds = bounds or StepBounds(self.limits.max_batch_tokens)
        self._wanted = drafts or {}
        try:
            return self._plan()
        except BaseException:
            self._take_back()
            raise

    def _plan(self) -> StepPlan:
        chunks: list[Chunk] = []
        budget, allow = self._bounds.tokens, self._bounds.allow
        first = self._plan_blocked()
        self._first = None if first is None else first.sequence
        if first is not None:
            chunks.append(first)
            budget = max(0, budget - first.length)  # what is computed together may be more than a lowered limit
        decodes = self._plan_decodes(budget)
        budget -= len(decodes)
        for sequence in self._in_prefill_order():
            if budget == 0:
                break
            if sequence.drawn_on_device or sequence.slot is None or sequence is self._first or not allow(sequence):
                continue
            if not sequence.complete and sequence.computed < sequence.length:
                chunk = self._plan_chunk(sequence, budget, sequence.snapshot)
                if chunk:
                    chunks.append(chunk)
                    budget -= chunk.length
        while budget > 0 and self.waiting and self._blocked is None:
            chunk = self._admit_next(budget)
            if chunk is None:
                break
            chunks.append(chunk)
            budget -= chunk.length
        planned: tuple[DraftTokens, ...] = ()
        if self._wanted and not self._admitted and len(self.running) <= self.limits.max_drafted:
            self._drafting = [sequence for sequence in decodes if sequence in self._wanted]
            decodes, planned = plan_drafts(decodes, self._wanted, budget, self.ledger, self._snapshots)
        return StepPlan(
            tuple(decodes),
            tuple([sequence.slot for sequence in decodes if sequence.slot is not None]),
            tuple([sequence.computed + 1 for sequence in decodes]),
            tuple(chunks),
            planned,
        )

    def _in_prefill_order(self) -> list[Sequence]:
        """Running requests; first those that generate, and whose last tokens are recomputed from a snapshot."""
        return sorted(self.running, key=lambda one: one.snapshot is None) if self._snapshots else list(self.running)

    def commit(self, plan: StepPlan) -> None:
        """The step was launched: its tokens count as computed from now on, since the device works in order."""
        self._count_returned()
        self._admitted.clear()
        self._drafting.clear()
        self.ledger.commit()
        for sequence in plan.decodes:
            sequence.computed += 1
            sequence.unseen += 1
        self.waiting.charge_decodes(plan.decodes)
        self.forecast.stepped(len(plan.decodes), self._ready)
        for chunk in plan.chunks:
            sequence = chunk.sequence
            sequence.computed = chunk.start + chunk.length
            if self._snapshots is not None:
                self._snapshots.free(sequence)  # it has been copied back
            if chunk.draws:
                sequence.unseen += 1
                sequence.drawn_on_device = True
                self.forecast.begins_to_answer(sequence)
            self.publish(sequence)  # before its window moves on: later steps find what this one writes
        if self._passing:
            size = self.ledger.block_size
            certain = plan.decodes[: plan.drafts.count(NO_DRAFT)] if plan.drafts else plan.decodes
            passed = [sequence for sequence in certain if sequence.computed % size in self._passing]
            for sequence in [*passed, *(chunk.sequence for chunk in plan.chunks)]:
                assert sequence.blocks is not None
                self.ledger.give_up_behind(sequence.blocks, sequence.computed)

    def abandon(self, plan: StepPlan) -> None:
        """The step failed while it was launched: every request is as before, or preempted."""
        self._take_back()
        if self.limits.has_states:  # which the failed step may have updated
            touched = {id(sequence) for sequence in plan.sequences}
            for sequence in reversed([one for one in self.running if id(one) in touched]):
                self._preempt(sequence, intact=False)

    def _count_returned(self) -> None:
        """What those that the launched step admits were found with, and copies that it copies back, is not needed."""
        for departure in self._admitted:
            departure.sequence.finding = None
            if departure.sequence.host_copy is not None:
                self.host_copies.came_back(departure.sequence, self.ledger)

    def _take_back(self) -> None:
        """Undo what planning has done so far, except for preemptions."""
        if self._leaving is not None:
            self._put_back(self._leaving)
            self._leaving = None
        for departure in reversed(self._admitted):
            self._take_back_admission(departure)
        self._admitted.clear()
        if self._snapshots is not None:
            for sequence in self._drafting:
                self._snapshots.free(sequence)
        self._drafting.clear()
        self.ledger.rollback()

    def _take_back_admission(self, departure: Departure) -> None:
        self._let_go(departure.sequence)
        self.waiting.rejoin(departure)

    def _take_back_last_admission(self) -> None:
        self._take_back_admission(self._admitted[-1])
        self._admitted.pop()

    def restart(self, ledger: KvLedger, lost: Iterable[StepPlan] = ()) -> None:
        """Compute every request again, in the blocks of another ledger; draw again what lost steps drew.

        Copies in host memory are dropped too: some may be of tokens that were drawn by a lost step.
        """
        for sequence in self.waiting:
            self.host_copies.drop(sequence, self.ledger)
        for plan in lost:
            for sequence in plan.drawing:
                if sequence.finish is None:
                    sequence.unseen -= 1
        for sequence in self.running:
            sequence.blocks = None  # of the ledger that is given up
        self.ledger = ledger
        for sequence in list(reversed(self.running)):
            self._preempt(sequence, intact=False)
        self._admitted.clear()
        self._blocked = self._first = None
        self._free_slots = list(range(self.limits.max_batch - 1, -1, -1))
        self.forecast.move(ledger)

    # -- decodes -------------------------------------------------------------------------------------------------

    def _plan_decodes(self, budget: int) -> list[Sequence]:
        size = self.ledger.block_size
        decodes: list[Sequence] = []
        self._left_out = False
        self._ready = 0
        if self._first is not None and self.admission.mode == "worst" and self._generating > budget:
            self._left_out = True  # all of them: no answer may fall behind the others, or ends come in another order
            return decodes
        some_only, allow = self._bounds.only is not None, self._bounds.allow
        for sequence in list(self.running):
            position = sequence.computed
            length = len(sequence.tokens) + sequence.unseen
            # `decoding` and not `complete`, inlined: this runs for every request in every step.
            if not sequence.drawn_on_device or position != length - 1 or length >= sequence.longest:
                continue
            if sequence.unseen and sequence.waits_to_be_read:
                continue
            self._ready += 1
            if some_only and not allow(sequence):
                continue
            if len(decodes) == budget:
                self._left_out = True
                break
            # Only the first token of a block can need anything of the pools: forks get copies when they are admitted.
            if position % size == 0 and not self._reserve_or_preempt(sequence, position, position + 1, decodes):
                self._ready -= sequence.slot is None  # preempted itself: it has not fallen behind the others
                continue
            decodes.append(sequence)
        return decodes

    @property
    def _generating(self) -> int:
        return sum(sequence.decoding and not sequence.complete for sequence in self.running)

    def _reserve_or_preempt(self, sequence: Sequence, start: int, end: int, keep: list[Sequence]) -> bool:
        """Reserve blocks for these tokens, preempting the last admitted; False if that is the sequence itself."""
        blocks = sequence.blocks
        assert blocks is not None
        while not self.ledger.reserve(blocks, start, end):
            victim = self.running[-1]
            if victim is self._first or victim in keep:
                return False
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence, intact: bool = True) -> None:
        """`intact`: its blocks and state hold what it has computed, and may be kept in host memory."""
        self._leaving = sequence
        intact = intact and sequence.snapshot is None  # with one, its state has seen tokens that do not stand
        self.host_copies.leaves(sequence, self.ledger, intact)
        self._put_back(sequence)
        sequence.preemptions += 1
        self.counts.preemptions += 1
        self._leaving = None

    def _put_back(self, sequence: Sequence) -> None:
        """To the front of those of its priority, holding nothing. Can be called again after an interrupt."""
        self._let_go(sequence)
        self.waiting.come_back(sequence)

    def _let_go(self, sequence: Sequence) -> None:
        """It holds nothing, and nothing of it is computed. Can be called again after an interrupt."""
        self._release(sequence)
        if sequence in self.running:
            self.running.remove(sequence)
        sequence.computed = sequence.reused = 0
        sequence.drawn_on_device = False

    # -- chunks of prompts ---------------------------------------------------------------------------------------

    def _plan_blocked(self) -> Chunk | None:
        """Tokens that must be computed together and did not fit after the decodes come first, in every other step."""
        blocked, self._blocked = self._blocked, None
        if blocked is None or self._left_out or not self._bounds.allow(blocked[0]):
            return None
        sequence, tokens = blocked
        if sequence.slot is not None:
            return self._plan_chunk(sequence, tokens)
        if self._next_waiting() is sequence:
            return self._admit_first(tokens)[0]
        return None

    def _plan_chunk(self, sequence: Sequence, budget: int, state_from: int | None = None) -> Chunk | None:
        start = sequence.computed
        length = whole_spans(sequence.request.spans, start, min(sequence.length - start, budget))
        if length == 0:
            span = blocking_span(sequence.request.spans, start)
            if span is not None and budget < span.end - start:
                self._blocked = self._blocked or (sequence, span.end - start)
            return None
        length = self._before_forks(sequence, start, length)
        assert sequence.slot is not None
        if not self._reserve_chunk(sequence, start, start + length):
            return None
        draws = start + length == sequence.length
        return Chunk(sequence, sequence.slot, start, length, draws, state_from)

    def _reserve_chunk(self, sequence: Sequence, start: int, end: int) -> bool:
        """Reserve blocks for a chunk, preempting requests that were admitted later and are still in prefill."""
        blocks = sequence.blocks
        assert blocks is not None
        while not self.ledger.reserve(blocks, start, end):
            victim = self.running[-1]
            if victim is sequence or victim is self._first or victim.decoding or victim.snapshot is not None:
                return False
            self._preempt(victim)
        return True

    def _before_forks(self, sequence: Sequence, start: int, length: int) -> int:
        """Stop before the last token of a prompt whose other answers are admitted next: they fork there."""
        last = sequence.prompt_length - 1
        if not self._forks_early or not start < last < start + length:
            return length
        following = next(iter(self.waiting), None)
        if following is None or self._parent(following) is not sequence:
            return length
        return whole_spans(sequence.request.spans, start, last - start) or length

    # -- admission -----------------------------------------------------------------------------------------------

    def _next_waiting(self) -> Sequence | None:
        """The first that waits, of those that may be in this step and whose images are not being encoded."""
        allow, waits = self._bounds.allow, self.media.waits
        return next((sequence for sequence in self.waiting if allow(sequence) and not waits(sequence)), None)

    def _comes_first(self, sequence: Sequence) -> bool:
        """Preempted, or an answer to a prompt that is being computed and can be shared when it has been."""
        if sequence.preemptions:
            return True
        parent = self._parent(sequence)
        return parent is not None and parent.computed < parent.prompt_length

    def _admit_next(self, budget: int) -> Chunk | None:
        """Start the request that has waited longest, or one that may pass it while it waits for blocks."""
        chunk, cause = self._admit_first(budget)
        may_pass = cause is Cause.BLOCKS and self._bounds.only is None
        return self._admit_passing(budget) if may_pass else chunk

    def _admit_first(self, budget: int) -> tuple[Chunk | None, Cause | None]:
        """Start the request that has waited longest; what decided about it, if anything could be decided."""
        candidate: AdmissionCandidate | None = None
        while candidate is None:
            sequence = self._next_waiting()
            if sequence is not None and not self._free_slots and sequence.request.media is None:
                return None, self._decide_about_slots().cause  # nothing else needs to be known of a text
            candidate = None if sequence is None else self._candidate(sequence)
            if candidate is None and (sequence is None or not self.media.waits(sequence)):
                return None, None
        decision = self._decide(candidate)
        if not decision.start:
            return None, decision.cause
        self._admitted.append(self.waiting.step_out(candidate.sequence, candidate.reused))
        return self._start(candidate, budget), decision.cause

    def _admit_passing(self, budget: int) -> Chunk | None:
        """Start the first of the later requests that fits. They are looked at when something has changed."""
        known = self.forecast.state, self.media.arrivals, tuple(islice(self.waiting, self.admission.lookahead + 1))
        if known == self._nobody_passes:
            return None
        behind = may_overtake((sequence.passed for sequence in self.waiting), self.admission)
        for sequence in list(islice(self.waiting, 1, behind + 1)):
            may_pass = _may_pass(sequence) and not self.media.waits(sequence)
            candidate = self._candidate(sequence) if may_pass else None
            if candidate is not None and self._decide(candidate).start:
                self._admitted.append(self.waiting.overtake(sequence, candidate.reused))
                chunk = self._start(candidate, budget)
                self.counts.passes += chunk is not None
                return chunk
        self._nobody_passes = known
        return None

    def _decide(self, candidate: AdmissionCandidate) -> Decision:
        if not self._free_slots:
            return self._decide_about_slots()
        decision = self.policy(self.forecast.view(candidate, len(self._free_slots)))
        self.counts.count(decision)
        return decision

    def _decide_about_slots(self) -> Decision:
        decision = Decision(False, Cause.SLOTS, limit=len(self.running))
        self.counts.count(decision)
        return decision

    def _start(self, candidate: AdmissionCandidate, budget: int) -> Chunk | None:
        """Give the request that was admitted last its slot, what it shares, and its first chunk; None if it cannot."""
        sequence, parent = candidate.sequence, candidate.parent
        sequence.slot = self._free_slots.pop()
        self.running.append(sequence)
        sequence.blocks = self.ledger.open(sequence.slot)
        self.forecast.started(sequence)
        state_from = None
        if parent is not None:
            assert parent.blocks is not None
            self.ledger.fork(parent.blocks, sequence.blocks, sequence.prompt_length)
            state_from = parent.slot if self.limits.has_states else None
        elif candidate.copy is None:
            self.ledger.reuse(sequence.blocks, candidate.digests)
        elif not self.ledger.bring_back(sequence.blocks, candidate.copy, candidate.digests):
            self._take_back_last_admission()
            return None
        sequence.computed = candidate.reused
        sequence.reused = candidate.reused if candidate.copy is None else candidate.copy.reused
        chunk = self._plan_chunk(sequence, budget, state_from)
        if chunk is None:
            self._take_back_last_admission()
        return chunk

    def _parent(self, sequence: Sequence) -> Sequence | None:
        """The running request whose prompt a new answer to the same prompt may share."""
        request = sequence.request
        if request.index == 0 or len(sequence.tokens) > sequence.prompt_length:
            return None
        if request.params.prompt_logprobs is not None:
            return None  # every answer reports them, so every one computes its prompt
        parent = self._by_key.get((request.id, 0))
        return parent if parent is not None and parent.slot is not None else None

    def _can_fork(self, parent: Sequence) -> bool:
        """Whether all that the prompt's last token attends to is still there: blocks, and the state at that point."""
        last = parent.prompt_length - 1
        if self.limits.has_states:
            return parent.computed == last and not self._was_admitted_now(parent)
        assert parent.blocks is not None
        if self._was_admitted_now(parent) or not self.ledger.can_fork(parent.blocks, parent.prompt_length):
            return False
        return self._forks_early or parent.computed > last

    def _was_admitted_now(self, sequence: Sequence) -> bool:
        return any(departure.sequence is sequence for departure in self._admitted)

    def _candidate(self, sequence: Sequence) -> AdmissionCandidate | None:
        """Where a request would begin if it were admitted now; None: it has to wait for something on the device."""
        found = self._beginning(sequence)
        return found if found is not None and self.media.ready(sequence, found.reused) else None

    def _beginning(self, sequence: Sequence) -> AdmissionCandidate | None:
        """The same, whatever has become of its images."""
        if sequence.unseen:
            return None  # its last token
        if sequence.host_copy is not None:
            return from_host(sequence, sequence.host_copy, self.ledger, self.limits.reuse_prefixes)
        parent = self._parent(sequence)
        if parent is not None:
            if parent.computed < parent.prompt_length - 1:
                return None
            if self._can_fork(parent):
                return as_fork(sequence, parent)
            if not self._forks_early and parent.computed < parent.prompt_length:
                return None
        if not self.limits.reuse_prefixes or sequence.request.params.prompt_logprobs is not None:
            return AdmissionCandidate(sequence)
        return from_cache(sequence, self.ledger)

    # -- accounting ----------------------------------------------------------------------------------------------

    def record(self, sequence: Sequence, token: int) -> bool:
        """Append a token that was read back. False: the request has ended in the meantime; the token is dropped."""
        if sequence.finish is not None:
            return False
        sequence.unseen -= 1
        sequence.tokens.append(token)
        return True

    def accept(self, sequence: Sequence, token: int) -> None:
        """The drafted token before this one stands, and so does what was drawn behind it."""
        sequence.computed += 1
        sequence.tokens.append(token)

    def settle(self, sequence: Sequence, draft: DraftTokens, accepted: int) -> None:
        """What a draft led to has been recorded. The blocks of tokens that do not stand are free from now on."""
        if sequence.finish is not None:
            return
        assert sequence.blocks is not None
        self.ledger.give_back_from(sequence.blocks, sequence.computed)
        if self._snapshots is not None:
            if accepted < len(draft.tokens):
                sequence.computed -= accepted + 1  # where its snapshot was taken
                sequence.drawn_on_device = False
            else:
                self._snapshots.free(sequence)
        if self._passing:
            self.ledger.give_up_behind(sequence.blocks, sequence.computed)
        if accepted or not sequence.drawn_on_device:
            self.forecast.grew(sequence)
        self.publish(sequence)

    def publish(self, sequence: Sequence) -> None:
        """Publish a request's full blocks for prefix caching."""
        if not self.limits.reuse_prefixes or sequence.blocks is None:
            return
        size = self.ledger.block_size
        known = min(sequence.computed, len(sequence.tokens))
        if known // size > sequence.blocks.published:
            request = sequence.request
            extend_digests(sequence.digests, sequence.tokens, size, request.salt, request.marks)
            self.ledger.publish(sequence.blocks, sequence.digests[: known // size])


def _may_pass(sequence: Sequence) -> bool:
    """Answers that can share a prompt wait for its first one, and images come in the order of the queue."""
    return sequence.request.index == 0 and not any(span.together for span in sequence.request.spans)

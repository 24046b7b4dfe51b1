"""Which tokens of which requests make up the next step.

Continuous batching, first come first served among requests of one share and priority (`queue`): every decoding request
gets one token (`decode`), the rest of the step goes to chunks of prompts and to waiting requests that start
(`prefill`). When blocks run out, the request that was admitted last is preempted (`batch`); later it goes on from a
copy in host memory, or is recomputed (`host_copies`). Steps may be planned ahead: tokens of a launched step are counted
(`Sequence.unseen`) before they are read.

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

from collections.abc import Callable, Iterable, Mapping

from brim.engine.kv.digests import extend_digests
from brim.engine.kv.ledger import KvLedger
from brim.engine.requests.request import FinishReason
from brim.engine.requests.sequence import Sequence
from brim.engine.schedule.batch import RunningBatch
from brim.engine.schedule.decode import DecodePlanner
from brim.engine.schedule.drafting import plan_drafts
from brim.engine.schedule.forks import PromptForks
from brim.engine.schedule.host_copies import HostCopies
from brim.engine.schedule.media import MediaGate, NoWaiting
from brim.engine.schedule.pending import PendingStep
from brim.engine.schedule.plan import NO_DRAFT, DraftTokens, StepBounds, StepLimits, StepPlan
from brim.engine.schedule.prefill import PrefillPlanner
from brim.engine.schedule.queue import WaitingQueue
from brim.guard.admission import AdmissionSettings, AdmissionView, Decision, may_start


class Scheduler:
    """The waiting and running requests, and the blocks they hold."""

    def __init__(
        self,
        ledger: KvLedger,
        limits: StepLimits,
        admission: AdmissionSettings | None = None,
        policy: Callable[[AdmissionView], Decision] = may_start,
        media: MediaGate | None = None,
    ) -> None:
        windows = [group.window for group in ledger.groups if group.window is not None]
        self.limits = limits
        self.admission = admission or AdmissionSettings()
        self._by_key: dict[tuple[str, int], Sequence] = {}
        forks = PromptForks(self._by_key, has_states=limits.has_states, has_windows=bool(windows))
        self.waiting = WaitingQueue(forks.comes_first)
        self.batch = RunningBatch(ledger, limits, self.admission, self.waiting)
        self.running = self.batch.running
        self.forecast = self.batch.forecast
        self.counts = self.batch.counts
        self.prefill = PrefillPlanner(self.batch, forks, self.admission, policy, media or NoWaiting())
        self._decode = DecodePlanner(self.batch, alike=self.admission.mode == "worst")
        # Position in a block of a request's next token when its window has left another block.
        self._passing = {(window - 1) % ledger.block_size for window in windows}
        self._step: PendingStep | None = None  # that is being planned or launched

    @property
    def ledger(self) -> KvLedger:
        return self.batch.ledger

    @property
    def host_copies(self) -> HostCopies:
        """The copies of preempted requests in host memory."""
        return self.batch.host_copies

    def keep_preempted(self, copies: HostCopies) -> None:
        """Keep preempted requests there from now on."""
        self.batch.host_copies = copies

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    @property
    def preemptions(self) -> int:
        return self.counts.preemptions

    def begins_at(self, sequence: Sequence) -> int:
        """Tokens of a request that need not be computed: they are in the pool, or would be found on admission."""
        return self.prefill.reusable(sequence) if sequence.slot is None else sequence.computed

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
            self.batch.end(sequence)
        self.waiting.left(sequence)

    def _keep_session(self, sequence: Sequence) -> None:
        """What a conversation has computed stays findable for its next turn."""
        if sequence.request.session is not None and sequence.blocks is not None:
            self.publish(sequence)
            self.ledger.sessions.keep(sequence.request.session, sequence.digests[: sequence.blocks.published])

    # -- a step: planned, then committed or abandoned ------------------------------------------------------------

    def plan(
        self, bounds: StepBounds | None = None, drafts: Mapping[Sequence, tuple[int, ...]] | None = None
    ) -> StepPlan:
        """The next step. Empty when nothing can run before a launched step has been read back.

        `drafts` are for requests all of whose tokens have been read; the step must be read before the next is planned.
        """
        if self._step is not None:  # nobody tried to launch it: an error came between
            self._take_back()
        bounds = bounds or StepBounds(self.limits.max_batch_tokens)
        self._step = PendingStep(bounds, drafts or {}, bounds.tokens)
        try:
            plan = self._fill(self._step)
            if not plan:
                self._step = None
        except BaseException:
            self._take_back()
            raise
        return plan

    def _fill(self, step: PendingStep) -> StepPlan:
        self.prefill.plan_blocked(step, allowed=not self._decode.left_out)
        self._decode.plan(step)
        self.prefill.plan(step)
        decodes, drafts = step.decodes, tuple[DraftTokens, ...]()
        if step.drafts and not step.admitted and len(self.running) <= self.limits.max_drafted:
            step.drafting = [sequence for sequence in decodes if sequence in step.drafts]
            decodes, drafts = plan_drafts(decodes, step.drafts, step.budget, self.ledger, self.batch.snapshots)
        return StepPlan(
            tuple(decodes),
            tuple([sequence.slot for sequence in decodes if sequence.slot is not None]),
            tuple([sequence.computed + 1 for sequence in decodes]),
            tuple(step.chunks),
            drafts,
        )

    def commit(self, plan: StepPlan) -> None:
        """The step was launched: its tokens count as computed from now on, since the device works in order."""
        step, snapshots = self._step, self.batch.snapshots
        assert step is not None
        for departure in step.admitted:
            self._started(departure.sequence)
        self._step = None
        self.ledger.commit()
        for sequence in plan.decodes:
            sequence.computed += 1
            sequence.unseen += 1
        self.waiting.charge_decodes(plan.decodes)
        self.forecast.stepped(len(plan.decodes), step.ready)
        for chunk in plan.chunks:
            sequence = chunk.sequence
            sequence.computed = chunk.start + chunk.length
            if snapshots is not None:
                snapshots.free(sequence)  # it has been copied back
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

    def _started(self, sequence: Sequence) -> None:
        """What a request was found with is not needed any more, nor a copy that the launched step copies back."""
        sequence.finding = None
        if sequence.host_copy is not None:
            self.host_copies.came_back(sequence, self.ledger)

    def abandon(self, plan: StepPlan) -> None:
        """The step failed while it was launched: every request is as before, or preempted."""
        self._take_back()
        if self.limits.has_states:  # which the failed step may have updated
            touched = {id(sequence) for sequence in plan.sequences}
            for sequence in reversed([one for one in self.running if id(one) in touched]):
                self.batch.preempt(sequence, intact=False)

    def _take_back(self) -> None:
        """Undo what planning has done so far, except for preemptions."""
        step, snapshots = self._step, self.batch.snapshots
        assert step is not None
        self.batch.finish_preemption()
        for departure in reversed(step.admitted):
            self.batch.take_back(departure)
        if snapshots is not None:
            for sequence in step.drafting:
                snapshots.free(sequence)
        self._step = None
        self.ledger.rollback()

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
        self.batch.move(ledger)
        self._step = None
        self.prefill.forget_blocked()

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
        if self.batch.snapshots is not None:
            if accepted < len(draft.tokens):
                sequence.computed -= accepted + 1  # where its snapshot was taken
                sequence.drawn_on_device = False
            else:
                self.batch.snapshots.free(sequence)
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
            digests = sequence.digests[: known // size]
            self.ledger.publish(sequence.blocks, digests)
            if (events := self.ledger.main_pool_events) is not None:
                events.described(digests, sequence.tokens)

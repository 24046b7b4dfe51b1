"""Which tokens of which requests make up the next step.

Continuous batching, first come first served: every running request that generates gets its token, prompts get what is
left of the step in chunks, waiting requests are admitted while `guard` says so. When blocks run out, the request that
was admitted last gives way and is computed again later. Steps may be planned ahead: what a launched step draws is
counted (`Sequence.unseen`) before it is known.

Knows nothing of tensors, time or text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from brim.engine.kv.digests import extend_digests
from brim.engine.kv.ledger import KvLedger
from brim.engine.requests.request import FinishReason
from brim.engine.requests.sequence import Sequence
from brim.engine.schedule.plan import Chunk, StepPlan
from brim.guard.admission import AdmissionView, Decision, admit


@dataclass(frozen=True, slots=True)
class Limits:
    """What a step and a request may be at most."""

    max_batch: int
    max_batch_tokens: int
    reuse_prefixes: bool = True


class Scheduler:
    """The waiting, the running, and the blocks they hold."""

    def __init__(
        self,
        ledger: KvLedger,
        limits: Limits,
        policy: Callable[[AdmissionView], Decision] = admit,
        can_fork: bool = True,
    ) -> None:
        self.ledger = ledger
        self.limits = limits
        self.policy = policy
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in the order of admission
        self.preemptions = 0
        self._free_slots = list(range(limits.max_batch - 1, -1, -1))
        self._can_fork = can_fork and all(group.window is None for group in ledger.groups)
        self._by_id: dict[str, Sequence] = {}
        # Where in a block a request's next token lies when a window leaves another block behind.
        self._passing = {(group.window - 1) % ledger.block_size for group in ledger.groups if group.window is not None}

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def submit(self, sequence: Sequence) -> None:
        self._by_id[sequence.request.id] = sequence
        self.waiting.append(sequence)

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a request, wherever it is; everything it holds goes back at once."""
        if sequence.finish is not None:
            return
        sequence.finish = reason
        del self._by_id[sequence.request.id]
        if sequence.slot is None:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
            self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        assert sequence.blocks is not None
        assert sequence.slot is not None
        self.ledger.close(sequence.blocks)
        self._free_slots.append(sequence.slot)
        sequence.blocks = sequence.slot = None

    # -- planning ------------------------------------------------------------------------------------------------

    def plan(self) -> StepPlan:
        """The next step. Empty when nothing can run before a launched step has been read back."""
        budget = self.limits.max_batch_tokens
        decodes = self._plan_decodes(budget)
        budget -= len(decodes)
        chunks: list[Chunk] = []
        for sequence in list(self.running):
            if budget == 0:
                break
            if sequence.drawn_on_device or sequence.slot is None:
                continue
            if not sequence.complete and sequence.computed < sequence.length:
                chunk = self._plan_chunk(sequence, budget)
                if chunk:
                    chunks.append(chunk)
                    budget -= chunk.length
        while budget > 0 and self.waiting:
            chunk = self._admit_next(budget)
            if chunk is None:
                break
            chunks.append(chunk)
            budget -= chunk.length
        plan = StepPlan(
            tuple(decodes),
            tuple([sequence.slot for sequence in decodes if sequence.slot is not None]),
            tuple([sequence.computed + 1 for sequence in decodes]),
            tuple(chunks),
        )
        self._count_launched(plan)
        return plan

    def _plan_decodes(self, budget: int) -> list[Sequence]:
        size = self.ledger.block_size
        decodes: list[Sequence] = []
        for sequence in list(self.running):
            position = sequence.computed
            length = len(sequence.tokens) + sequence.unseen
            # `decoding` and not `complete`, written out: this is asked of every request in every step.
            if not sequence.drawn_on_device or position != length - 1 or length >= sequence.longest:
                continue
            if len(decodes) == budget:
                break
            # Only the first token of a block can need anything of the pools: forks get copies when they are admitted.
            if position % size == 0 and not self._reserve_or_preempt(sequence, position, position + 1, decodes):
                continue
            decodes.append(sequence)
        return decodes

    def _reserve_or_preempt(self, sequence: Sequence, start: int, end: int, keep: list[Sequence]) -> bool:
        """Room for these tokens, at the price of whoever was admitted last; False if that is the sequence itself."""
        blocks = sequence.blocks
        assert blocks is not None
        while not self.ledger.reserve(blocks, start, end):
            victim = self.running[-1]
            if victim in keep:
                return False
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._release(sequence)
        sequence.computed = sequence.reused = 0
        sequence.drawn_on_device = False
        sequence.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(sequence)

    def _plan_chunk(self, sequence: Sequence, budget: int) -> Chunk | None:
        start = sequence.computed
        length = self.whole_spans(sequence, start, min(sequence.length - start, budget))
        assert sequence.slot is not None
        if length == 0 or not self._reserve_chunk(sequence, start, start + length):
            return None
        return Chunk(sequence, sequence.slot, start, length, draws=start + length == sequence.length)

    def _reserve_chunk(self, sequence: Sequence, start: int, end: int) -> bool:
        """Room for a chunk, at the price of those admitted later."""
        blocks = sequence.blocks
        assert blocks is not None
        while not self.ledger.reserve(blocks, start, end):
            victim = self.running[-1]
            if victim is sequence or victim.decoding:
                return False
            self._preempt(victim)
        return True

    @staticmethod
    def whole_spans(sequence: Sequence, start: int, length: int) -> int:
        """Shorten a chunk that would cut through tokens that must be computed together."""
        end = start + length
        for span in sequence.request.spans:
            if span.together and span.start < end < span.end:
                return max(0, span.start - start)
        return length

    # -- admission -----------------------------------------------------------------------------------------------

    def _admit_next(self, budget: int) -> Chunk | None:
        sequence = self.waiting[0]
        if sequence.unseen:
            return None  # its last token is still on the device
        parent = self._parent(sequence)
        if parent is not None and parent.computed < parent.prompt_length:
            return None
        if not self.policy(self._view(sequence)).admit:
            return None
        self.waiting.popleft()
        sequence.slot = self._free_slots.pop()
        self.running.append(sequence)
        if parent is not None:
            assert parent.blocks is not None
            sequence.computed = sequence.reused = sequence.prompt_length - 1
            sequence.blocks = self.ledger.fork(parent.blocks, sequence.slot, sequence.prompt_length)
        else:
            sequence.blocks = self.ledger.open(sequence.slot)
            self._reuse(sequence)
        chunk = self._plan_chunk(sequence, budget)
        if chunk is None:
            self._preempt(sequence)
            self.preemptions -= 1  # it had not begun
            sequence.preemptions -= 1
        return chunk

    def _parent(self, sequence: Sequence) -> Sequence | None:
        """The running request whose blocks a fresh fork may share."""
        fork_of = sequence.request.fork_of
        if fork_of is None or not self._can_fork or len(sequence.tokens) > sequence.prompt_length:
            return None
        if sequence.request.params.prompt_logprobs is not None:
            return None  # every answer reports them, so every one computes its prompt
        parent = self._by_id.get(fork_of)
        return parent if parent is not None and parent.slot is not None else None

    def _reuse(self, sequence: Sequence) -> None:
        """Begin behind the longest prefix that is in the pool; the last token is always computed."""
        if not self.limits.reuse_prefixes or sequence.request.params.prompt_logprobs is not None:
            return
        size = self.ledger.block_size
        extend_digests(sequence.digests, sequence.tokens, size, sequence.request.salt)
        usable = (len(sequence.tokens) - 1) // size
        count = self.ledger.longest_prefix(sequence.digests[:usable])
        while count and self.whole_spans(sequence, 0, count * size) != count * size:
            count -= 1
        assert sequence.blocks is not None
        self.ledger.reuse(sequence.blocks, sequence.digests[:count])
        sequence.computed = sequence.reused = count * size

    def _view(self, sequence: Sequence) -> AdmissionView:
        available = self.ledger.available()
        promised = [0] * len(available)
        for other in self.running:
            if not other.drawn_on_device and other.computed < len(other.tokens):
                for number, count in enumerate(self._blocks_ahead(other.computed, len(other.tokens))):
                    assert other.blocks is not None
                    held = len(other.blocks.tables[number]) - other.blocks.given_up[number]
                    promised[number] += max(0, count - held)
        return AdmissionView(
            needed=tuple(self._needed(sequence)),
            available=tuple(available),
            promised=tuple(promised),
            running=len(self.running),
            free_slots=len(self._free_slots),
        )

    def _needed(self, sequence: Sequence) -> list[int]:
        """Blocks of a whole prompt: all of it with full attention, a window and a step of it elsewhere."""
        return self._blocks_ahead(0, len(sequence.tokens) + 1)

    def _blocks_ahead(self, start: int, end: int) -> list[int]:
        """Blocks held at most while these tokens are computed: windows pass on from step to step."""
        return self.ledger.blocks_for(max(start, end - self.limits.max_batch_tokens), end)

    # -- accounting ----------------------------------------------------------------------------------------------

    def _count_launched(self, plan: StepPlan) -> None:
        """Everything planned counts as computed from here on: the device works in order."""
        for sequence in plan.decodes:
            sequence.computed += 1
            sequence.unseen += 1
        for chunk in plan.chunks:
            sequence = chunk.sequence
            sequence.computed = chunk.start + chunk.length
            if chunk.draws:
                sequence.unseen += 1
                sequence.drawn_on_device = True
            self.publish(sequence)  # before its window passes on: later steps find what this one will have written
        if self._passing:
            size = self.ledger.block_size
            passed = [sequence for sequence in plan.decodes if sequence.computed % size in self._passing]
            for sequence in [*passed, *(chunk.sequence for chunk in plan.chunks)]:
                assert sequence.blocks is not None
                self.ledger.give_up_behind(sequence.blocks, sequence.computed)

    def record(self, sequence: Sequence, token: int) -> bool:
        """A token that was read back. False: the request has ended in the meantime and the token is dropped."""
        if sequence.finish is not None:
            return False
        sequence.unseen -= 1
        sequence.tokens.append(token)
        return True

    def publish(self, sequence: Sequence) -> None:
        """Make what a request has computed findable for others."""
        if not self.limits.reuse_prefixes or sequence.blocks is None:
            return
        size = self.ledger.block_size
        known = min(sequence.computed, len(sequence.tokens))
        if known // size > sequence.blocks.published:
            extend_digests(sequence.digests, sequence.tokens, size, sequence.request.salt)
            self.ledger.publish(sequence.blocks, sequence.digests[: known // size])

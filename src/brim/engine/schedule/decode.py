"""The decodes of a step: one token for every request that generates, as far as the step has room.

In: the running requests. Out: those that get a token, with a block for it. Where blocks run out, the request that was
admitted last is preempted.
"""

from __future__ import annotations

from brim.engine.requests.sequence import Sequence
from brim.engine.schedule.batch import RunningBatch
from brim.engine.schedule.pending import PendingStep


class DecodePlanner:
    """Chooses the decodes of steps. `alike`: either all answers grow in a step or none."""

    def __init__(self, batch: RunningBatch, *, alike: bool) -> None:
        self._batch = batch
        self._alike = alike
        self.left_out = False  # some got no token in the last step: it had no room for them

    def plan(self, step: PendingStep) -> None:
        """Add the decodes."""
        batch, decodes, budget = self._batch, step.decodes, step.budget
        size = batch.ledger.block_size
        self.left_out = False
        if step.first is not None and self._alike and self._generating > budget:
            self.left_out = True  # all of them: no answer may fall behind the others, or ends come in another order
            return
        some_only, allow, ready = step.bounds.only is not None, step.bounds.allow, 0
        for sequence in list(batch.running):
            position = sequence.computed
            length = len(sequence.tokens) + sequence.unseen
            # `decoding` and not `complete`, inlined: this runs for every request in every step.
            if not sequence.drawn_on_device or position != length - 1 or length >= sequence.longest:
                continue
            if sequence.unseen and sequence.waits_to_be_read:
                continue
            ready += 1
            if some_only and not allow(sequence):
                continue
            if len(decodes) == budget:
                self.left_out = True
                break
            # Only the first token of a block can need anything of the pools: forks get copies when they are admitted.
            if position % size == 0 and not self._reserve(step, sequence, position):
                ready -= sequence.slot is None  # preempted itself: it has not fallen behind the others
                continue
            decodes.append(sequence)
        step.ready = ready
        step.budget = budget - len(decodes)

    @property
    def _generating(self) -> int:
        return sum(sequence.decoding and not sequence.complete for sequence in self._batch.running)

    def _reserve(self, step: PendingStep, sequence: Sequence, position: int) -> bool:
        """Reserve a block for a token, preempting the last admitted; False if that is the sequence itself."""
        batch, blocks = self._batch, sequence.blocks
        assert blocks is not None
        while not batch.ledger.reserve(blocks, position, position + 1):
            victim = batch.running[-1]
            if victim is step.first or victim in step.decodes:
                return False
            batch.preempt(victim)
            if victim is sequence:
                return False
        return True

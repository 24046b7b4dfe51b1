"""What the running requests will hold, kept up to date for the admission policy.

In: requests that start, leave and step. Out: an `AdmissionView` of a request that would like to start.

A request that generates grows by a token in every step, and ends when its answer is as long as expected (`growth`). One
whose prompt is being computed is counted as holding all blocks of it already, to grow from the next step on, and is not
counted on to end: when its answer begins is not known. Both are upper bounds. An answer that begins or ends changes the
sums at once, so that a decision finds them done; what a request shares is known later, and is brought up to date when
the next decision needs it.
"""

from __future__ import annotations

from collections.abc import Hashable

from brim.engine.kv.common_blocks import Shareable
from brim.engine.kv.ledger import KvLedger
from brim.engine.requests.sequence import Sequence
from brim.engine.schedule.candidate import AdmissionCandidate
from brim.errors import InvalidRequest
from brim.guard.admission import AdmissionSettings, AdmissionView
from brim.guard.future import NEVER, Claim, Future
from brim.units import ceil_div

_FEW, _MANY = 3, 32  # changes: more than a quarter of the batch, between these, and all sums are made again


class BlockForecast:
    """The blocks that running requests hold and will hold."""

    def __init__(self, ledger: KvLedger, settings: AdmissionSettings, max_batch: int, max_batch_tokens: int) -> None:
        self.growth = settings.growth()
        self._ledger = ledger
        self._max_batch = max_batch
        self._step_tokens = max_batch_tokens
        self._groups = [number for number in range(len(ledger.groups)) if self._can_run_out(number)]
        self._blocks = tuple(ledger.pools[number].blocks for number in self._groups)
        self._kept_free = settings.kept_free(self._blocks)
        self._future = Future(len(self._groups), ledger.block_size, room=max_batch + 1)
        self._step = 0  # steps in which the running answers grew
        self.membership_changes = 0  # of running requests
        self._running: dict[Hashable, Sequence] = {}  # by slot
        self._changed: set[Hashable] = set()  # slots
        self._out_of_step = False
        self._common = 0  # blocks that several requests hold, as far as they are counted

    # -- what happens --------------------------------------------------------------------------------------------

    def started(self, sequence: Sequence) -> None:
        assert sequence.slot is not None
        self._running[sequence.slot] = sequence
        self._changed.add(sequence.slot)
        self.membership_changes += 1

    def left(self, slot: int) -> None:
        self._running.pop(slot, None)
        self._renew(slot)
        self.membership_changes += 1

    def begins_to_answer(self, sequence: Sequence) -> None:
        """From the next step on it grows by a token in each."""
        assert sequence.slot is not None
        self._renew(sequence.slot)

    def grew(self, sequence: Sequence) -> None:
        """It got another number of tokens from a step than one."""
        assert sequence.slot is not None
        self._changed.add(sequence.slot)

    def stepped(self, decodes: int, ready: int) -> None:
        """A step was launched, with so many of the answers that could have grown."""
        self._step += decodes > 0
        if decodes != ready:
            self._out_of_step = True

    def move(self, ledger: KvLedger) -> None:
        """Nothing runs any more; what starts from now on holds blocks of another ledger of the same shape."""
        assert not self._running
        self._ledger = ledger
        self._changed.clear()
        self._future.replace_all({})

    # -- what that means -----------------------------------------------------------------------------------------

    @property
    def state(self) -> Hashable:
        """Changes when a request that could not start might be able to."""
        self._bring_up_to_date()
        return self._future.changes, self._step // self._ledger.block_size

    @property
    def steps(self) -> int:
        """Steps in which running answers grew."""
        return self._step

    @property
    def blocks(self) -> tuple[int, ...]:
        """Of each pool that can run out."""
        return self._blocks

    def final_blocks(self) -> tuple[int, ...]:
        """What the running requests hold of these pools when each is at its end, whichever ends first."""
        self._bring_up_to_date()
        return self._future.finals()

    def ends(self) -> list[tuple[int, int]]:
        """Steps to go, and blocks that are free then, of the running answers whose end is foreseen; soonest first."""
        self._bring_up_to_date()
        size, main = self._ledger.block_size, self._main_pool
        claims = [claim for slot in self._running if (claim := self._future.get(slot)) and claim.last < NEVER]
        return sorted(
            (max(0, claim.last - self._step), claim.held(claim.last, size)[main] if self._groups else 0)
            for claim in claims
        )

    def expected_blocks(self, sequence: Sequence) -> int:
        """What a waiting request will hold at most, of the pool that holds whole requests."""
        return self._claim(sequence, 0).most[self._main_pool] if self._groups else 0

    @property
    def _main_pool(self) -> int:
        """Among those that can run out."""
        unwindowed = self._ledger.unwindowed
        return self._groups.index(unwindowed) if unwindowed in self._groups else 0

    def check(self, sequence: Sequence) -> None:
        """Refuse a request that could not run alone."""
        worst = sequence.prompt_length + sequence.request.max_tokens - 1
        chunk = min(sequence.prompt_length, self._step_tokens)
        needed = [self._most_blocks(number, worst, chunk) for number in self._groups]
        for number, blocks, there in zip(self._groups, needed, self._blocks, strict=True):
            if blocks > there:
                raise InvalidRequest(
                    f"max_tokens {sequence.request.max_tokens} after a prompt of {sequence.prompt_length} tokens: "
                    f"needs {blocks} blocks of pool {number}, which has {there}; lower it, shorten the prompt, or "
                    "give the engine more kv_tokens"
                )

    def view(self, candidate: AdmissionCandidate, free_slots: int) -> AdmissionView:
        """A waiting request, as the policy sees it."""
        sequence = candidate.sequence
        shared = self._shareable(candidate)
        self._bring_up_to_date()
        claim = self._claim(sequence, shared.blocks)
        lasts = [owner.last for slot in shared.owners if (owner := self._future.get(slot)) is not None]
        return AdmissionView(
            needed=claim.most,
            peaks=self._future.peaks_with(claim, shared.owned, min(lasts, default=NEVER)),
            blocks=self._blocks,
            kept_free=self._kept_free,
            running=len(self._running),
            free_slots=free_slots,
        )

    def _shareable(self, candidate: AdmissionCandidate) -> Shareable:
        if candidate.parent is not None:
            assert candidate.parent.blocks is not None
            return self._ledger.forkable(candidate.parent.blocks, candidate.reused)
        return Shareable() if candidate.finding is None else self._ledger.shareable(candidate.finding, candidate.found)

    def _claim(self, sequence: Sequence, shared: int) -> Claim:
        """How a request grows, from the step that is planned next on."""
        length, step = len(sequence.tokens), self._step
        total = sequence.prompt_length + self.growth.tokens(sequence.generated, sequence.request.max_tokens)
        computed = max(total - 1, length)  # in the end: the last token is drawn, and not computed
        # A request that goes on from a snapshot computes its last tokens again.
        again = sequence.snapshot is not None and not sequence.drawn_on_device
        now = length - 1 if again else sequence.computed
        answers = again or sequence.drawn_on_device
        most = tuple(
            [
                self._most_blocks(number, computed, 1 if answers else min(length, self._step_tokens))
                for number in self._groups
            ]
        )
        common = self._by_group(shared)
        if answers:
            # It is read back, and its blocks are freed, one step after its last token was drawn.
            return Claim(now + 1 - step, step + computed - now, most, common)
        return Claim(length + 1 - step, NEVER, most, common)

    def _by_group(self, unwindowed: int) -> tuple[int, ...]:
        """Blocks of the group without a window, and none of the others."""
        return tuple([unwindowed if number == self._ledger.unwindowed else 0 for number in self._groups])

    def _most_blocks(self, number: int, tokens: int, chunk: int) -> int:
        """The most blocks that a request of so many tokens holds in a group, in chunks of at most so many."""
        size, window = self._ledger.block_size, self._ledger.groups[number].window
        blocks = ceil_div(tokens, size)
        return blocks if window is None else min(blocks, _touched(window - 1 + chunk, size))

    def _can_run_out(self, number: int) -> bool:
        """Whether a pool is too small for the windows of a full batch and the tokens of a step."""
        group, size = self._ledger.groups[number], self._ledger.block_size
        if group.window is None:
            return True
        tokens = self._max_batch * (group.window + 2 * size) + self._step_tokens
        return self._ledger.pools[number].blocks < ceil_div(tokens, size)

    # -- bringing the sums up to date ----------------------------------------------------------------------------

    def _bring_up_to_date(self) -> None:
        changed, commons = self._changed, self._ledger.commons
        changed |= commons.changed_slots
        commons.changed_slots.clear()
        overdue = self._future.ended_before(self._step)
        if self._out_of_step or len(changed) + len(overdue) > min(_MANY, max(_FEW, len(self._running) // 4)):
            self._rebuild()
        else:
            for slot in [*changed, *overdue]:
                self._renew(slot)
        changed.clear()
        self._out_of_step = False
        if len(commons) != self._common:
            self._common = len(commons)
            self._future.always = self._by_group(self._common)

    def _renew(self, slot: Hashable) -> None:
        known, sequence = self._future.get(slot), self._running.get(slot)
        claim = None if sequence is None else self._running_claim(sequence)
        self._changed.discard(slot)
        if known == claim:
            return
        if known is not None:
            self._future.remove(slot)
        if claim is not None:
            self._future.add(slot, claim)

    def _rebuild(self) -> None:
        claims: dict[Hashable, Claim] = {
            slot: self._running_claim(sequence) for slot, sequence in self._running.items()
        }
        self._future.replace_all(claims)

    def _running_claim(self, sequence: Sequence) -> Claim:
        assert sequence.blocks is not None
        return self._claim(sequence, sequence.blocks.common)


def _touched(tokens: int, block_size: int) -> int:
    """The most blocks that so many tokens in a row are in."""
    return (tokens + block_size - 2) // block_size + 1

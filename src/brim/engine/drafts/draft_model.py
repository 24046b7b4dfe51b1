"""Drafts by a smaller model of the same vocabulary, which goes on greedily from what the large one has said.

It has a runner, a KV pool and slots of its own, and follows the requests that drafts are asked for. Its keys and values
are of tokens in their places: when a draft was rejected, those of the accepted tokens stay, and the next draft begins
behind them. A long prompt is computed over several steps, and there are no drafts until it is; a request that the pool
has no room for gets none.

Does not see images: requests with media get no drafts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from brim.engine.kv.ledger import KvLedger
from brim.engine.requests.params import SamplingParams
from brim.engine.requests.request import Request
from brim.engine.requests.sequence import Sequence
from brim.engine.run.launched import Launched
from brim.engine.run.runner import Runner
from brim.engine.schedule.plan import NO_DRAFT, Chunk, DraftTokens, StepPlan

_GREEDY = SamplingParams(temperature=0.0)
AS_ROWS = 2  # tokens up to which what is missing is computed in the kernels and graphs of decodes: a whole draft stood


@dataclass(slots=True, eq=False)
class _Follower:
    """A request, as the draft model knows it."""

    slot: int
    shadow: Sequence  # its text, to be gone on with greedily
    computed: int = 0  # tokens whose keys and values are in the pool
    drafted: tuple[int, ...] = field(default=())  # behind them: those of the last draft

    def catch_up(self) -> None:
        """Count the tokens of the last draft that have become part of the text."""
        for place, token in enumerate(self.drafted, self.computed):
            if place >= self.length - 1 or self.shadow.tokens[place] != token:
                break
            self.computed += 1
        self.drafted = ()
        self.computed = min(self.computed, self.length - 1)  # the last one is recomputed if nothing is new

    @property
    def length(self) -> int:
        return len(self.shadow.tokens)

    @property
    def missing(self) -> int:
        return self.length - self.computed


class DraftModel:
    """A model that drafts for up to as many requests as its runner has slots."""

    def __init__(self, runner: Runner, ledger: KvLedger, vocab: int) -> None:
        self._runner = runner
        self._ledger = ledger
        self._vocab = vocab
        self._followers: dict[Sequence, _Follower] = {}
        self._free_slots = list(range(runner.shape.max_batch - 1, -1, -1))

    def has_one(self, sequence: Sequence) -> bool:
        return sequence.request.media is None

    def propose(self, depths: Mapping[Sequence, int]) -> dict[Sequence, tuple[int, ...]]:
        try:
            return self._propose(depths)
        except BaseException:  # whatever it was: what the pool holds is not known any more
            self._start_over()
            raise

    def is_predicted(self, sequence: Sequence) -> bool:
        return False

    def forget(self, sequence: Sequence) -> None:
        if sequence in self._followers:
            self._drop(sequence)

    # -- a draft -------------------------------------------------------------------------------------------------

    def _propose(self, depths: Mapping[Sequence, int]) -> dict[Sequence, tuple[int, ...]]:
        self._runner.capture_again()  # if graphs failed: there are drafts again
        known: dict[Sequence, tuple[_Follower, int]] = {}
        for sequence, depth in depths.items():
            follower = self._follow(sequence)
            if follower is not None and self._reserve(follower, depth):
                known[sequence] = follower, depth
            elif follower is not None:
                self._drop(sequence)
        launched = self._catch_up([follower for follower, _ in known.values()])
        wanted = {sequence: one for sequence, one in known.items() if not one[0].missing}
        if launched is None or not wanted:
            return {}
        drawn = self._go_on(list(wanted.values()), launched)
        return {sequence: self._settled(follower, drawn[follower]) for sequence, (follower, _) in wanted.items()}

    def _follow(self, sequence: Sequence) -> _Follower | None:
        """The follower of a request; None if it cannot have one."""
        follower = self._followers.get(sequence)
        if follower is None:
            if sequence.request.media is not None or not self._free_slots:
                return None
            slot = self._free_slots.pop()
            request = Request(sequence.request.id, sequence.request.prompt, _GREEDY, 0, sequence.request.max_tokens)
            shadow = Sequence(request, sequence.tokens, slot=slot, blocks=self._ledger.open(slot))
            follower = self._followers[sequence] = _Follower(slot, shadow)
        follower.catch_up()
        if max(follower.shadow.tokens[follower.computed :]) >= self._vocab:
            return None  # a row of the large model's vocabulary that no text has
        return follower

    def _reserve(self, follower: _Follower, depth: int) -> bool:
        """Blocks for all tokens that it does not know, and for those of a draft but the last."""
        assert follower.shadow.blocks is not None
        return self._ledger.reserve(follower.shadow.blocks, follower.computed, follower.length + depth - 1)

    def _catch_up(self, followers: list[_Follower]) -> Launched | None:
        """Compute what is missing, as far as a step goes, the shortest first; it draws behind what is then complete."""
        rows: list[_Follower] = []
        chunks: list[Chunk] = []
        budget = self._runner.shape.max_batch_tokens
        for follower in sorted(followers, key=lambda one: one.missing):
            length = min(follower.missing, budget)
            budget -= length
            if length == follower.missing <= AS_ROWS and follower.computed:
                rows.append(follower)
            elif length:
                chunks.append(
                    Chunk(follower.shadow, follower.slot, follower.computed, length, draws=length == follower.missing)
                )
        if not rows and not chunks:
            return None
        launched = self._launch(_as_plan(rows, chunks), {one.slot: one.shadow.tokens[one.computed] for one in rows})
        lengths = {chunk.slot: chunk.length for chunk in chunks} | {one.slot: one.missing for one in rows}
        for follower in followers:
            follower.computed += lengths.get(follower.slot, 0)
        return launched

    def _go_on(self, wanted: list[tuple[_Follower, int]], first: Launched) -> dict[_Follower, list[int]]:
        """The tokens of all drafts; `first` draws their first ones. They are read when the last has been queued."""
        steps: list[tuple[list[_Follower], Launched]] = []
        for number in range(1, max((depth for _, depth in wanted), default=0)):
            going = [follower for follower, depth in wanted if depth > number]
            plan = StepPlan(
                tuple(one.shadow for one in going),
                tuple(one.slot for one in going),
                tuple(one.length + number for one in going),
                (),
            )
            steps.append((going, self._launch(plan, {})))
        begun = _last_tokens(first)
        drawn = {follower: [begun[follower.shadow]] for follower, _ in wanted}
        for going, launched in steps:
            for follower, token in zip(going, launched.tokens(), strict=True):
                drawn[follower].append(token)
        self._runner.forget_drawn()
        return drawn

    def _launch(self, plan: StepPlan, known: Mapping[int, int]) -> Launched:
        self._runner.go_on_from(known)
        launched = self._runner.launch(plan, self._ledger)
        self._ledger.commit()
        self._runner.accept_all(launched)
        return launched

    def _settled(self, follower: _Follower, drawn: list[int]) -> tuple[int, ...]:
        """A draft, all tokens of which but the last have been computed."""
        assert follower.shadow.blocks is not None
        follower.drafted = tuple(drawn[:-1])
        self._ledger.give_up_behind(follower.shadow.blocks, follower.length)
        return tuple(drawn)

    # -- coming and going ----------------------------------------------------------------------------------------

    def _drop(self, sequence: Sequence) -> None:
        follower = self._followers.pop(sequence)
        assert follower.shadow.blocks is not None
        self._ledger.close(follower.shadow.blocks)
        self._free_slots.append(follower.slot)

    def _start_over(self) -> None:
        self._runner.forget_drawn()
        if self._runner.graphs_failed:
            self._runner.drop_graphs()
        self._ledger.rollback()
        for sequence in list(self._followers):
            self._drop(sequence)


def _as_plan(rows: list[_Follower], chunks: list[Chunk]) -> StepPlan:
    """One step: followers that lack a few tokens as decodes, whose further tokens are drafts; then the chunks."""
    ordered = sorted(rows, key=lambda one: one.missing > 1)
    drafts = tuple(DraftTokens(tuple(one.shadow.tokens[one.computed + 1 :])) for one in ordered)
    return StepPlan(
        tuple(one.shadow for one in ordered),
        tuple(one.slot for one in ordered),
        tuple(one.computed + 1 for one in ordered),
        tuple(chunks),
        drafts if any(draft != NO_DRAFT for draft in drafts) else (),
    )


def _last_tokens(launched: Launched) -> dict[Sequence, int]:
    """What was drawn behind the last token of each text."""
    tokens, last_rows = launched.tokens(), launched.plan.last_rows
    return {sequence: tokens[row] for sequence, row in zip(launched.plan.drawing, last_rows, strict=True)}

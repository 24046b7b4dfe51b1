"""A runner on the simulated device: checks every plan, and fails when told to, leaving behind what a step may leave."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from brim.engine.kv.ledger import KvLedger
from brim.engine.kv.request_blocks import RequestBlocks
from brim.engine.requests.request import Request
from brim.engine.requests.sequence import Sequence
from brim.engine.schedule.plan import NO_DRAFT, Chunk, StepLimits, StepPlan
from tests.unit.engine.schedule.simulated_device import SimulatedDevice, next_token


class Failed(Exception):
    """A step that was made to fail."""


@dataclass
class Done:
    """A step that has been run; what it drew, in the order of the plan."""

    plan: StepPlan
    drawn: dict[int, list[int]] = field(default_factory=dict)  # by slot: a token, and one for each that was drafted
    texts: dict[Sequence, tuple[RequestBlocks, list[int]]] = field(default_factory=dict)
    sampled: None = None
    read_first: bool = False
    prompt: dict[int, Any] = field(default_factory=dict)

    def tokens(self) -> list[int]:
        return [token for tokens in self.drawn.values() for token in tokens]


class CheckingRunner:
    """Runs plans on the simulated device at once, as a device does in its own order, and checks every plan."""

    def __init__(self, ledger: KvLedger, limits: StepLimits, fails: Callable[[], bool] = lambda: False) -> None:
        self.device = SimulatedDevice(ledger)
        self.ledger = ledger
        self.limits = limits
        self.fails = fails
        self.texts: dict[Sequence, tuple[RequestBlocks, list[int]]] = {}  # what the device has, and in which residency
        self.states = self.device.states
        self.accepted: dict[int, int] = {}  # by slot: what the last step that counts has drawn
        self.computed = 0  # tokens
        self.verified: set[Sequence] = set()  # had a draft

    def launch(self, plan: StepPlan, ledger: KvLedger) -> Done:
        self._check(plan)
        if self.fails():
            self._fail(plan)
        self.device.last_token.update(self.accepted)
        self.device.follow()
        # As where the device has no room for the tokens that penalties look at.
        needs_history = any(sequence.needs_history for sequence in plan.drawing)
        done = Done(plan, read_first=needs_history or bool(plan.drafts))
        self._copy_states(plan)
        drafts = plan.drafts or (NO_DRAFT,) * len(plan.decodes)
        for sequence, slot, length, draft in zip(plan.decodes, plan.slots, plan.lengths, drafts, strict=True):
            text = [*self._known(sequence), self.device.last_token[slot]]
            assert len(text) == length, "a token was left out, or computed twice"
            done.drawn[slot] = [self._run(done, sequence, slot, text, length - 1)]
            for token in draft.tokens:
                text = [*text, token]
                done.drawn[slot].append(self._run(done, sequence, slot, text, len(text) - 1))
            done.texts[sequence] = done.texts[sequence][0], text[:length]
        for chunk in plan.chunks:
            self._run_chunk(done, chunk)
        if self.fails():
            self._fail(plan)
        return done

    def accept(self, launched: Done) -> None:
        self.accepted = {} if launched.plan.drafts else {slot: one for slot, (one,) in launched.drawn.items()}
        self.texts |= launched.texts
        self.computed += launched.plan.tokens
        drafted = [one for one, draft in launched.plan.drawn_rows if draft.tokens]
        self.verified.update(drafted)
        certain = [one for one in launched.plan.sequences if one not in drafted]
        for sequence in certain:  # what no later token sees has been given up, and nothing else
            assert sequence.blocks is not None
            first = [
                group.first_block_needed(sequence.computed, self.ledger.block_size) for group in self.ledger.groups
            ]
            assert sequence.blocks.given_up == first

    def go_on_from(self, tokens: Mapping[int, int]) -> None:
        """What was accepted of the drafts of the last step is part of the texts from now on."""
        self.device.last_token.update(tokens)

    def _check(self, plan: StepPlan) -> None:
        assert 0 < plan.tokens <= self.limits.max_batch_tokens
        slots = [*plan.slots, *(chunk.slot for chunk in plan.chunks)]
        assert len(slots) == len(set(slots)) <= self.limits.max_batch
        assert len(plan.decodes) == len(plan.slots) == len(plan.lengths)
        assert len(plan.drafts) in (0, len(plan.decodes))
        assert not plan.drafts or len(slots) <= self.limits.max_drafted
        assert [bool(draft.tokens) for draft in plan.drafts] == sorted(bool(draft.tokens) for draft in plan.drafts)

    def _fail(self, plan: StepPlan) -> NoReturn:
        """Leave as much behind as a step can: tables that were heard of, nonsense where it was to write."""
        self.device.follow()
        drafts = plan.drafts or (NO_DRAFT,) * len(plan.decodes)
        for slot, length, draft in zip(plan.slots, plan.lengths, drafts, strict=True):
            self.device.spoil(slot, length - 1, length + len(draft.tokens))
        for chunk in plan.chunks:
            self.device.spoil(chunk.slot, chunk.start, chunk.start + chunk.length)
        for slot in (*plan.slots, *(chunk.slot for chunk in plan.chunks)):
            self.states[slot] = [-1]
        raise Failed

    def _copy_states(self, plan: StepPlan) -> None:
        for slot, draft in zip(plan.slots, plan.drafts, strict=False):
            assert (draft.snapshot is not None) == (self.limits.has_states and bool(draft.tokens))
            if draft.snapshot is not None:
                self.states[draft.snapshot] = list(self.states[slot])
        for chunk in plan.chunks:
            if chunk.state_from is not None:
                self.states[chunk.slot] = list(self.states[chunk.state_from])
            elif chunk.start == 0:
                self.states[chunk.slot] = []

    def _run_chunk(self, done: Done, chunk: Chunk) -> None:
        sequence = chunk.sequence
        assert chunk.length > 0
        known = self._known(sequence)
        assert len(known) == chunk.start, "chunks follow one another"
        text = known + sequence.tokens[chunk.start : chunk.start + chunk.length]
        assert len(text) == chunk.start + chunk.length, "all tokens of a chunk are known"
        _check_spans(sequence.request, chunk.start, len(text))
        token = self._run(done, sequence, chunk.slot, text, chunk.start)
        assert chunk.draws == (len(text) == len(sequence.tokens))
        if chunk.draws:
            done.drawn[chunk.slot] = [token]

    def _known(self, sequence: Sequence) -> list[int]:
        """What has been computed since the request got its blocks; what it found there, if that is just now."""
        blocks, text = self.texts.get(sequence, (None, []))
        if blocks is not sequence.blocks:
            return sequence.tokens[: sequence.computed]
        if sequence in self.verified and not sequence.unseen:  # accepted, and not taken back: computed
            return sequence.tokens[: sequence.computed]
        return text

    def _run(self, done: Done, sequence: Sequence, slot: int, text: list[int], start: int) -> int:
        self.device.compute(slot, text, start)
        assert sequence.blocks is not None
        done.texts[sequence] = sequence.blocks, text
        if self.limits.has_states:
            assert self.states[slot] == text[:start], "a state goes on from where it is"
            self.states[slot] = list(text)
        return next_token(text, sequence.request.seed)


def _check_spans(request: Request, start: int, end: int) -> None:
    for span in request.spans:
        assert not (span.together and (start < span.end) and (span.start < start or span.start < end < span.end))

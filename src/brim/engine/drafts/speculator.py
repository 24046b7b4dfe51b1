"""Decides before every step who is speculated for and how far, and learns from what was accepted.

In: the scheduler's requests and its forecast. Out: a draft for each request that has one. The serving loop asks twice:
`worthwhile` looks at what has been read so far, so that steps overlap as long as nobody has a draft; `propose` needs
every token, so what was launched is read before it.

Requests that ask not to be speculated for, and those with penalties, are left alone: a penalty looks at the tokens
before, and those of a draft may not stand.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from brim.engine.drafts.proposer import Proposer
from brim.engine.drafts.weighing import FittedLimit, batch_load
from brim.engine.requests.sequence import Sequence
from brim.engine.schedule.scheduler import Scheduler
from brim.guard.speculation import (
    OPEN,
    Acceptance,
    BatchView,
    SpeculationGate,
    SpeculationSettings,
    decide,
    depth_for,
    weight_of,
)
from brim.units import ceil_div

_WEIGHED_EVERY = 64  # steps: what running requests are expected to hold changes slowly
_TRIED_AGAIN = 32  # tokens after which a request whose drafts were rejected gets one again

Drafts = dict[Sequence, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class SpeculationFigures:
    """What was drafted so far, and whether more is."""

    open: bool
    reason: str
    proposed: int = 0  # drafted tokens that were verified
    accepted: int = 0
    steps: int = 0  # with drafts
    depth: float = 0.0  # tokens of a draft, on average
    closed_for_batch: int = 0  # how often the gate was closed, by what closed it
    closed_for_weight: int = 0
    closed_for_memory: int = 0

    @property
    def rate(self) -> float:
        """The part of the drafted tokens that was accepted."""
        return self.accepted / self.proposed if self.proposed else 0.0

    def to_json(self) -> dict[str, Any]:
        """The figures with stable keys."""
        return {**asdict(self), "rate": self.rate}


@dataclass(slots=True)
class _Request:
    """What is known of a request's drafts."""

    acceptance: Acceptance = field(default_factory=Acceptance)
    rests_until: int = 0  # its length from which on it gets drafts again


class Speculator:
    """The gate, the drafts, and what became of them."""

    def __init__(self, proposer: Proposer, settings: SpeculationSettings, vocab: int) -> None:
        self.settings = settings
        self.gate: SpeculationGate = OPEN
        self._proposer = proposer
        self._vocab = vocab
        self._known: dict[Sequence, _Request] = {}
        self._weight = 0.0
        self._fitted: FittedLimit | None = None
        self._weighed: tuple[int, int] | None = None  # starts and ends so far, and steps, when it was weighed
        self._proposed = self._accepted = self._drafts = self._steps = 0
        self._closed = dict.fromkeys(("batch", "weight", "memory"), 0)

    def weigh_by(self, fitted: FittedLimit | None) -> None:
        """Weigh batches by the laws of a fit too; None: by their blocks alone."""
        self._fitted, self._weighed = fitted, None

    @property
    def figures(self) -> SpeculationFigures:
        return SpeculationFigures(
            open=self.gate.open,
            reason=self.gate.reason,
            proposed=self._proposed,
            accepted=self._accepted,
            steps=self._steps,
            depth=self._proposed / self._drafts if self._drafts else 0.0,
            closed_for_batch=self._closed["batch"],
            closed_for_weight=self._closed["weight"],
            closed_for_memory=self._closed["memory"],
        )

    # -- before a step -------------------------------------------------------------------------------------------

    def worthwhile(self, scheduler: Scheduler, calm: bool) -> bool:
        """Whether the gate is open and somebody has a draft."""
        if not self._open(scheduler, calm):
            return False
        return any(self._depth(one) and self._proposer.has_one(one) for one in scheduler.running)

    def propose(self, scheduler: Scheduler) -> Drafts:
        """Drafts for running requests, all of whose tokens have been read."""
        depths = {one: depth for one in scheduler.running if not one.unseen and (depth := self._depth(one))}
        if not depths:
            return {}
        found = self._proposer.propose(depths)
        return {sequence: draft for sequence, tokens in found.items() if (draft := self._in_vocabulary(tokens))}

    def _open(self, scheduler: Scheduler, calm: bool) -> bool:
        """Decide about the gate. A batch that is too large need not be weighed."""
        requests = len(scheduler.running)
        if calm and requests <= self.settings.max_batch:
            self._weigh(scheduler)
        before = self.gate
        self.gate = decide(BatchView(requests, self._weight, calm), before, self.settings)
        if before.open and not self.gate.open:
            self._closed[str(self.gate.cause)] += 1
        return self.gate.open

    def _weigh(self, scheduler: Scheduler) -> None:
        forecast = scheduler.forecast
        now = forecast.membership_changes, forecast.steps // _WEIGHED_EVERY
        if now == self._weighed:
            return
        self._weighed = now
        depth, size = self.settings.depth, scheduler.ledger.block_size
        finals = forecast.final_blocks()
        self._weight = weight_of(finals, len(scheduler.running) * ceil_div(depth, size), forecast.blocks)
        if self._fitted is not None:
            tokens = max(finals, default=0) * size
            load = batch_load(scheduler.running, tokens, depth, self._fitted.step_tokens, size)
            self._weight = max(self._weight, self._fitted.share(load))
        self._forget_ended()

    def _depth(self, sequence: Sequence) -> int:
        """How many tokens may be drafted for a request now."""
        if not sequence.speculated or not sequence.decoding:
            return 0
        room = sequence.longest - sequence.length - 1
        if room <= 0:
            return 0
        known = self._known.get(sequence)
        if known is None:
            known = self._known[sequence] = _Request()
        if sequence.length < known.rests_until:
            return 0
        return min(room, max(1, depth_for(known.acceptance.rate, self.settings.depth)))

    def _in_vocabulary(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Up to a token that only stands for an image."""
        for place, token in enumerate(tokens):
            if not 0 <= token < self._vocab:
                return tokens[:place]
        return tokens

    def _forget_ended(self) -> None:
        for sequence in [one for one in self._known if one.slot is None]:
            del self._known[sequence]
            self._proposer.forget(sequence)

    # -- after a step --------------------------------------------------------------------------------------------

    def stepped(self) -> None:
        """A step with drafts has been read."""
        self._steps += 1

    def learn(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """So many of the tokens drafted for a request stand."""
        self._drafts += 1
        self._proposed += drafted
        self._accepted += accepted
        if self._proposer.is_predicted(sequence):
            sequence.predicted += drafted
            sequence.predicted_accepted += accepted
        known = self._known.get(sequence)
        if known is None:
            return
        known.acceptance = known.acceptance.after(drafted, accepted)
        if depth_for(known.acceptance.rate, self.settings.depth) == 0:
            known.rests_until = sequence.length + _TRIED_AGAIN

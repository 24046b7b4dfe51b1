"""Whether a batch is speculated for, and how many tokens are drafted: pure functions of records.

Drafted tokens are computed beside the certain ones. That is free while a step waits for the weights to be read, and
costs time once the batch is large enough to keep the device busy; and until they are accepted they hold blocks. So the
gate is open while the batch is small, and while its weight leaves room.

The weight of a batch is what its requests hold when each is at its end, with the drafted tokens, as a share of the
limit. No request is counted on to end before another: those that are speculated for grow faster than the others, so
nothing is known about the order of their ends. Hence whatever is accepted, blocks do not run out for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import floor, log

from brim.errors import InvalidRequest
from brim.units import ceil_div

_REOPENS_AT = 0.9  # of the weight at which the gate closes
_BATCH_STEPS = 8  # a gate closed by the batch opens an eighth below its limit, and for a single request
_WORTH = 0.25  # a drafted token is worth its row if it is accepted this often
_PRIOR_RATE, _PRIOR_TOKENS = 0.7, 2.0  # what is known of a request before anything was drafted for it
_MEMORY = 0.9  # how much of what is known stays with each further step
_MOST_DEPTH = 32


@dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """When to speculate, and how far."""

    max_batch: int = 16  # requests
    max_weight: float = 0.75  # of the limit
    depth: int = 7  # most tokens that are drafted for a request and step

    def __post_init__(self) -> None:
        if not _is_int(self.max_batch) or self.max_batch < 1:
            raise InvalidRequest(f"speculate_max_batch is {self.max_batch!r}; it must be an integer, at least 1")
        if isinstance(self.max_weight, bool) or not isinstance(self.max_weight, (int, float)):
            raise InvalidRequest(f"speculate_max_weight is {self.max_weight!r}; it must be a number")
        if not 0 < self.max_weight <= 1:
            raise InvalidRequest(f"speculate_max_weight is {self.max_weight!r}; it must be above 0 and at most 1")
        if not _is_int(self.depth) or not 1 <= self.depth <= _MOST_DEPTH:
            raise InvalidRequest(f"draft_tokens is {self.depth!r}; it must be an integer from 1 to {_MOST_DEPTH}")


class GateCause(StrEnum):
    """What decided about the gate."""

    FITS = "fits"
    BATCH = "batch"  # more requests run than are speculated for
    WEIGHT = "weight"  # the batch will hold too much
    MEMORY = "memory"  # a step ran out of memory lately


@dataclass(frozen=True, slots=True)
class BatchView:
    """What the gate sees of the batch."""

    requests: int
    weight: float  # of the limit, with the drafted tokens
    calm: bool = True  # no step ran out of memory lately


@dataclass(frozen=True, slots=True)
class SpeculationGate:
    """Whether the batch is speculated for, and the numbers that decided it."""

    open: bool
    cause: GateCause
    requests: int = 0
    weight: float = 0.0
    limit: float = 0.0  # of what the cause names

    @property
    def reason(self) -> str:
        match self.cause:
            case GateCause.FITS:
                return f"open: {self.requests} requests weigh {self.weight:.0%} of the limit"
            case GateCause.BATCH:
                return f"closed: {self.requests} requests run, and up to {self.limit:.0f} may"
            case GateCause.WEIGHT:
                return f"closed: the batch weighs {self.weight:.0%} of the limit, and up to {self.limit:.0%} may be"
            case GateCause.MEMORY:
                return "closed: a step ran out of memory lately"


OPEN = SpeculationGate(True, GateCause.FITS)


def decide(view: BatchView, before: SpeculationGate, settings: SpeculationSettings) -> SpeculationGate:
    """Open or closed. A limit that has closed the gate must be undercut by some way before it opens again."""
    if not view.calm:
        return SpeculationGate(False, GateCause.MEMORY, view.requests, view.weight)
    most_requests, most_weight = settings.max_batch, settings.max_weight
    if before.cause is GateCause.BATCH:
        most_requests = max(1, most_requests - ceil_div(most_requests, _BATCH_STEPS))
    if before.cause is GateCause.WEIGHT:
        most_weight *= _REOPENS_AT
    if view.requests > most_requests:
        return SpeculationGate(False, GateCause.BATCH, view.requests, view.weight, most_requests)
    if view.weight > most_weight:
        return SpeculationGate(False, GateCause.WEIGHT, view.requests, view.weight, most_weight)
    return SpeculationGate(True, GateCause.FITS, view.requests, view.weight, most_weight)


def weight_of(final_blocks: tuple[int, ...], slack_blocks: int, blocks: tuple[int, ...]) -> float:
    """The share of its pool that a batch holds in the end, with the blocks of drafted tokens; of the fullest pool."""
    shares = ((final + slack_blocks) / there for final, there in zip(final_blocks, blocks, strict=True))
    return max(shares, default=0.0)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How often drafted tokens of a request were accepted, the last ones counting most."""

    accepted: float = _PRIOR_RATE * _PRIOR_TOKENS
    judged: float = _PRIOR_TOKENS  # a token behind a rejected one is not judged

    @property
    def rate(self) -> float:
        return self.accepted / self.judged

    def after(self, drafted: int, accepted: int) -> Acceptance:
        """A step has accepted so many of the tokens drafted for it."""
        judged = min(accepted + 1, drafted)
        return Acceptance(self.accepted * _MEMORY + accepted, self.judged * _MEMORY + judged)


def depth_for(rate: float, most: int) -> int:
    """How many tokens to draft: as long as the last one is likely enough to be accepted with all before it."""
    if rate >= 1:
        return most
    if rate <= 0:
        return 0
    return min(most, floor(log(_WORTH) / log(rate)))


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

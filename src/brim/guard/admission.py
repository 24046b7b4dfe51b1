"""Whether a request can start now. Exact to the block, over all that the batch will hold until it has ended.

A request starts when every pool has room for the batch with it, at every step to come (`brim.guard.future`), growing as
`brim.guard.growth` expects. In mode `worst` that is the most it may grow to, and nothing that has started is preempted
for lack of KV blocks. In mode `expected` it is a quantile of what was seen, some blocks are kept free, and requests are
preempted when that was too little. A request alone may have everything.

While the first waiting request has to wait for blocks, some of those behind it may overtake it (`may_overtake`). Each
request is passed a limited number of times, so that each starts after a limited number of others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice, takewhile

from brim.errors import InvalidRequest
from brim.guard.growth import ExpectedGrowth, Growth, WorstGrowth

MODES = ("expected", "worst")


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """What a request is expected to need before it may start."""

    mode: str = "expected"
    quantile: float = 0.9  # `expected`: of the lengths of answers that have ended
    prior: int = 256  # `expected`: tokens of an answer before enough have ended
    watermark: float = 0.01  # `expected`: part of each pool that a request leaves free when it starts
    passes: int = 32  # how often a waiting request may be passed
    lookahead: int = 8  # how many waiting requests behind the first are looked at

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InvalidRequest(f"admission is {self.mode!r}; it must be {' or '.join(MODES)}")
        if not (_is_number(self.quantile) and 0 < self.quantile <= 1):
            raise InvalidRequest(f"admission_quantile is {self.quantile!r}; it must be above 0 and at most 1")
        if not (_is_number(self.watermark) and 0 <= self.watermark < 1):
            raise InvalidRequest(f"admission_watermark is {self.watermark!r}; it must be at least 0 and below 1")
        for name, value, least in (
            ("prior", self.prior, 1),
            ("passes", self.passes, 0),
            ("lookahead", self.lookahead, 0),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InvalidRequest(f"admission_{name} is {value!r}; it must be an integer, at least {least}")

    def growth(self) -> Growth:
        return WorstGrowth() if self.mode == "worst" else ExpectedGrowth(self.quantile, self.prior)

    def kept_free(self, blocks: Iterable[int]) -> tuple[int, ...]:
        """By pool, the blocks that a request leaves free when it starts beside others."""
        return tuple(0 if self.mode == "worst" else int(self.watermark * count) for count in blocks)


class Cause(StrEnum):
    """What decided about a request."""

    FITS = "fits"
    SLOTS = "slots"  # as many requests run as can
    BLOCKS = "blocks"  # the batch would outgrow a pool
    NEVER = "never"  # it would outgrow a pool alone


@dataclass(frozen=True, slots=True)
class AdmissionView:
    """What the policy sees. Blocks are by pool, in the same order everywhere."""

    needed: tuple[int, ...]  # the most that the waiting request will hold
    peaks: tuple[int, ...]  # the most that the batch will hold at once, with it
    blocks: tuple[int, ...]
    kept_free: tuple[int, ...]
    running: int
    free_slots: int


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a request starts, and the numbers that decided it."""

    start: bool
    cause: Cause
    pool: int = 0
    needed: int = 0  # blocks that the request will hold at most
    peak: int = 0  # blocks that the batch would hold at most
    limit: int = 0  # what may be held

    @property
    def reason(self) -> str:
        match self.cause:
            case Cause.FITS:
                return "fits"
            case Cause.SLOTS:
                return f"all {self.limit} slots are taken"
            case Cause.BLOCKS:
                return (
                    f"pool {self.pool}: with the {self.needed} blocks that it needs the batch would grow to "
                    f"{self.peak}, and {self.limit} may be held"
                )
            case Cause.NEVER:
                return f"pool {self.pool}: needs {self.needed} blocks, and there are {self.limit}"


FITS = Decision(True, Cause.FITS)


def may_start(view: AdmissionView) -> Decision:
    """Start what fits, now and later, to the block."""
    if view.free_slots == 0:
        return Decision(False, Cause.SLOTS, limit=view.running)
    for pool, (needed, blocks) in enumerate(zip(view.needed, view.blocks, strict=True)):
        if needed > blocks:
            return Decision(False, Cause.NEVER, pool, needed, needed, blocks)
        limit = blocks - view.kept_free[pool]
        if view.running and view.peaks[pool] > limit:
            return Decision(False, Cause.BLOCKS, pool, needed, view.peaks[pool], limit)
    return FITS


def may_overtake(passed: Iterable[int], settings: AdmissionSettings) -> int:
    """How many waiting requests, from the first on, may be passed once more, given how often each has been."""
    return sum(1 for _ in takewhile(lambda times: times < settings.passes, islice(passed, settings.lookahead)))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)

"""Memory scaling: what a step takes, as a law of its shape (`Scaling`), and how the law was found (`ScalingReport`).

A step has two stages, and the larger one is its peak. The decoder runs over all new tokens of the step; then the head
and the sampler work on a row of logits for each request that gets a token. Each stage has a law of its own: *prefill*
counts tokens, *next-token* counts rows. Both are sums of terms that are never negative:

    constant                          workspaces
    + linear       × units            activations; logits
    + sliced       × min(units, n)    what is worked on in slices of n units, one after the other
    + quadratic    × tokens × context scores of attention that is not fused
    + carried      × tokens           next-token only: hidden states of the whole step, alive while tokens are drawn

Keys and values are not part of it: they are in the pool, and counted by blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import ceil, floor
from typing import Any

from brim.records.memory import StressShape


class ScalingMode(StrEnum):
    """Where coefficients come from."""

    AUTO = "auto"  # measured
    MANUAL = "manual"  # given; measured shapes only check them
    OFF = "off"  # none: requests are admitted by blocks alone


class StepPhase(StrEnum):
    """A step with tokens of prompts, or one that only generates the next token of each request."""

    PREFILL = "prefill"
    NEXT_TOKEN = "next-token"


@dataclass(frozen=True, slots=True)
class StepShape:
    """What the memory of a step depends on.

    `context` is the length of the longest sequence at the end of the step, and 0 where attention allocates nothing by
    context, or where every shape was measured at the longest.
    """

    phase: StepPhase
    batch: int  # requests that get a token: rows of logits
    tokens: int  # new tokens of all requests
    context: int = 0


@dataclass(frozen=True, slots=True)
class MeasuredShape:
    """A step that was run, and its peak above what was held before it.

    `phase` is the law that the step is to show: a step of prompts in which many rows are drawn shows next-token.
    """

    phase: StepPhase
    batch: int
    tokens: int
    context: int
    bytes: int
    held_back: bool = False  # not learned from: it checks what was learned

    @property
    def shape(self) -> StepShape:
        with_prompts = self.tokens > self.batch
        return StepShape(
            StepPhase.PREFILL if with_prompts else self.phase,
            self.batch,
            self.tokens,
            self.context,
        )


@dataclass(frozen=True, slots=True)
class Coefficients:
    """The terms of a law, in bytes. A unit is a token in prefill, and a row of logits in next-token."""

    constant_bytes: float = 0.0
    bytes_per_unit: float = 0.0
    bytes_per_sliced_unit: float = 0.0
    bytes_per_token_pair: float = 0.0  # quadratic: tokens × context
    bytes_per_carried_token: float = 0.0
    slice_units: int | None = None  # units that are worked on at once; None: all

    def at(self, units: int, tokens: int, context: int) -> float:
        sliced = units if self.slice_units is None else min(units, self.slice_units)
        return (
            self.constant_bytes
            + self.bytes_per_unit * units
            + self.bytes_per_sliced_unit * sliced
            + self.bytes_per_token_pair * tokens * context
            + self.bytes_per_carried_token * tokens
        )


@dataclass(frozen=True, slots=True)
class Law:
    """Coefficients, and two allowances that make the sum an upper bound.

    A shape below the smallest measured one counts as that one: memory never falls with size.
    """

    coefficients: Coefficients
    allowance_bytes: float = 0.0  # by which a measured shape was above the sum
    allowance: float = 0.0  # relative: by which the same step may differ another time
    least_units: int = 1

    def expected_bytes(self, units: int, tokens: int, context: int) -> float:
        """Without allowances."""
        units = max(units, self.least_units)
        return self.coefficients.at(units, max(tokens, units), context)

    def bound_bytes(self, units: int, tokens: int, context: int) -> int:
        return ceil((self.expected_bytes(units, tokens, context) + self.allowance_bytes) * (1 + self.allowance))


@dataclass(frozen=True, slots=True)
class Scaling:
    """The laws of both stages."""

    prefill: Law
    next_token: Law

    def need_bytes(self, shape: StepShape) -> int:
        """The most that a step of this shape takes: its larger stage."""
        drawing = self.next_token.bound_bytes(shape.batch, shape.tokens, shape.context)
        if shape.phase is StepPhase.NEXT_TOKEN:
            return drawing
        return max(drawing, self.prefill.bound_bytes(shape.tokens, shape.tokens, shape.context))


@dataclass(frozen=True, slots=True)
class Residual:
    """A measured shape beside what the laws say of it."""

    measured: MeasuredShape
    bound_bytes: int
    before_bytes: int | None = None  # of a shape held back: the bound that was learned without it

    @property
    def error(self) -> float:
        """Bound over measured, minus one: never negative for learned laws."""
        return self.bound_bytes / self.measured.bytes - 1 if self.measured.bytes else 0.0


@dataclass(frozen=True, slots=True)
class ScalingStep:
    """A step that an engine runs to be measured, and what the laws see of it."""

    stress: StressShape
    shape: StepShape
    pool_tokens: int = 0  # KV tokens without which the engine would run a smaller step
    held_back: bool = False


@dataclass(frozen=True, slots=True)
class ScalingSteps:
    """The steps from which laws are learned. What an engine works on in slices, it names; None: it does not."""

    steps: tuple[ScalingStep, ...]
    slice_tokens: int | None = None  # of the decoder
    slice_rows: int | None = None  # of the sampler


@dataclass(frozen=True, slots=True)
class ScalingRequest:
    """How laws are found. `traced` are points of the traced curve: the starting point, which measured steps correct."""

    steps: ScalingSteps
    traced: tuple[MeasuredShape, ...] = ()
    given: Scaling | None = None  # the operator's laws (mode manual); None: learn them
    margin_percent: float | None = None  # in place of the derived one


@dataclass(frozen=True, slots=True)
class ScalingReport:
    """The laws in use, how well they hold, and the limit for the weight of a batch."""

    mode: ScalingMode
    scaling: Scaling
    residuals: tuple[Residual, ...]
    budget_bytes: int  # KV cache and worst step, as fitted
    derived_margin_percent: float  # of the budget, from the residuals
    given_margin_percent: float | None  # by the operator
    kv_tokens_without_rebuild: int | None  # what the laws alone give the KV cache; None: nothing else was measured

    @property
    def margin_percent(self) -> float:
        """The margin that is applied."""
        return self.derived_margin_percent if self.given_margin_percent is None else self.given_margin_percent

    @property
    def limit_bytes(self) -> int:
        """The most that a batch may weigh."""
        return floor(self.budget_bytes * (1 - self.margin_percent / 100))

    @property
    def held_back_error(self) -> float:
        """The lowest bound of a shape that was held back, over its measurement, minus one; 0: none was."""
        errors = [one.before_bytes / one.measured.bytes - 1 for one in self.residuals if one.before_bytes is not None]
        return min(errors, default=0.0)

    def to_json(self) -> dict[str, Any]:
        """The report with stable keys."""
        return {
            "mode": str(self.mode),
            "prefill": _law_json(self.scaling.prefill),
            "next_token": _law_json(self.scaling.next_token),
            "residuals": [_residual_json(one) for one in self.residuals],
            "budget_bytes": self.budget_bytes,
            "limit_bytes": self.limit_bytes,
            "derived_margin_percent": self.derived_margin_percent,
            "given_margin_percent": self.given_margin_percent,
            "margin_percent": self.margin_percent,
            "held_back_error": self.held_back_error,
            "kv_tokens_without_rebuild": self.kv_tokens_without_rebuild,
        }


def _law_json(law: Law) -> dict[str, Any]:
    terms = {name: getattr(law.coefficients, name) for name in Coefficients.__slots__}
    return {
        **terms,
        "allowance_bytes": law.allowance_bytes,
        "allowance": law.allowance,
        "least_units": law.least_units,
    }


def _residual_json(residual: Residual) -> dict[str, Any]:
    measured = residual.measured
    return {
        "phase": str(measured.phase),
        "batch": measured.batch,
        "tokens": measured.tokens,
        "context": measured.context,
        "measured_bytes": measured.bytes,
        "bound_bytes": residual.bound_bytes,
        "held_back": measured.held_back,
        "before_bytes": residual.before_bytes,
    }

"""What a trace is of (`TraceShape`), and what it found (`Trace`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import ceil


class Phase(StrEnum):
    """The kinds of step."""

    PREFILL = "prefill"  # a prompt, or several of one length
    PACKED = "packed"  # several prompts concatenated in one row, as engines run them
    DECODE = "decode"  # one token for each of a batch
    VERIFY = "verify"  # a few speculated tokens for each of a batch
    VISION = "vision"  # the vision tower
    AUDIO = "audio"  # the audio tower


@dataclass(frozen=True, slots=True)
class TraceShape:
    """The call to trace.

    `tokens` are the new tokens of each of `batch` sequences (patches or tiles for a tower), `context` the tokens they
    already have in the cache. `logit_rows` of 0 means all positions. `keeps_kv` has the model keep its own cache.
    `head_sees_last` computes logits for those rows only, as engines do, where the class would compute all of them.
    """

    phase: Phase = Phase.PREFILL
    tokens: int = 2048
    batch: int = 1
    context: int = 0
    logit_rows: int = 1
    keeps_kv: bool = False
    attention: str = "sdpa"
    head_sees_last: bool = False


@dataclass(frozen=True, slots=True)
class LiveTensor:
    """A tensor alive at the peak: its bytes as the allocator rounds them, and where it was allocated."""

    bytes: int
    op: str
    module: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of a step: what ran, in which module, and the live bytes after it."""

    name: str
    module: str
    live_bytes: int


@dataclass(frozen=True, slots=True)
class Allocation:
    """A storage's life: allocated during operation `made_at`, and gone when operation `freed_at` is over."""

    bytes: int
    op: str
    module: str
    shape: tuple[int, ...]
    made_at: int
    freed_at: int

    def is_live_at(self, operation: int) -> bool:
        """Was it alive after this operation?"""
        return self.made_at <= operation < self.freed_at


@dataclass(frozen=True, slots=True)
class Timeline:
    """A step, operation by operation; the allocations alive after an operation add up to its live bytes."""

    operations: tuple[Operation, ...]
    allocations: tuple[Allocation, ...]

    @property
    def peak_at(self) -> int:
        """The first operation with the most live bytes."""
        return max(range(len(self.operations)), key=lambda index: self.operations[index].live_bytes, default=0)


@dataclass(frozen=True, slots=True)
class Trace:
    """Memory of a step above the weights, traced on the meta device."""

    model: str
    shape: TraceShape
    peak_bytes: int
    reserved_bytes: int  # with expandable segments
    reserved_default_bytes: int
    at_module: str
    at_op: str
    at_shapes: tuple[tuple[int, ...], ...]
    live: tuple[LiveTensor, ...]
    seconds: float
    attention: str = "sdpa"
    timeline: Timeline | None = None  # recorded when asked for

    def to_json(self) -> dict[str, object]:
        """The stable keys of `brim trace --json`."""
        return {
            "model": self.model,
            "phase": str(self.shape.phase),
            "tokens": self.shape.tokens,
            "batch": self.shape.batch,
            "attention": self.attention,
            "peak_bytes": self.peak_bytes,
            "reserved_bytes": self.reserved_bytes,
            "reserved_default_bytes": self.reserved_default_bytes,
            "at": {"module": self.at_module, "op": self.at_op, "shapes": [list(shape) for shape in self.at_shapes]},
            "live": [
                {"bytes": one.bytes, "op": one.op, "module": one.module, "shape": list(one.shape)} for one in self.live
            ],
            "seconds": self.seconds,
        }


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A traced size: tokens (or patches), and what they take."""

    size: int
    peak_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class ActivationCurve:
    """Activation over the size of a step, counted in `unit`s: tokens, sequences, patches or tiles.

    Exact at the traced points, and a quadratic through the nearest three between and beyond them. `held_back_error` is
    the relative error at a traced point that was not used.
    """

    model: str
    phase: Phase
    unit: str
    points: tuple[CurvePoint, ...]
    held_back_error: float
    versions: str
    ranks: int = 1  # the curve is that of one of so many tensor-parallel ranks

    def peak_bytes(self, size: int) -> int:
        return self._through(size, [(point.size, point.peak_bytes) for point in self.points])

    def reserved_bytes(self, size: int) -> int:
        return self._through(size, [(point.size, point.reserved_bytes) for point in self.points])

    @staticmethod
    def _through(size: int, points: list[tuple[int, int]]) -> int:
        """The value at a size: at a point its own, else by the three points around it (Newton's form, rounded up)."""
        for known, value in points:
            if known == size:
                return value
        start = min(max(0, sum(known < size for known, _ in points) - 2), max(0, len(points) - 3))
        near = points[start : start + 3]
        if len(near) == 1:
            return -(-near[0][1] * size // near[0][0])
        (x0, y0), (x1, y1) = near[0], near[1]
        slope = Fraction(y1 - y0, x1 - x0)
        result = Fraction(y0) + slope * (size - x0)
        if len(near) == 3:
            x2, y2 = near[2]
            bend = (Fraction(y2 - y1, x2 - x1) - slope) / (x2 - x0)
            result += bend * (size - x0) * (size - x1)
        return max(0, ceil(result))

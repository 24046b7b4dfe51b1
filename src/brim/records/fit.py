"""The request of a fit (`FitRequest`) and its result (`FitReport`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from brim.records.scaling import ScalingReport
from brim.units import MIB

CANARY_BYTES = 256 * MIB
OWN_GROWTH_BYTES = 1024 * MIB
MAX_ATTEMPTS = 4
# Of torch's allocator on a CUDA device, for `FitRequest` and for the audit after a rescue; on the CPU there is none.
CUDA_WORKSPACE_BYTES = 192 * MIB  # workspaces that cuBLAS and other libraries make at any step, and keep
CUDA_SEGMENT_BYTES = 20 * MIB  # by which a segment grows
CUDA_ROUNDING_BYTES = 2 * CUDA_SEGMENT_BYTES  # segments of steps and those of graphs may each need one more


class AttemptOutcome(StrEnum):
    """How an attempt ended."""

    PROVEN = "proven"
    OUT_OF_MEMORY = "out-of-memory"


@dataclass(frozen=True, slots=True)
class FitRequest:
    """How to size an engine."""

    probe_tokens: int  # KV tokens of the build that is measured
    least_tokens: int  # the fewest that hold one request
    most_tokens: int  # more could never be used, or would be too many for the host to track
    kv_tokens: int | None = None  # a fixed size: no search, validated once
    memory_fraction: float = 1.0  # of the measured remaining memory
    canary_bytes: int = CANARY_BYTES
    max_attempts: int = MAX_ATTEMPTS
    leak_tolerance_bytes: int = 0  # what libraries may keep after a teardown (CUDA_WORKSPACE_BYTES)
    own_growth_bytes: int = OWN_GROWTH_BYTES  # outside the allocator while it is measured: kernels, graphs, workspaces
    rounding_bytes: int = 0  # of the allocator, which another size may need in addition (CUDA_ROUNDING_BYTES)
    state_bytes: int = 0  # recurrent states of all requests in flight, allocated by a build of any size
    feature_bytes: int = 0  # of images that encoders have made features of, allocated by a build of any size
    keep_free_bytes: int = 0  # left free on the device, in addition to the canary
    keep_free_note: str = ""  # the reason, where it is a default
    keeps_promises: bool = False  # validation checks that what neighbours were promised is still there
    running_tokens: int | None = None  # most tokens of running requests; the rest is prefix cache. None: no limit


@dataclass(frozen=True, slots=True)
class Attempt:
    """One size that was built and stressed."""

    kv_tokens: int
    outcome: AttemptOutcome
    shortfall_bytes: int | None = None  # where it is known


@dataclass(frozen=True, slots=True)
class FitItem:
    """A line of the report: what was predicted, what was measured. None: not known."""

    name: str
    predicted_bytes: int | None
    measured_bytes: int | None
    note: str = ""

    @property
    def error(self) -> float | None:
        """Predicted over measured, minus one."""
        if self.predicted_bytes is None or not self.measured_bytes:
            return None
        return self.predicted_bytes / self.measured_bytes - 1


@dataclass(frozen=True, slots=True)
class FitSeconds:
    """Where the time went."""

    probe: float = 0.0
    stress: float = 0.0
    rebuild: float = 0.0
    scaling: float = 0.0
    validate: float = 0.0
    predict: float = 0.0
    other: float = 0.0  # the store, device properties, messages between ranks
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class Usage:
    """The peak memory of an engine, measured at a small size: everything but the KV cache."""

    total_bytes: int
    held_bytes: int  # at the peak, without KV: weights, activations, graphs, buffers, the allocator's slack
    other_bytes: int  # context, kernels and neighbours
    neighbour_bytes: int
    free_before_bytes: int  # before anything was built
    weights_bytes: int  # held before anything was built
    built_bytes: int  # allocated by the build, without KV
    activation_bytes: int  # of the worst text step, on top
    slack_bytes: int  # reserved by the allocator beyond what was allocated, at the peak
    encoder_bytes: int | None = None  # of a step with the largest image or audio, the step's activation included

    @property
    def step_bytes(self) -> int:
        """Of the worst step, with media or without."""
        return max(self.activation_bytes, self.encoder_bytes or 0)

    def left_for_kv(self, canary_bytes: int) -> int:
        return (
            self.total_bytes
            - self.other_bytes  # driver, context, kernels, neighbours
            - self.held_bytes  # this process at its peak
            - canary_bytes  # safety margin
        )


@dataclass(frozen=True, slots=True)
class FitReport:
    """A proven size, and how it was found."""

    kv_tokens: int
    kv_bytes: int
    canary_bytes: int
    attempts: tuple[Attempt, ...]
    items: tuple[FitItem, ...]
    seconds: FitSeconds
    from_store: bool
    total_bytes: int
    free_bytes: int  # by the driver, after the last worst step, with the canary held
    limit_tokens: int  # what would fit without canary and without rounding
    needed_tokens: int  # most tokens of running requests: a full batch, all at full length
    needed_bytes: int
    keep_free_bytes: int = 0  # seen to stay free in validation, in addition to the canary
    limited_by: str = "memory"  # or "requests": no more are wanted; or "given": the size was
    provable: bool = True  # False: the driver spills to host memory, so no allocation fails
    warnings: tuple[str, ...] = ()
    scaling: ScalingReport | None = None  # None: mode off
    stored_unused: str = ""  # why a stored fit of this model on this device was not used
    batch_tokens: int | None = None  # of an engine without a KV cache: most tokens of a batch

    @property
    def cache_tokens(self) -> int:
        """Prefix cache: tokens beyond what running requests can hold."""
        return self.kv_tokens - self.needed_tokens

    @property
    def cache_bytes(self) -> int:
        return self.kv_bytes - self.needed_bytes

    def to_json(self) -> dict[str, Any]:
        """The report with stable keys."""
        return {
            "kv_tokens": self.kv_tokens,
            "kv_bytes": self.kv_bytes,
            "needed_tokens": self.needed_tokens,
            "needed_bytes": self.needed_bytes,
            "cache_tokens": self.cache_tokens,
            "cache_bytes": self.cache_bytes,
            "batch_tokens": self.batch_tokens,
            "canary_bytes": self.canary_bytes,
            "keep_free_bytes": self.keep_free_bytes,
            "limited_by": self.limited_by,
            "provable": self.provable,
            "attempts": [
                {"kv_tokens": one.kv_tokens, "outcome": str(one.outcome), "shortfall_bytes": one.shortfall_bytes}
                for one in self.attempts
            ],
            "items": [
                {
                    "name": one.name,
                    "predicted_bytes": one.predicted_bytes,
                    "measured_bytes": one.measured_bytes,
                    "note": one.note,
                }
                for one in self.items
            ],
            "seconds": {name: getattr(self.seconds, name) for name in FitSeconds.__slots__},
            "from_store": self.from_store,
            "stored_unused": self.stored_unused,
            "total_bytes": self.total_bytes,
            "free_bytes": self.free_bytes,
            "limit_tokens": self.limit_tokens,
            "warnings": list(self.warnings),
            "scaling": None if self.scaling is None else self.scaling.to_json(),
        }

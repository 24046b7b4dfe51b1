"""Protocols of what Brim measures, sizes and rescues. Any object with these methods can be used, without inheritance.

    MemoryProbe        a device's memory: readings, peaks, the canary
    CanaryProbe        a probe whose canary a rescue may spend
    Neighbours         this process' part of a device that others share
    SizableEngine      what a fit builds, stresses and tears down
    RescuableEngine    what a rescue launches, undoes and ends
    AuditedEngine      optional: what is checked after a rescue, and rebuilt
    GraphedEngine      optional: CUDA graphs, which a failed replay costs
    Agreement          ranks that must decide alike

Records go in and come out, and are exported here too: this module knows no engine and no device library.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, runtime_checkable

from brim.records.memory import MemoryReading, StressKind, StressShape
from brim.records.rescue import LaunchBounds, RequestKey, RequestProgress, Work

__all__ = [
    "Agreement",
    "AuditedEngine",
    "CanaryProbe",
    "GraphedEngine",
    "LaunchBounds",
    "MemoryProbe",
    "MemoryReading",
    "Neighbours",
    "RequestKey",
    "RequestProgress",
    "RescuableEngine",
    "SizableEngine",
    "StressKind",
    "StressShape",
    "Work",
]


class MemoryProbe(Protocol):
    """Reads a device's memory."""

    def reading(self) -> MemoryReading:
        """The device now."""
        ...

    def reset_peak(self) -> None:
        """Measure peaks from now on."""
        ...

    def hold_canary(self, canary_bytes: int) -> None:
        """Allocate this much as a safety margin, instead of an earlier canary; 0 frees it."""
        ...

    def largest_held(self, count: int) -> tuple[str, ...]:
        """The largest tensors that are still alive, described for a leak report."""
        ...


@runtime_checkable
class CanaryProbe(Protocol):
    """A probe whose canary a rescue may spend."""

    def reading(self) -> MemoryReading:
        """The device now."""
        ...

    def lend_canary(self) -> int:
        """Free the canary for this process alone, and not for the device, where others could take it; its bytes."""
        ...

    def take_canary_back(self) -> None:
        """Hold the lent canary again. Raises `OutOfMemory` where that does not fit, and it stays lent."""
        ...


class Neighbours(Protocol):
    """This process' part of a device that others share. `brim.reserve.Sizer` is one."""

    @property
    def keeps_promises(self) -> bool:
        """Whether a reading shows what neighbours were promised and have not taken yet: validation checks that."""
        ...

    def seen(self, reading: MemoryReading) -> MemoryReading:
        """The reading with the memory that neighbours may still take counted as theirs."""
        ...

    def hold(self, reading: MemoryReading) -> None:
        """Publish what this process holds at its peak."""
        ...

    def note(self) -> str:
        """The neighbours in words; nothing where there are none."""
        ...


class SizableEngine(Protocol):
    """An engine whose KV cache can be rebuilt at another size. What does not fit raises `OutOfMemory`."""

    def build(self, kv_tokens: int) -> None:
        """Allocate the KV cache, and what depends on its size."""
        ...

    def teardown(self) -> None:
        """Free what `build` allocated. The weights stay."""
        ...

    def stress(self, shape: StressShape) -> None:
        """Run one step of this shape to its end."""
        ...

    def stress_shapes(self) -> tuple[StressShape, ...]:
        """The worst steps that serving can produce."""
        ...


class RescuableEngine(Protocol):
    """An engine whose steps can be run again in parts. What does not fit raises `OutOfMemory`.

    After an `OutOfMemory` of `launch` or of `AuditedEngine.read_back`, `undo` is called once, before anything else. An
    error of another kind passes through the driver without it: what its step leaves is the engine's own business.
    """

    @property
    def steps(self) -> int:
        """How many steps were launched so far: time is counted in them."""
        ...

    def launch(self, bounds: LaunchBounds) -> None:
        """Plan a step within these bounds and launch it; none where nothing can run.

        A step of some requests only (`bounds.only`) is read back before this returns.
        """
        ...

    def undo(self) -> tuple[Work, ...]:
        """Put every request of the step that could not be launched back as it was before it.

        What the step was to compute, in the order in which its requests would be planned again; nothing where no step
        was under way. A request that cannot be put back (recurrent states) is to be recomputed.
        """
        ...

    def end(self, request: RequestKey, error: str) -> None:
        """End a request that cannot run; what it holds is freed."""
        ...

    def progress(self, requests: Collection[RequestKey]) -> tuple[RequestProgress, ...]:
        """Those of these requests that wait or run, in the order in which they would be planned."""
        ...


class AuditedEngine(Protocol):
    """An engine that can say, with nothing in flight, whether its records are consistent, and begin with new ones."""

    @property
    def kept_bytes(self) -> int:
        """What is held between steps in addition to what a build made, and varies."""
        ...

    @property
    def library_bytes(self) -> int:
        """What libraries may allocate at any step and keep: `CUDA_WORKSPACE_BYTES` on a CUDA device, else 0."""
        ...

    def read_back(self) -> None:
        """Read every step that was launched. What raises is read again by the next call."""
        ...

    def problems(self) -> list[str]:
        """Everything that is inconsistent: blocks, slots, tables. Nothing is in flight."""
        ...

    def rebuild(self) -> None:
        """Free the KV pool and build it at its size; every request is recomputed.

        If it raises `OutOfMemory`, nothing is left built and it may be called again.
        """
        ...


class GraphedEngine(Protocol):
    """An engine that replays captured graphs."""

    @property
    def graphs_failed(self) -> bool:
        """A replay raised: what the graphs hold is not known."""
        ...

    @property
    def graphs_dropped(self) -> bool:
        """They were, and steps run without any."""
        ...

    def drop_graphs(self) -> None:
        """Free them."""
        ...

    def capture_graphs(self) -> None:
        """Capture those that were dropped, with nothing in flight: on all ranks, or `OutOfMemory` on all of them."""
        ...


class Agreement(Protocol):
    """What every rank asks at the same point, and each is answered the same."""

    @property
    def size(self) -> int:
        """How many ranks there are."""
        ...

    def most(self, number: int) -> int:
        """The largest of all ranks' numbers."""
        ...

    def all(self, condition: bool) -> bool:
        """Whether it holds on all ranks."""
        ...

    def problem(self, mine: str) -> str:
        """What is wrong on some rank; nothing where all is well everywhere."""
        ...

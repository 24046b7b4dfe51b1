"""A step while it is planned and launched: what is in it so far, and what has to be undone if it fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from brim.engine.requests.sequence import Sequence
from brim.engine.schedule.plan import Chunk, StepBounds
from brim.engine.schedule.queue import Departure


@dataclass(slots=True, eq=False)
class PendingStep:
    """From the beginning of `Scheduler.plan` until the step is committed or abandoned."""

    bounds: StepBounds
    drafts: Mapping[Sequence, tuple[int, ...]]  # that were made for it
    budget: int  # tokens that are left
    decodes: list[Sequence] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    admitted: list[Departure] = field(default_factory=list)
    ready: int = 0  # requests that could get a token from it
    first: Sequence | None = None  # whose tokens must be computed together: they come before all decodes
    drafting: list[Sequence] = field(default_factory=list)  # with a draft

    def add(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        self.budget = max(0, self.budget - chunk.length)  # what is computed together may be more than a lowered limit

    def admits(self, sequence: Sequence) -> bool:
        """Whether a request runs for the first time in this step."""
        return any(departure.sequence is sequence for departure in self.admitted)

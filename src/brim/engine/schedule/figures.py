"""What was decided about waiting requests, counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from brim.guard.admission import Cause, Decision


@dataclass(frozen=True, slots=True)
class AdmissionFigures:
    """Decisions so far. A request that waits is decided about again and again."""

    decisions: int = 0
    started: int = 0
    held_for_slots: int = 0
    held_for_blocks: int = 0
    passes: int = 0  # requests that started before one that waited longer
    preemptions: int = 0
    last_held: str = ""  # why the last request that was held could not start


@dataclass(slots=True)
class AdmissionCounts:
    """The same, while they are counted."""

    causes: Counter[Cause] = field(default_factory=Counter)
    passes: int = 0
    preemptions: int = 0
    last_held: Decision | None = None

    def count(self, decision: Decision) -> None:
        self.causes[decision.cause] += 1
        if not decision.start:
            self.last_held = decision

    @property
    def figures(self) -> AdmissionFigures:
        return AdmissionFigures(
            decisions=self.causes.total(),
            started=self.causes[Cause.FITS],
            held_for_slots=self.causes[Cause.SLOTS],
            held_for_blocks=self.causes[Cause.BLOCKS],
            passes=self.passes,
            preemptions=self.preemptions,
            last_held="" if self.last_held is None else self.last_held.reason,
        )

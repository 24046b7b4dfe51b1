"""Progress of a start: a `Stage`, reported to a function (`Told`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage: load and build of an engine; probe, stress, rebuild, scaling, validate and predict of a fit."""

    phase: str
    detail: str = ""  # weights, graphs, the shape of a step
    done: int | None = None  # of `total`
    total: int | None = None

    @property
    def title(self) -> str:
        """The stage without its count."""
        return f"{self.phase} ({self.detail})" if self.detail else self.phase

    def __str__(self) -> str:
        return self.title if self.done is None else f"{self.title}: {self.done:,} of {self.total:,}"


Told = Callable[[Stage], None]
Progress = bool | Told | None  # as callers pass it; None: shown on a terminal


def silent(stage: Stage) -> None:
    """Report to nobody."""

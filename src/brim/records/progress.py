"""Where a start stands: a `Stage`, told to whoever wants to know (`Told`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stage:
    """What is being done now: load and build of an engine; probe, stress, rebuild, validate and predict of a fit."""

    phase: str
    detail: str = ""  # with what: weights, graphs, the shape of a step
    done: int | None = None  # of `total`
    total: int | None = None

    @property
    def title(self) -> str:
        """The stage without how far it has come."""
        return f"{self.phase} ({self.detail})" if self.detail else self.phase

    def __str__(self) -> str:
        return self.title if self.done is None else f"{self.title}: {self.done:,} of {self.total:,}"


Told = Callable[[Stage], None]
Progress = bool | Told | None  # as callers say it; None: shown where somebody is looking


def silent(stage: Stage) -> None:
    """Nobody is told."""

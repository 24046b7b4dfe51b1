"""Progress of a start: a `Stage`, reported to a function (`Told`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from brim.units import format_bytes

DOWNLOAD = "download"


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage: download, load, build of an engine; probe, stress, rebuild, scaling, validate, predict of a fit."""

    phase: str
    detail: str = ""  # weights, graphs, the shape of a step
    done: int | None = None  # of `total`
    total: int | None = None
    in_bytes: bool = False  # what is counted

    @property
    def title(self) -> str:
        """The stage without its count."""
        return f"{self.phase} ({self.detail})" if self.detail else self.phase

    def __str__(self) -> str:
        if self.done is None or self.total is None:
            return self.title
        if self.in_bytes:
            return f"{self.title}: {format_bytes(self.done)} of {format_bytes(self.total)}"
        return f"{self.title}: {self.done:,} of {self.total:,}"


Told = Callable[[Stage], None]
Progress = bool | Told | None  # as callers pass it; None: shown on a terminal


def silent(stage: Stage) -> None:
    """Report to nobody."""

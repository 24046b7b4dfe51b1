"""What vLLM's scheduler and its worker tell each other about a step, on the objects that vLLM carries between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_EPOCH = "brim_epoch"  # an attribute of vLLM's SchedulerOutput; a plain dataclass, so it is pickled with it


@dataclass(frozen=True, slots=True)
class FailedStep:
    """In place of a step's output: it did not happen."""

    reason: str
    unknown: tuple[str, ...] = ()  # its new requests that the worker has not noted


def mark(scheduled: Any, epoch: int) -> None:
    """Say how many failures the scheduler knew of when it planned a step; only such a step is guarded."""
    setattr(scheduled, _EPOCH, epoch)


def epoch_of(scheduled: Any) -> int | None:
    """None: a step that Brim's scheduler did not plan."""
    found: int | None = getattr(scheduled, _EPOCH, None)
    return found

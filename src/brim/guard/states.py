"""The states of a rescue, and how one follows from another. Pure: `brim.guard.driver` acts on them.

Serving ──out of memory──► Retrying ──parts done, audit passed──► Serving
                             │    ▲
     audit failed, unreadable│    │pool rebuilt
                             ▼    │
                           Rebuilding
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from brim.guard.catch_up import CatchUp, Progress
from brim.guard.rescue import RetryPart, smaller_parts
from brim.records.rescue import LaunchBounds, Work

UNKNOWN_STEP = -1
MOST_FRUITLESS = 3  # rescues in a row in which nothing ran and nobody ended: more of them will not help


@dataclass(frozen=True, slots=True)
class Serving:
    """No rescue is under way."""


@dataclass(frozen=True, slots=True)
class Retrying:
    """A failed step is run again in parts; without parts, the rescue is about to be audited."""

    parts: tuple[RetryPart, ...] = ()
    catch_up: CatchUp = field(default_factory=CatchUp)
    ended: int = 0  # requests, in this rescue
    failed_reads: int = 0  # in a row
    failed_plans: int = 0  # in a row: launches that failed before there was a step

    def after_failure(self, failed: tuple[Work, ...], progress: Progress) -> tuple[Retrying, bool]:
        """A step has failed, of the first part if there are parts. False: its only request cannot run, and ends."""
        part, rest = (self.parts[0], self.parts[1:]) if self.parts else (None, ())
        smaller = smaller_parts(tuple(self.catch_up.with_history(work) for work in failed), part)
        catch_up = self.catch_up.expecting(failed, progress)
        ended = self.ended + (not smaller)
        return replace(
            self, parts=(*smaller, *rest), catch_up=catch_up, ended=ended, failed_reads=0, failed_plans=0
        ), bool(smaller)

    def bounds(self, progress: Progress, usual_tokens: int) -> LaunchBounds:
        """The next step of the first part; `usual_tokens` at most on a way back."""
        return self.catch_up.bounds(self.parts[0], progress, usual_tokens)

    def without_done(self, progress: Progress) -> Retrying:
        """The parts from the first that has a request behind on; what is past its place is forgotten."""
        catch_up = self.catch_up.without_past(progress)
        first = 0
        while first < len(self.parts) and not catch_up.behind(self.parts[first], progress):
            first += 1
        return replace(self, parts=self.parts[first:], catch_up=catch_up)


@dataclass(frozen=True, slots=True)
class Rebuilding:
    """Nothing is served before the pool has been rebuilt."""

    reason: str
    ended: int  # requests, in this rescue
    attempts: int = 0  # in a row that were refused


RescueState = Serving | Retrying | Rebuilding


@dataclass(frozen=True, slots=True)
class Canary:
    """What of it is lent, on the rank that lent the most, and when holding it again is tried next."""

    lent_bytes: int = 0
    next_attempt: int = 0  # a step


@dataclass(frozen=True, slots=True)
class Fruitless:
    """Rescues in a row that began at the same step: nothing ran in between, and nobody ended."""

    rescues: int = 0
    began_at: int = UNKNOWN_STEP

    def another(self, step: int) -> Fruitless:
        return Fruitless(self.rescues + 1 if step == self.began_at else 0, step)

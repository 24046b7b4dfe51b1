"""What is asked of a server (`Ask`), what came of it (`Outcome`), its memory at a moment (`MemoryPoint`)."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, without its text."""

    prompt_tokens: int
    answer_tokens: int
    at: float = 0.0  # seconds after the beginning; in a closed loop, requests follow one another
    images: int = 0
    leaves_after: int | None = None  # tokens after which the client hangs up


class Ending(StrEnum):
    ANSWERED = "answered"
    LEFT = "left"  # the client hung up, as it was to
    REFUSED = "refused"  # a 429: come back later
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """A request that has ended. Times are in seconds after the beginning of the run."""

    ask: Ask
    ending: Ending
    sent: float
    ended: float
    first_token: float | None = None
    gaps: array[float] = field(default_factory=lambda: array("f"))  # seconds between tokens
    prompt_tokens: int = 0  # as the server counts them
    answer_tokens: int = 0
    cached_tokens: int = 0
    error: str | None = None  # what kind, where there is one
    said: str | None = None  # the server's own words
    retry_after: float = 0.0

    @property
    def seconds(self) -> float:
        return self.ended - self.sent

    @property
    def first_token_seconds(self) -> float | None:
        return None if self.first_token is None else self.first_token - self.sent

    @property
    def token_seconds(self) -> float | None:
        """Of a token after the first, on average."""
        return sum(self.gaps) / len(self.gaps) if self.gaps else None


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """What the server said of its memory at a moment."""

    at: float
    kv_blocks: int
    kv_held: int
    kv_cached: int
    running: int
    waiting: int
    preemptions: int
    rescues: int
    ended_by_memory: int
    device_used_bytes: int | None  # where the server measures it

"""What a watch keeps: the counts of one moment (`Counts`), what happened (`Event`), and how it went (`Sample`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class EventKind(StrEnum):
    """What an event is about."""

    STATE = "state"  # the server became ready, degraded, or ended
    GATE = "gate"  # admission holds requests back, or no longer does
    REFUSED = "refused"  # the queue was full: 429
    PREEMPTED = "preempted"
    EVICTED = "evicted"  # cached prefixes made room for requests
    ROLLED = "rolled"  # conversations dropped their oldest turns
    RESCUE = "rescue"  # a step ran out of memory and was run again in parts
    FAILED = "failed"  # a request ended with an error of the server's


@dataclass(frozen=True, slots=True)
class Counts:
    """A server at one moment. All but the last five only grow, until the KV pool is rebuilt."""

    drawn: int = 0
    computed: int = 0
    refused: int = 0
    preemptions: int = 0
    evicted_blocks: int = 0
    rolled_tokens: int = 0
    rescues: int = 0
    failed: int = 0
    rebuilds: int = 0
    held: int = 0  # decisions that a request has to wait
    held_reason: str = ""
    running: int = 0
    waiting: int = 0
    blocks_held: int = 0
    blocks_cached: int = 0
    status: str = ""
    status_reason: str = ""


@dataclass(frozen=True, slots=True)
class WatchEvent:
    number: int  # from 1
    time: float  # Unix seconds
    kind: EventKind
    count: int
    text: str

    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "time": round(self.time, 3),
            "kind": str(self.kind),
            "count": self.count,
            "text": self.text,
        }


@dataclass(frozen=True, slots=True)
class Sample:
    """About a second."""

    number: int  # from 1
    time: float
    drawn_per_second: float
    computed_per_second: float  # tokens of prompts and answers
    running: int
    waiting: int
    blocks_held: int
    blocks_cached: int

    def row(self) -> tuple[float, ...]:
        """In the order of `SAMPLE_COLUMNS`."""
        return (
            self.number,
            round(self.time, 3),
            round(self.drawn_per_second, 1),
            round(self.computed_per_second, 1),
            self.running,
            self.waiting,
            self.blocks_held,
            self.blocks_cached,
        )


SAMPLE_COLUMNS = tuple(Sample.__slots__)


@dataclass(frozen=True, slots=True)
class GateState:
    """Whether admission holds requests back."""

    holding: bool = False
    reason: str = ""  # why the last request that was held could not start
    since: float = 0.0  # Unix seconds

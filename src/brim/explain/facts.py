"""What files say, before anybody draws a conclusion: records with the line they come from.

Readers make them (`brim.explain.readers`), rules look at nothing else (`brim.explain.rules`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from brim.record.entries import Recorded


class Sign(StrEnum):
    """Something that a line says. The first group is where a server was; the others are evidence by themselves."""

    LOADING = "loading weights"
    PROFILING = "profiling"
    POOL_ALLOCATION = "allocating the KV pool"
    CAPTURING = "capturing graphs"
    WARM_UP = "warming up"
    SERVING = "serving"

    SAMPLING = "sampling"
    SCORING = "log-probabilities of prompts"
    MEDIA = "images or audio"
    DRAFTS = "drafts"
    STEP = "the buffers of a step"
    WEIGHTS = "the weights"
    TOO_LITTLE_FREE = "less free at the start than was asked for"
    PREEMPTED = "requests were preempted"
    POOL_FULL = "the KV pool is full"
    POOL_BELOW_REQUEST = "the KV pool holds less than one request"
    NO_POOL = "nothing is left for a KV pool"
    HOST_KILL = "the kernel or an orchestrator ended a process for host memory"
    HOST_LOW = "the machine ran low on memory"
    ENDED = "a process ended"


PHASES = frozenset({Sign.LOADING, Sign.PROFILING, Sign.POOL_ALLOCATION, Sign.CAPTURING, Sign.WARM_UP, Sign.SERVING})


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where something was read."""

    source: str  # a file's name
    line: int  # from 1; 0: not of a text
    text: str  # shortened
    time: str = ""  # as the source writes it

    def to_json(self) -> dict[str, object]:
        return {"source": self.source, "line": self.line, "time": self.time, "text": self.text}


@dataclass(frozen=True, slots=True)
class Seen:
    """A sign, and where it was seen."""

    sign: Sign
    evidence: Evidence
    count: int = 1


@dataclass(frozen=True, slots=True)
class RefusedAllocation:
    """An allocation that failed. None: the message does not say."""

    evidence: Evidence
    tried_bytes: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None  # live tensors of this process
    unused_bytes: int | None = None  # reserved by its allocator, not allocated
    process_bytes: int | None = None  # all that this process holds
    other_bytes: int | None = None  # held by other processes


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that a source states: bytes, tokens, a fraction or a count, as its name says."""

    name: str
    value: float
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class HolderFact:
    """A process on a device, by a table or a recording."""

    pid: int
    name: str
    held_bytes: int
    evidence: Evidence
    own: bool = False  # the server itself


@dataclass(frozen=True, slots=True)
class GivenFlag:
    """A setting that a server was started with."""

    name: str  # as the engine writes it, without dashes and with underscores
    value: str
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class RecordedFact:
    """A recording and its file."""

    source: str
    recorded: Recorded


@dataclass(frozen=True, slots=True)
class Incident:
    """All facts of all files, in the order in which they were read."""

    sources: tuple[str, ...] = ()
    engine: str = ""  # "vllm"; empty: not known
    seen: tuple[Seen, ...] = ()
    refusals: tuple[RefusedAllocation, ...] = ()
    figures: tuple[Figure, ...] = ()
    holders: tuple[HolderFact, ...] = ()
    flags: tuple[GivenFlag, ...] = ()
    recordings: tuple[RecordedFact, ...] = ()
    unread: tuple[str, ...] = ()  # what could not be read, and why

    def last(self, name: str) -> Figure | None:
        """The last figure of that name."""
        return next((one for one in reversed(self.figures) if one.name == name), None)

    def value(self, name: str) -> int | None:
        found = self.last(name)
        return None if found is None else int(found.value)

    def flag(self, *names: str) -> GivenFlag | None:
        return next((one for one in reversed(self.flags) if one.name in names), None)

    def first_seen(self, *signs: Sign) -> Seen | None:
        return next((one for one in self.seen if one.sign in signs), None)

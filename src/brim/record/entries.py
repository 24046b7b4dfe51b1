"""What a recording holds: steps, notes (what happened, who holds what), and the start with its ledger.

None of them has a field for text of a prompt or an answer, for a key, an address or the id of a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple


class StepState(IntEnum):
    """How far a step has come."""

    PLANNED = 1  # it was being launched
    LAUNCHED = 2
    OUT_OF_MEMORY = 3
    FAILED = 4  # anything else was raised


class StepEntry(NamedTuple):
    """One step of an engine. A tuple: it is made in every step, and a frozen dataclass takes three times as long."""

    time: float  # Unix seconds, when it was planned
    state: StepState | int
    duration_us: int = 0  # of the launch; 0 until it has returned
    decodes: int = 0
    chunks: int = 0  # of prompts
    prompt_tokens: int = 0
    media_tokens: int = 0  # of prompts: places of images and audio
    draft_tokens: int = 0
    scored_rows: int = 0  # prompt tokens whose log-probabilities were asked for
    running: int = 0
    waiting: int = 0
    blocks_held: int = 0
    blocks_cached: int = 0
    blocks_free: int = 0
    preemptions: int = 0  # since the engine was built
    step_limit: int = 0  # tokens that a step may have now
    allocated_bytes: int = 0  # this and those below are the last reading, at most a tenth of a second old
    reserved_bytes: int = 0
    free_bytes: int = 0  # of the device, by its driver
    peak_bytes: int = 0  # most that was allocated since the peak was last reset

    @property
    def tokens(self) -> int:
        return self.decodes + self.draft_tokens + self.prompt_tokens


class NoteKind(StrEnum):
    """What a note is about. The order is that of the file: new kinds go to the end."""

    STARTED = "started"  # the ledger of the start was written
    STOPPED = "stopped"  # in order: what ends without it was killed, or crashed
    STATE = "state"
    GATE = "gate"
    REFUSED = "refused"
    PREEMPTED = "preempted"
    EVICTED = "evicted"
    ROLLED = "rolled"
    RESCUE = "rescue"
    FAILED = "failed"
    OUT_OF_MEMORY = "out-of-memory"
    RESIZED = "resized"
    DEVICE = "device"  # first: bytes in all, second: free, third: held by others
    HOLDER = "holder"  # a process on the device: number in `count`; first: held, second: promised
    ARRIVED = "arrived"  # a process came to the device
    LEFT = "left"
    LOG = "log"  # a line of a log that is about memory
    HOST = "host"  # memory of the machine; first: in all, second: available, third: held by the server


@dataclass(frozen=True, slots=True)
class Note:
    """Something that happened, or a figure that is taken once a second."""

    time: float
    kind: NoteKind
    count: int = 1
    first: int = 0  # what these are, the kind says
    second: int = 0
    third: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """A line of the ledger at the start. None: not known."""

    name: str
    predicted_bytes: int | None
    measured_bytes: int | None


@dataclass(frozen=True, slots=True)
class StartEntry:
    """How a server was started, and the ledger of that moment."""

    engine: str  # "brim", "vllm"
    version: str
    model: str
    device: str
    total_bytes: int
    kv_tokens: int
    kv_bytes: int
    settings: tuple[tuple[str, str], ...] = ()  # the flags that decide about memory
    ledger: tuple[LedgerLine, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "engine": self.engine,
            "version": self.version,
            "model": self.model,
            "device": self.device,
            "total_bytes": self.total_bytes,
            "kv_tokens": self.kv_tokens,
            "kv_bytes": self.kv_bytes,
            "settings": dict(self.settings),
            "ledger": [[one.name, one.predicted_bytes, one.measured_bytes] for one in self.ledger],
        }


@dataclass(frozen=True, slots=True)
class Recorded:
    """All that could be read of a recording, oldest first."""

    pid: int
    created: float
    start: StartEntry | None  # None: it ended before it was ready
    steps: tuple[StepEntry, ...]
    notes: tuple[Note, ...]
    lost_steps: int  # older ones, which newer ones have replaced
    torn: int  # entries that were being written when the process ended
    truncated: bool = False  # the file is shorter than its header says

    @property
    def steps_were_refused(self) -> bool:
        return any(step.state is StepState.OUT_OF_MEMORY for step in self.steps)

    @property
    def ended_in_order(self) -> bool:
        return any(note.kind is NoteKind.STOPPED for note in self.notes[-8:])

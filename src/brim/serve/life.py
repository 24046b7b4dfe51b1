"""Where a server is in its life: the one place that `/health`, the endpoints and the signals look at."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from brim.records.fit import FitReport
from brim.records.health import Health, Status
from brim.records.progress import Stage
from brim.serve.gate import Gate
from brim.serve.parse.table import Formats
from brim.serve.prepare.jobs import TokenizerSource
from brim.serve.prepare.trials import Trials
from brim.serve.prepare.worker import Tokenising
from brim.serve.problems import SERVER, Problem
from brim.serve.token_texts import TokenTexts
from brim.serve.watch.watch import Watch

if TYPE_CHECKING:
    from brim.engine.engine import Engine
    from brim.engine.streaming import StreamingEngine
    from brim.ports import MemoryProbe
    from brim.reserve.sizing import Sizer

_SECONDS_TO_START = 5  # what a client that comes too early is told to wait


class State(StrEnum):
    STARTING = "starting"
    READY = "ready"
    DEGRADED = "degraded"  # it answers, after an out-of-memory that is not long ago
    DRAINING = "draining"  # it finishes what it has
    FAILED = "failed"  # the engine has ended


@dataclass(frozen=True, slots=True)
class Started:
    """An engine that is built, and how it was sized."""

    engine: Engine
    tokenizer: TokenizerSource
    report: FitReport | None = None  # None: the size was given
    probe: MemoryProbe | None = None
    neighbours: Sizer | None = None  # None: nobody shares the device


@dataclass(frozen=True, slots=True)
class Running:
    """All that answers requests."""

    started: Started
    serving: StreamingEngine
    tokenising: Tokenising
    gate: Gate
    texts: TokenTexts
    trials: Trials
    formats: Formats = field(default_factory=Formats)

    @property
    def engine(self) -> Engine:
        return self.started.engine


@dataclass(slots=True)
class HttpFigures:
    """Connections, and what was refused before it was a request."""

    connections: int = 0  # open now
    refusals: dict[int, int] = field(default_factory=dict)  # by status; 503: beyond the bound on connections

    def refused(self, status: int) -> None:
        self.refusals[status] = self.refusals.get(status, 0) + 1


class Life:
    """Changes in the event loop's thread; the thread that loads reports its stage."""

    def __init__(self) -> None:
        self.stage: Stage = Stage("start")
        self.running: Running | None = None
        self.watch = Watch()
        self.draining = False
        self.http = HttpFigures()

    def tell(self, stage: Stage) -> None:
        self.stage = stage

    @property
    def engine_health(self) -> Health | None:
        return None if self.running is None else self.running.serving.health

    @property
    def state(self) -> State:
        health = self.engine_health
        if health is not None and health.status is Status.ENDED:
            return State.FAILED
        if self.draining:
            return State.DRAINING
        if health is None:
            return State.STARTING
        return State(health.status)

    def look(self) -> None:
        """Let the watch see how the engine is now."""
        running = self.running
        if running is not None:
            self.watch.look(running.engine.figures, running.serving.health, running.gate.refused_or_displaced)

    def report(self) -> tuple[int, dict[str, Any]]:
        """The status code and body of `/health`."""
        state, health = self.state, self.engine_health
        found: dict[str, Any] = {"status": str(state)}
        if state is State.STARTING:
            found["phase"] = str(self.stage)
        if health is not None and health.reason:
            found["reason"] = health.reason
        return (200 if state in (State.READY, State.DEGRADED) else 503), found

    def admit(self) -> Running:
        """What answers a new request, or why none is taken."""
        state = self.state
        if state in (State.READY, State.DEGRADED):
            assert self.running is not None
            return self.running
        _, found = self.report()
        said = {
            State.STARTING: f"the model is being loaded ({found.get('phase')}); /health says when it is ready",
            State.DRAINING: "the server is shutting down and takes no new requests; ask another one",
            State.FAILED: f"the engine has ended ({found.get('reason')}); the server must be started again",
        }[state]
        retry = _SECONDS_TO_START if state is State.STARTING else None
        raise Problem(503, said, kind=SERVER, code=f"server_{state}", retry_after=retry)

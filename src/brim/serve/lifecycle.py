"""Where a server is in its lifecycle: the one place that `/health`, the endpoints and the signals look at."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from brim.model.tasks import ModelTask
from brim.records.fit import FitReport
from brim.records.health import Health, Status
from brim.records.progress import Stage
from brim.serve.gate import RequestGate
from brim.serve.parse.table import Formats
from brim.serve.prepare.jobs import TokenizerSource
from brim.serve.prepare.trials import Trials
from brim.serve.prepare.worker import Tokenising
from brim.serve.problems import SERVER, Problem
from brim.serve.requests.types import ServedModel
from brim.serve.settings import ServeSettings
from brim.serve.token_texts import TokenTexts
from brim.serve.watch.watch import ServerWatch

if TYPE_CHECKING:
    from brim.engine.engine import Engine
    from brim.engine.pooling.engine import PoolingEngine, PoolingThread
    from brim.engine.streaming import StreamingEngine
    from brim.ports import MemoryProbe
    from brim.reserve.sizing import Sizer

_SECONDS_TO_START = 5  # what a client that comes too early is told to wait


class ServerState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    DEGRADED = "degraded"  # it answers, after an out-of-memory that is not long ago
    DRAINING = "draining"  # it finishes what it has
    FAILED = "failed"  # the engine has ended


@dataclass(frozen=True, slots=True)
class SizedEngine:
    """An engine that is built, and how it was sized."""

    engine: Engine
    tokenizer: TokenizerSource
    report: FitReport | None = None  # None: the size was given
    probe: MemoryProbe | None = None
    neighbours: Sizer | None = None  # None: nobody shares the device


@dataclass(frozen=True, slots=True)
class RunningServer:
    """All that answers requests."""

    started: SizedEngine
    serving: StreamingEngine
    tokenising: Tokenising
    gate: RequestGate
    texts: TokenTexts
    trials: Trials
    formats: Formats = field(default_factory=Formats)

    @property
    def engine(self) -> Engine:
        return self.started.engine


@dataclass(frozen=True, slots=True)
class SizedPooling:
    """An engine that embeds or scores, and how it was sized."""

    engine: PoolingEngine
    tokenizer: TokenizerSource
    report: FitReport | None = None
    probe: MemoryProbe | None = None
    neighbours: Sizer | None = None


@dataclass(frozen=True, slots=True)
class PoolingServer:
    """All that answers requests for embeddings and scores."""

    started: SizedPooling
    serving: PoolingThread
    tokenising: Tokenising
    gate: RequestGate  # a request has a place for each few of its inputs

    @property
    def engine(self) -> PoolingEngine:
        return self.started.engine

    @property
    def task(self) -> ModelTask:
        return self.engine.model.task


AnyServer = RunningServer | PoolingServer
_TASKS = {
    ModelTask.GENERATE: "generates text: use /v1/chat/completions, /v1/completions or /v1/responses",
    ModelTask.EMBED: "embeds texts: use /v1/embeddings, /v1/score or /v1/rerank",
    ModelTask.SCORE: "scores pairs of texts: use /v1/score or /v1/rerank",
}


def served_model(settings: ServeSettings, running: AnyServer | None) -> ServedModel:
    """What bodies depend on, as far as it is known now."""
    found = ServedModel(settings.model_name, lenient=settings.lenient, limits=settings.limits)
    if running is None:
        return found
    if isinstance(running, PoolingServer):
        model = running.engine.model
        return replace(found, vocab=model.vocab, longest=model.max_length, images=False, audio=False, task=model.task)
    engine = running.engine
    return replace(
        found,
        vocab=engine.loaded.vocab,
        longest=engine.longest_request,
        images=engine.image_limits is not None,
        audio=engine.audio_limits is not None,
    )


@dataclass(slots=True)
class HttpFigures:
    """Connections, and what was refused before it was a request."""

    connections: int = 0  # open now
    refusals: dict[int, int] = field(default_factory=dict)  # by status; 503: beyond the bound on connections

    def refused(self, status: int) -> None:
        self.refusals[status] = self.refusals.get(status, 0) + 1


class ServerLifecycle:
    """Changes in the event loop's thread; the thread that loads reports its stage."""

    def __init__(self) -> None:
        self.stage: Stage = Stage("start")
        self.running: RunningServer | None = None  # of a model that generates
        self.pooling: PoolingServer | None = None  # of one that embeds or scores
        self.watch = ServerWatch()
        self.draining = False
        self.http = HttpFigures()
        self.before_close: list[Callable[[], Awaitable[None]]] = []  # what ends before the engine does

    def set_stage(self, stage: Stage) -> None:
        self.stage = stage

    @property
    def engine_health(self) -> Health | None:
        return None if self.any_running is None else self.any_running.serving.health

    @property
    def any_running(self) -> AnyServer | None:
        """Whatever the model is for."""
        return self.running or self.pooling

    @property
    def state(self) -> ServerState:
        health = self.engine_health
        if health is not None and health.status is Status.ENDED:
            return ServerState.FAILED
        if self.draining:
            return ServerState.DRAINING
        if health is None:
            return ServerState.STARTING
        return ServerState(health.status)

    def sample(self) -> None:
        """Let the watch see how the engine is now."""
        running = self.any_running
        if running is not None:
            self.watch.sample(running.engine.figures, running.serving.health, running.gate.refused_or_displaced)

    def report(self) -> tuple[int, dict[str, Any]]:
        """The status code and body of `/health`."""
        state, health = self.state, self.engine_health
        found: dict[str, Any] = {"status": str(state)}
        if state is ServerState.STARTING:
            found["phase"] = str(self.stage)
        if health is not None and health.reason:
            found["reason"] = health.reason
        return (200 if state in (ServerState.READY, ServerState.DEGRADED) else 503), found

    def admit(self) -> RunningServer:
        """What generates an answer to a new request, or why none is taken."""
        found = self.admit_any()
        if isinstance(found, RunningServer):
            return found
        raise _other_task(found.task)

    def admit_pooling(self, *tasks: ModelTask) -> PoolingServer:
        """What answers a new request for one of these tasks, or why none is taken."""
        found = self.admit_any()
        if isinstance(found, PoolingServer) and found.task in tasks:
            return found
        raise _other_task(found.task if isinstance(found, PoolingServer) else ModelTask.GENERATE)

    def admit_any(self) -> AnyServer:
        """What answers a new request, whatever the model is for; or why none is taken."""
        state = self.state
        if state in (ServerState.READY, ServerState.DEGRADED):
            assert self.any_running is not None
            return self.any_running
        _, found = self.report()
        said = {
            ServerState.STARTING: f"the model is being loaded ({found.get('phase')}); /health says when it is ready",
            ServerState.DRAINING: "the server is shutting down and takes no new requests; ask another one",
            ServerState.FAILED: f"the engine has ended ({found.get('reason')}); the server must be started again",
        }[state]
        retry = _SECONDS_TO_START if state is ServerState.STARTING else None
        raise Problem(503, said, kind=SERVER, code=f"server_{state}", retry_after=retry)


def _other_task(served: ModelTask) -> Problem:
    """An endpoint that does not work with the model that is served."""
    return Problem(404, f"the model that is served here {_TASKS[served]}", code="other_task")

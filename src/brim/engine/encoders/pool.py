"""Encoders that share a queue of media: batches given out, features collected, children that died started again.

Nothing here waits but `start`. A child that dies is started again, and is told what the one before it was proven to
hold; one that does not answer is killed first. A start that fails is tried again after a pause that doubles each time.
Media of a lost batch are tried once more, each alone, so that one which kills its encoder takes no other with it; then
they fail. From a start that failed until one has succeeded, `refusal` says why, and all media fail with that.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from multiprocessing import connection
from typing import TYPE_CHECKING

from brim.engine.encoders.batches import first_batch
from brim.engine.encoders.process import EncoderProcess
from brim.engine.encoders.records import EncoderSource, TowerFacts
from brim.engine.encoders.wire import Message, WireClosed
from brim.engine.media.parts import MediaPart
from brim.errors import DeviceError, EncoderFailed, OutOfMemory
from brim.records.progress import Stage, Told, silent

if TYPE_CHECKING:
    import torch

START_SECONDS = 600.0
_PAUSE_SECONDS = 0.25  # before the first restart; doubled by each that fails
_LONGEST_PAUSE_SECONDS = 10.0
_LOOK_SECONDS = 0.2
_TRIES = 2
_PATIENCE_SECONDS = 60.0  # with a batch, beyond what the start took: batches as large as any were run in it


@dataclass(slots=True, eq=False)
class Job:
    """A part to be encoded."""

    key: Hashable
    part: MediaPart
    tries: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """Features of a batch, in shared memory until `release` is called."""

    jobs: tuple[Job, ...]
    rows: torch.Tensor | None  # None: another rank has them
    release: Callable[[], None]


@dataclass(frozen=True, slots=True, eq=False)
class NotEncoded:
    job: Job
    why: str
    passing: bool = False  # it may be encoded later


@dataclass(slots=True, eq=False)
class _Worker:
    """One encoder across its restarts: its child, and what has become of it."""

    source: EncoderSource
    child: EncoderProcess | None = None
    jobs: tuple[Job, ...] = ()  # of the batch that it has
    proven: TowerFacts | None = None  # of the first that was ready
    failures: int = 0  # starts since one was ready
    again_at: float = 0.0  # when it is started again
    problem: str = ""  # why there is no child, or why the last one has gone
    unable: bool = False  # one has gone before it was ready, and none was ready since
    lacks_memory: bool = False  # that is why
    since: float = 0.0  # when the child was started, or was given its batch
    patience: float = START_SECONDS  # how long it may go without a word from then on


@dataclass(slots=True)
class EncoderFigures:
    """What encoders have done so far."""

    batches: int = 0
    parts: int = 0
    restarts: int = 0
    largest_batch: int = field(default=0)  # parts


class Encoders:
    """All encoders of an engine."""

    def __init__(
        self,
        sources: Iterable[EncoderSource],
        *,
        make: Callable[[EncoderSource], EncoderProcess] = EncoderProcess,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._clock = clock
        self._workers = [_Worker(source) for source in sources]
        self._waiting: deque[Job] = deque()
        self._failed: list[NotEncoded] = []
        self._numbers = 0
        self._facts: TowerFacts | None = None
        self.figures = EncoderFigures()
        for worker in self._workers:
            self._launch(worker)

    # -- start and end -------------------------------------------------------------------------------------------

    def start(self, told: Told = silent, seconds: float = START_SECONDS) -> TowerFacts:
        """Wait until all of them are ready; what does not start raises, and nothing is left running."""
        until = time.monotonic() + seconds
        try:
            while any(worker.child is None or worker.child.facts is None for worker in self._workers):
                told(Stage("load", "encoder"))
                self.wait(_LOOK_SECONDS)
                self.check()
                if time.monotonic() > until:
                    raise EncoderFailed(f"the encoder has not started within {seconds:g} s")
        except BaseException:
            self.close()
            raise
        return self.facts

    def check(self) -> None:
        """Raises where one of them could not start. Called while something else is waited for."""
        self._look()
        for worker in self._workers:
            if worker.child is None:
                raise _cannot_start(worker)

    @property
    def facts(self) -> TowerFacts:
        assert self._facts is not None, "encoders are started before they are asked"
        return self._facts

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(worker.child.pid for worker in self._workers if worker.child is not None)

    @property
    def on_device(self) -> tuple[bool, ...]:
        """Of each that runs, whether its features come back in memory of the GPU."""
        return tuple(worker.child.on_device for worker in self._workers if worker.child is not None)

    @property
    def leases(self) -> tuple[tuple[str | None, str], ...]:
        """The device in the ledger of leases, and the role there, of each."""
        return tuple((worker.source.lease, worker.source.role) for worker in self._workers)

    def close(self) -> None:
        for worker in self._workers:
            if worker.child is not None:
                worker.child.end()
                worker.child = None
        self._workers = []
        self._waiting.clear()

    # -- work ----------------------------------------------------------------------------------------------------

    @property
    def working(self) -> bool:
        """Media wait or are being encoded."""
        return bool(self._waiting or self._failed or any(worker.jobs for worker in self._workers))

    @property
    def refusal(self) -> str:
        """Why no media can be encoded at present: no encoder could be started. Empty where they can."""
        if all(worker.unable for worker in self._workers):
            return next((worker.problem for worker in self._workers), "the encoders were closed")
        return ""

    @property
    def problem(self) -> str:
        """What an operator should know: which encoders are not there, and why."""
        return "; ".join(worker.problem for worker in self._workers if worker.problem)

    def submit(self, job: Job) -> None:
        self._waiting.append(job)

    def drop(self, key: Hashable) -> None:
        """Nobody waits for this part any more; if a child has it, its features come back all the same."""
        self._waiting = deque(job for job in self._waiting if job.key != key)

    def poll(self) -> tuple[list[Encoded], list[NotEncoded]]:
        """What has come back; gives out what can be."""
        done = self._look()
        self._end_silent()
        self._restart()
        self._give_out()
        failed, self._failed = self._failed, []
        return done, failed

    def wait(self, seconds: float) -> None:
        """Until a message is here, or so long."""
        connection.wait([worker.child.wire.fileno() for worker in self._workers if worker.child is not None], seconds)

    def _look(self) -> list[Encoded]:
        done: list[Encoded] = []
        for worker in self._workers:
            if worker.child is None:
                continue
            try:
                for message in worker.child.arrived():
                    done += self._heard(worker, worker.child, message)
            except (WireClosed, KeyError, ValueError, TypeError) as error:
                self._lost(worker, f"its process has ended ({error})")
        return done

    def _heard(self, worker: _Worker, child: EncoderProcess, message: Message) -> list[Encoded]:
        match message["op"]:
            case "ready":
                child.became_ready(message)
                self._facts = self._facts or child.facts
                worker.proven = worker.proven or child.facts
                worker.problem, worker.unable, worker.failures = "", False, 0
                worker.patience = _PATIENCE_SECONDS + self._clock() - worker.since
            case "cannot":
                self._lost(worker, str(message["why"]), lacks_memory=bool(message["memory"]))
            case "done":
                jobs, worker.jobs = worker.jobs, ()
                self.figures.batches += 1
                self.figures.parts += len(jobs)
                self.figures.largest_batch = max(self.figures.largest_batch, len(jobs))
                return [Encoded(jobs, child.rows(sum(job.part.tokens for job in jobs)), _releasing(child))]
            case "failed":
                jobs, worker.jobs, child.busy = worker.jobs, (), False
                self._again(jobs, str(message["why"]))
        return []

    def _end_silent(self) -> None:
        """A child that hangs is as good as dead."""
        for worker in self._workers:
            if worker.child is not None and (worker.jobs or worker.child.facts is None):
                waited = self._clock() - worker.since
                if waited > worker.patience:
                    self._lost(worker, f"it has not answered for {waited:.0f} s")

    def _lost(self, worker: _Worker, why: str, *, lacks_memory: bool = False) -> None:
        """A child has gone, or none could be started: this is tried again later, and others get its media."""
        child, worker.child = worker.child, None
        if child is not None:
            child.end()
        worker.unable = worker.unable or child is None or child.facts is None
        worker.lacks_memory = lacks_memory
        jobs, worker.jobs = worker.jobs, ()
        worker.problem = f"{worker.source.role}: {why}"
        pause = min(_PAUSE_SECONDS * 2**worker.failures, _LONGEST_PAUSE_SECONDS)
        worker.failures += 1
        worker.again_at = self._clock() + pause
        self._again(jobs, why)

    def _again(self, jobs: tuple[Job, ...], why: str) -> None:
        for job in reversed(jobs):
            job.tries += 1
            if job.tries < _TRIES:
                self._waiting.appendleft(job)
            else:
                self._failed.append(NotEncoded(job, f"it could not be encoded in {_TRIES} attempts: {why}"))

    def _restart(self) -> None:
        for worker in self._workers:
            if worker.child is None and self._clock() >= worker.again_at:
                self._launch(worker)
                self.figures.restarts += 1

    def _launch(self, worker: _Worker) -> None:
        worker.since, worker.patience = self._clock(), START_SECONDS
        try:
            worker.child = self._make(replace(worker.source, proven=worker.proven))
        except OSError as error:  # the machine has no memory, processes or descriptors left
            self._lost(worker, f"its process cannot be started: {error}")

    def _give_out(self) -> None:
        refusal = self.refusal
        if refusal:
            self._failed += [NotEncoded(job, refusal, passing=True) for job in self._waiting]
            self._waiting.clear()
        for worker in self._workers:
            child = worker.child
            if child is None or child.facts is None or child.busy or not self._waiting:
                continue
            jobs = self._next_batch(child.facts)
            if jobs:
                self._numbers += 1
                worker.jobs, worker.since = jobs, self._clock()
                child.encode(self._numbers, [job.part for job in jobs])

    def _next_batch(self, facts: TowerFacts) -> tuple[Job, ...]:
        """As many of the first as were run in the worst batch; one that has failed before goes alone."""
        first = self._waiting[0]
        fresh = [first] if first.tries else [job for job in self._waiting if not job.tries]
        count = first_batch((job.part for job in fresh), facts)
        if count == 0:
            self._waiting.popleft()
            self._failed.append(NotEncoded(first, "it is larger than what the encoder has memory for"))
            return ()
        jobs = tuple(fresh[:count])
        chosen = {id(job) for job in jobs}
        self._waiting = deque(job for job in self._waiting if id(job) not in chosen)
        return jobs


def _releasing(child: EncoderProcess) -> Callable[[], None]:
    def release() -> None:
        child.busy = False

    return release


def _cannot_start(worker: _Worker) -> DeviceError:
    return OutOfMemory(worker.problem) if worker.lacks_memory else EncoderFailed(worker.problem)

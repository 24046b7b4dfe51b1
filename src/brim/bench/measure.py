"""A run from end to end: the server is asked what it can do, put under load, watched, and reported on."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from brim.bench.bodies import Bodies, RequestDefaults, TextBodies, TokenBodies
from brim.bench.loops import LoadRun, Mix, poisson
from brim.bench.memory import MemoryWatch
from brim.bench.records import Ask, RequestOutcome
from brim.bench.report import Report, Slo
from brim.bench.server import abilities, find_model
from brim.bench.trace import RequestTrace
from brim.client.address import Address
from brim.client.client import Client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_TICK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Closed:
    """Clients that each wait for their answer."""

    clients: int

    def __str__(self) -> str:
        return f"{self.clients} clients, closed loop"


@dataclass(frozen=True, slots=True)
class Open:
    """Requests that do not wait for each other."""

    rate: float  # a second

    def __str__(self) -> str:
        return f"{self.rate:g} requests a second, Poisson"


@dataclass(frozen=True, slots=True)
class Replay:
    """Requests as they were recorded."""

    trace: RequestTrace

    def __str__(self) -> str:
        return f"replay of {len(self.trace.asks):,} requests over {self.trace.seconds:,.0f} s"


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """What a run is to be."""

    loop: Closed | Open | Replay
    mix: Mix
    requests: int | None = None  # None: until the time is over, or the trace
    seconds: float | None = None
    chat: bool = True
    vocab: int | None = None  # prompts are random token ids below this
    prefix_tokens: int = 0  # of every prompt, the same for all
    slo: Slo = field(default_factory=Slo)

    @property
    def seed(self) -> int:
        return self.mix.seed

    def asks(self) -> Iterator[Ask]:
        """All requests of the run, in order."""
        match self.loop:
            case Replay(trace):
                return islice(trace.asks, self.requests)
            case Open(rate):
                return islice(poisson(self.mix.asks(), rate, self.seed + 1), self.requests)
            case Closed():
                return islice(self.mix.asks(), self.requests)


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """A run while it is under way."""

    ended: int
    in_flight: int
    tokens: int
    seconds: float


class LoadMeasurement:
    """One run; what is known of it so far can be reported at any time, also after an interrupt."""

    def __init__(self, address: Address, key: str | None, model: str | None, load: LoadSettings) -> None:
        self._address = address
        self._key = key
        self._model = model
        self._load = load
        self._outcomes: list[RequestOutcome] = []
        self._tokens = 0
        self._watch: MemoryWatch | None = None
        self._run: LoadRun | None = None
        self._cpu_began = 0.0
        self.notes: tuple[str, ...] = ()

    async def run(self, told: Callable[[LoadProgress], None] = lambda state: None) -> Report:
        client = Client(self._address, self._key)
        try:
            bodies = await self._bodies(client)
            self._watch = MemoryWatch(client)
            self._run = run = LoadRun(client, bodies, self._load.seed, self._ended)
            self._cpu_began = time.process_time()
            async with _beside(self._watch.watch(run.began), self._tell(run, told)):
                if isinstance(self._load.loop, Closed):
                    await run.closed(self._load.asks(), self._load.loop.clients, self._load.seconds)
                else:
                    await run.open(self._load.asks(), self._load.seconds)
            await self._watch.look(run.began)
        finally:
            client.close()
        return self.report()

    async def _bodies(self, client: Client) -> Bodies:
        """How requests are written for this server."""
        load = self._load
        self._model = self._model or await find_model(client)
        if load.vocab is not None:
            return TokenBodies(RequestDefaults(self._model), load.vocab)
        found = await abilities(client, self._model, load.chat)
        self.notes = found.notes
        prefix = ""
        if load.prefix_tokens:
            prefix = found.words.text(found.words.overhead + load.prefix_tokens, random.Random(load.seed))
        asked = RequestDefaults(self._model, ignores_end=found.ignores_end)
        return TextBodies(asked, found.words, load.chat, prefix, load.prefix_tokens)

    def _ended(self, outcome: RequestOutcome) -> None:
        self._outcomes.append(outcome)
        self._tokens += outcome.answer_tokens

    async def _tell(self, run: LoadRun, told: Callable[[LoadProgress], None]) -> None:
        while True:
            told(LoadProgress(len(self._outcomes), run.in_flight, self._tokens, time.perf_counter() - run.began))
            await asyncio.sleep(_TICK_SECONDS)

    def report(self) -> Report:
        """Of what has ended by now."""
        began = time.perf_counter() if self._run is None else self._run.began
        last = max((one.ended for one in self._outcomes), default=0.0)
        return Report(
            server=str(self._address),
            model=self._model,
            load=str(self._load.loop),
            seconds=max(last, 1e-9) if self._outcomes else max(time.perf_counter() - began, 1e-9),
            outcomes=tuple(self._outcomes),
            memory=() if self._watch is None else tuple(self._watch.points),
            slo=self._load.slo,
            client_cpu_seconds=time.process_time() - self._cpu_began,
        )


@asynccontextmanager
async def _beside(*works: object) -> AsyncIterator[None]:
    """Run these until the block is left."""
    tasks = [asyncio.ensure_future(work) for work in works]  # type: ignore[call-overload]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task

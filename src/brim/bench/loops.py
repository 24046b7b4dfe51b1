"""Who asks when: a closed loop of clients, each of which waits for its answer, or requests at given times."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from brim.bench.asking import ask_once
from brim.bench.bodies import Bodies
from brim.bench.lengths import Lengths
from brim.bench.records import Ask, Ending, RequestOutcome
from brim.client.client import Client

_LONGEST_PAUSE = 5.0  # seconds that a client waits that was told to come back later


@dataclass(frozen=True, slots=True)
class Mix:
    """What requests ask for, drawn with a seed."""

    prompt: Lengths
    answer: Lengths
    seed: int = 0

    def asks(self) -> Iterator[Ask]:
        """One after another, without an end; the same for the same seed."""
        numbers = random.Random(self.seed)
        while True:
            yield Ask(self.prompt.draw(numbers), self.answer.draw(numbers))


def poisson(asks: Iterable[Ask], rate: float, seed: int) -> Iterator[Ask]:
    """The same requests at random times, `rate` of them in a second on average."""
    numbers, at = random.Random(seed), 0.0
    for ask in asks:
        yield replace(ask, at=at)
        at += numbers.expovariate(rate)


class LoadRun:
    """One run against a server. `ended` is called with every outcome."""

    def __init__(self, client: Client, bodies: Bodies, seed: int, ended: Callable[[RequestOutcome], None]) -> None:
        self._client = client
        self._bodies = bodies
        self._numbers = random.Random(seed)
        self._ended = ended
        self.began = time.perf_counter()
        self.in_flight = 0

    async def closed(self, asks: Iterator[Ask], clients: int, seconds: float | None) -> None:
        """So many clients, each with one request at a time, until there are no more or the time is over."""
        until = None if seconds is None else self.began + seconds

        async def one() -> None:
            for ask in asks:
                outcome = await self._ask(ask)
                if outcome.ending is Ending.REFUSED:
                    await asyncio.sleep(min(outcome.retry_after, _LONGEST_PAUSE))
                if until is not None and time.perf_counter() >= until:
                    return

        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(one())

    async def open(self, asks: Iterator[Ask], seconds: float | None) -> None:
        """Each at its time, however many have not been answered yet."""
        async with asyncio.TaskGroup() as group:
            for ask in asks:
                if seconds is not None and ask.at >= seconds:
                    return
                await asyncio.sleep(self.began + ask.at - time.perf_counter())
                group.create_task(self._ask(ask))

    async def _ask(self, ask: Ask) -> RequestOutcome:
        body = self._bodies.body(ask, self._numbers)
        self.in_flight += 1
        try:
            asking = ask_once(self._client, self._bodies.path, body, ask, self.began)
            outcome = await asyncio.create_task(asking)  # of its own: hanging up cancels the request alone
        finally:
            self.in_flight -= 1
        self._ended(outcome)
        return outcome

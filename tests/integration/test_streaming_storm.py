"""Many clients on one engine, in several event loops: they come, are cancelled or leave at random points, and go.

Whatever the others do, a client that stays gets the tokens of an undisturbed run, and one that leaves has read the
beginning of them. At the end, or if the engine is closed or fails in the middle, no client waits and nothing is held.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from brim.engine.engine import Engine
from brim.engine.requests.params import SamplingParams
from brim.engine.requests.request import FinishReason
from brim.engine.settings import EngineSettings
from brim.engine.streaming import StreamingEngine
from brim.errors import DeviceError, InvalidRequest
from tests.integration.streaming_clients import fail_at_a_step, nothing_is_held, settled

Read = dict[int, list[int]]  # tokens of each answer of a request
WAYS = {  # how clients behave, and how many of a hundred do
    "stays": 25,
    "is cancelled": 25,
    "times out": 15,
    "leaves": 10,
    "drops its generator": 10,
    "has a deadline": 5,
    "is refused": 10,
}


def engine() -> Engine:
    """So small that requests wait for a place."""
    settings = EngineSettings(max_batch=16, max_batch_tokens=64, block_size=8)
    return Engine("brim-random", kv_tokens=360, device="cpu", settings=settings)


@dataclass(frozen=True, slots=True)
class Case:
    """A request, and its answers in an undisturbed run."""

    prompt: str
    params: SamplingParams
    wanted: Read


def cases() -> list[Case]:
    numbers, undisturbed, found = random.Random("cases"), engine(), []
    for number in range(16):
        prompt = "Once upon a time there was a cache "[: numbers.randint(1, 35)] + chr(ord("a") + number)
        params = SamplingParams(
            max_tokens=numbers.choice([2, 5, 8, 30]),
            temperature=number % 2,
            seed=number,
            n=1 + (number % 5 == 0),
            ignore_eos=True,
        )
        answers = undisturbed.generate([prompt], params)
        found.append(Case(prompt, params, {one.index: list(one.tokens) for one in answers}))
    return found


@dataclass(frozen=True, slots=True)
class Storm:
    """Clients that come within some seconds, each with a request of these."""

    serving: StreamingEngine
    cases: list[Case]
    spread_seconds: float

    async def client(self, case: Case, way: str, numbers: random.Random) -> str:
        """Come, behave that way, and go; how it ended."""
        read: Read = {index: [] for index in case.wanted}
        try:
            outcome = await self.behave(case, way, numbers, read)
        except DeviceError as error:
            outcome = str(error)
        except TimeoutError:
            outcome = "timed out"
        except asyncio.CancelledError:
            outcome = "was cancelled"
        for index, tokens in read.items():
            wanted = case.wanted[index]
            assert tokens == (wanted if outcome == "was answered" else wanted[: len(tokens)])
        return outcome

    async def behave(self, case: Case, way: str, numbers: random.Random, read: Read) -> str:
        serving = self.serving
        if way == "is refused":
            with pytest.raises(InvalidRequest):
                await serving.generate(numbers.choice([[], [-1], [10**6], "too long" * 200]), case.params)
            return "was refused"
        if way == "times out":
            async with asyncio.timeout(_some_seconds(numbers)):
                await self.read(case, read)
        elif way == "leaves":
            async with aclosing(serving.stream(case.prompt, case.params)) as updates:
                async for update in updates:
                    read[update.index].append(_token(update))
                    if numbers.random() < 0.3:
                        return "left"
        elif way == "drops its generator":
            async for update in serving.stream(case.prompt, case.params):
                read[update.index].append(_token(update))
                if numbers.random() < 0.3:
                    return "left"
        elif way == "has a deadline":
            for one in await serving.generate(case.prompt, case.params, deadline_seconds=_some_seconds(numbers)):
                read[one.index] += one.tokens
                if one.finish_reason is FinishReason.DEADLINE:
                    return "met its deadline"
        else:
            await self.read(case, read)
        return "was answered"

    async def read(self, case: Case, read: Read) -> None:
        async for update in self.serving.stream(case.prompt, case.params):
            read[update.index].append(_token(update))

    async def visit(self, numbers: random.Random) -> str:
        """A client and, if it is to be cancelled, the task that cancels it."""
        await asyncio.sleep(numbers.random() * self.spread_seconds)
        (way,) = numbers.choices(list(WAYS), list(WAYS.values()))
        task = asyncio.create_task(self.client(numbers.choice(self.cases), way, numbers))
        if way == "is cancelled":
            moment = numbers.randrange(4)
            if moment == 3:
                await asyncio.sleep(_some_seconds(numbers))
            else:  # before it runs, with its submit in the queue, or about when that is answered
                for _ in range(moment):
                    await asyncio.sleep(0)
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            return "was cancelled"  # before it ran

    async def clients(self, count: int, seed: str) -> Counter[str]:
        visits = [self.visit(random.Random(f"{seed} {number}")) for number in range(count)]
        return Counter(await asyncio.gather(*visits))


def _some_seconds(numbers: random.Random) -> float:
    """At once, about when an answer begins, or in the middle of one, on a machine of any speed."""
    return 10 ** numbers.uniform(-4, 0)


def _token(update: Any) -> int:
    assert update.token is not None
    return int(update.token)


def blow(
    storm: Storm, count: int, loops: int, seed: int, seconds: float, interfere: Callable[[], None] = lambda: None
) -> Counter[str]:
    """Run so many clients in so many event loops; how they ended."""

    def one_loop(number: int) -> Counter[str]:
        return asyncio.run(asyncio.wait_for(storm.clients(count // loops, f"{seed} {number}"), seconds))

    with ThreadPoolExecutor(loops) as threads:
        running: list[Future[Counter[str]]] = [threads.submit(one_loop, number) for number in range(loops)]
        interfere()
        return sum((one.result() for one in running), Counter[str]())


def weather(count: int, loops: int, seed: int, seconds: float) -> Counter[str]:
    """A storm that nothing ends; then the engine must be empty before it is closed."""
    serving = StreamingEngine(engine())
    serving.start()
    storm = Storm(serving, cases(), spread_seconds=count / 250)
    outcomes = blow(storm, count, loops, seed, seconds)
    asyncio.run(asyncio.wait_for(settled(serving), 10))
    assert nothing_is_held(serving.engine)
    assert serving.in_flight == 0
    assert outcomes.total() == count
    serving.close()
    return outcomes


def test_a_thousand_clients_come_and_go() -> None:
    outcomes = weather(1000, loops=2, seed=1, seconds=90)
    expected = {"was answered", "was cancelled", "timed out", "left", "was refused", "met its deadline"}
    assert set(outcomes) == expected
    assert min(outcomes.values()) >= 5, outcomes
    assert outcomes["was answered"] >= 200, outcomes  # those who stay, and some for whom the rest came too late
    assert outcomes["was cancelled"] >= 150, outcomes


@pytest.mark.parametrize("end", ["the engine was closed", "the engine has stopped: out of luck"])
def test_an_end_in_the_middle_of_the_storm(end: str) -> None:
    serving = StreamingEngine(engine())
    serving.start()
    ended_at: list[float] = []

    def interfere() -> None:
        began = time.monotonic()
        while serving.engine.figures.drawn < 300 and time.monotonic() < began + 20:
            time.sleep(0.01)
        if end == "the engine was closed":
            serving.close()
            assert nothing_is_held(serving.engine)
        else:
            fail_at_a_step(serving.engine, ValueError("out of luck"))
        ended_at.append(time.monotonic())

    storm = Storm(serving, cases(), spread_seconds=2.0)
    outcomes = blow(storm, 600, loops=2, seed=2, seconds=30, interfere=interfere)
    assert time.monotonic() - ended_at[0] < 30  # two for the last to come, the rest for a busy machine
    assert outcomes.total() == 600
    assert outcomes[end] >= 150, outcomes
    assert outcomes["was answered"] >= 1, outcomes
    serving.close()
    assert nothing_is_held(serving.engine)
    assert serving.in_flight == 0
    assert serving._commands.empty()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_many_thousand_clients_come_and_go(seed: int) -> None:
    outcomes = weather(10_000, loops=4, seed=100 + seed, seconds=1200)
    assert outcomes["was answered"] >= 2500

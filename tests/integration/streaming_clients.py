"""Clients of an engine in a thread, for the tests of streaming: bounded in time, held where a test wants them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from brim.engine.engine import Engine
from brim.engine.requests.params import SamplingParams
from brim.engine.settings import EngineSettings
from brim.engine.streaming import StreamingEngine
from brim.errors import InvalidRequest

Result = TypeVar("Result")
GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
LONG = SamplingParams(max_tokens=500, temperature=0, ignore_eos=True)
SECONDS = 30  # a stream that hangs fails its test, and does not hang the others


def engine() -> Engine:
    settings = EngineSettings(max_batch=4, max_batch_tokens=32)
    return Engine("brim-random", kv_tokens=1024, device="cpu", settings=settings)


def run(scenario: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(asyncio.wait_for(scenario, SECONDS))


async def settled(serving: StreamingEngine) -> None:
    """Wait until the engine has nothing left to do, without closing it."""
    with pytest.raises(InvalidRequest):  # answered behind all commands that wait
        await serving.generate([])
    while not serving.engine.idle or serving.in_flight:
        await asyncio.sleep(0.005)


def nothing_is_held(engine: Engine) -> bool:
    figures = engine.figures
    return engine.idle and (figures.blocks_held, figures.running, figures.waiting) == (0, 0, 0)


class Held:
    """A method of the engine that waits in the engine's thread until it is let go."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._method: Callable[..., Any] = getattr(engine, name)
        self._reached, self._let_go = threading.Event(), threading.Event()
        setattr(engine, name, self)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self._reached.set()
        assert self._let_go.wait(SECONDS)
        return self._method(*arguments, **options)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._reached.wait, SECONDS)

    def let_go(self) -> None:
        self._let_go.set()


def fail_at_a_step(served: Engine, error: BaseException) -> None:
    """The next step raises, once."""
    step = served.step

    def failing() -> list[Any]:
        served.step = step  # type: ignore[method-assign]
        raise error

    served.step = failing  # type: ignore[method-assign]


async def begun(serving: StreamingEngine, count: int = 1) -> list[asyncio.Task[Any]]:
    """Clients that have read their first update and go on reading."""
    first = [asyncio.Event() for _ in range(count)]

    async def read(event: asyncio.Event) -> None:
        async for _ in serving.stream("Once upon a time", LONG):
            event.set()

    tasks = [asyncio.create_task(read(event)) for event in first]
    for event in first:
        await event.wait()
    return tasks

"""Tokens made in a process of their own: the engine's thread and the event loop share an interpreter with nothing slow.

`Tokenising` is all that the endpoints know of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, TypeVar

from brim.errors import BrimError, DeviceError, InvalidRequest
from brim.serve.prepare.jobs import ChatJob, Prepared, TokenizerSource
from brim.serve.prepare.processes import processes
from brim.serve.prepare.remote.fetching import Fetching

Result = TypeVar("Result")
_TRIES = 2
_COUNTED_AT_ONCE = 1  # a prompt that is to be answered waits for one that is only counted, at most


class Tokenising:
    """Makes prompts; a worker that died is replaced, and its jobs are given to the new one once."""

    def __init__(
        self,
        source: TokenizerSource,
        new_pool: Callable[[], Executor] = processes,
        fetching: Fetching | None = None,
    ) -> None:
        self._source = source
        self._new_pool = new_pool
        self._pool = new_pool()
        self._fetching = fetching or Fetching()
        self._counting = asyncio.Semaphore(_COUNTED_AT_ONCE)

    async def chat(self, job: ChatJob, *, only_counted: bool = False) -> Prepared:
        dialogue = await self._fetching.fetched(job.dialogue, job.limits)
        async with self._turn(only_counted):
            return await self._run(_chat, self._source, replace(job, dialogue=dialogue))

    async def texts(
        self, texts: Sequence[str], *, special: bool = True, longest: int | None = None, only_counted: bool = False
    ) -> list[tuple[int, ...]]:
        """Tokens of texts; those that cannot have fewer than `longest` are refused before they are read."""
        async with self._turn(only_counted):
            return await self._run(_texts, self._source, list(texts), special, longest)

    def _turn(self, only_counted: bool) -> AbstractAsyncContextManager[Any]:
        """Prompts that nobody will answer wait for each other."""
        return self._counting if only_counted else nullcontext()

    async def ready(self) -> None:
        """Wait until the tokenizer is loaded."""
        await self._run(_load, self._source)

    def close(self) -> None:
        self._fetching.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        for _ in range(_TRIES):
            pool = self._pool
            try:
                return await asyncio.get_running_loop().run_in_executor(pool, work, *arguments)
            except BrokenProcessPool:
                if self._pool is pool:  # nobody else has replaced it meanwhile
                    self._pool = self._new_pool()
        raise DeviceError("the process that makes tokens has died twice on this request")


# -- in a worker: the heavy imports are here, so that the server listens before them -------------------------------


def _load(source: TokenizerSource) -> None:
    from brim.serve.prepare.desk import desk_of

    with _plain_errors():
        desk_of(source).load_processor()


def _chat(source: TokenizerSource, job: ChatJob) -> Prepared:
    from brim.serve.prepare.desk import desk_of

    with _plain_errors():
        return desk_of(source).chat(job)


def _texts(source: TokenizerSource, texts: Sequence[str], special: bool, longest: int | None) -> list[tuple[int, ...]]:
    from brim.serve.prepare.desk import desk_of

    with _plain_errors():
        return [desk_of(source).tokens(text, special, longest) for text in texts]


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Errors as they can cross between processes: with one text."""
    try:
        yield
    except BrimError as error:
        raise InvalidRequest(str(error)) from None

"""The updates of all prompts and answers of one request, as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from brim.engine.front.answers import Update
from brim.serve.gate import QueuedRequest
from brim.serve.log import RequestLogEntry
from brim.serve.responses.answers import FinishedAnswer


class Numbered:
    """Updates with the number of their answer among all of the request; answers that have ended are kept."""

    def __init__(
        self,
        updates: AsyncGenerator[tuple[int, Update], None],
        answers: int,
        entry: RequestLogEntry,
        place: QueuedRequest,
    ) -> None:
        self._updates = updates
        self._answers = answers
        self._entry = entry
        self._place = place
        self.ended: list[FinishedAnswer] = []

    async def __aiter__(self) -> AsyncGenerator[tuple[int, Update], None]:
        async for prompt, update in self._updates:
            self._place.begun = True
            number = prompt * self._answers + update.index
            if update.token is not None:
                self._entry.took_token()
            if update.completion is not None:
                self.ended.append(FinishedAnswer(number, update.completion))
                self._entry.ended(update.completion)
            yield number, update


async def merged(streams: Sequence[AsyncGenerator[Update, None]]) -> AsyncGenerator[tuple[int, Update], None]:
    """Updates of several requests as they come, with the number of the request; an error of one ends all."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for update in only:
                yield 0, update
        return
    news: asyncio.Queue[tuple[int, Update | Exception | None]] = asyncio.Queue()

    async def read(number: int, stream: AsyncGenerator[Update, None]) -> None:
        try:
            async with aclosing(stream):
                async for update in stream:
                    news.put_nowait((number, update))
            news.put_nowait((number, None))
        except Exception as error:  # noqa: BLE001 - raised below, where the answer is awaited
            news.put_nowait((number, error))

    tasks = [asyncio.create_task(read(number, stream)) for number, stream in enumerate(streams)]
    try:
        left = len(tasks)
        while left:
            number, one = await news.get()
            if isinstance(one, Exception):
                raise one
            if one is None:
                left -= 1
            else:
                yield number, one
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

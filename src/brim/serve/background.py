"""Answers that nobody waits for: those of `/v1/responses` with `background`.

Each has its place at the gate, its share and its deadline like any other, and ends with the server's drain; only its
client need not stay. `BackgroundAnswer` is where its events go; while it runs it is found here by its key and id, and
then among the stored responses. Events are kept for those that were asked for as a stream: in memory, bounded for all
together, the oldest that have ended first. Changed in the event loop's thread alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from brim.serve.http.reply import dumped, dumped_beside, event_line
from brim.serve.problems import SERVER, Problem
from brim.serve.responses.responses_api import ResponseOutline, ResponsesApiFormatter
from brim.units import MIB

if TYPE_CHECKING:
    from asyncio import Task

Json = dict[str, Any]
MOST_EVENT_BYTES = 32 * MIB
MOST_ENDED = 256  # whose events are kept
_LINES_AT_ONCE = 64  # of a replay


class BackgroundAnswer:
    """One of them, from when it was read. Takes what a stream to a client would."""

    def __init__(
        self,
        key: tuple[str, str],
        outline: ResponseOutline,
        items: Sequence[Json],
        keep: Callable[[Json], None],
        among: BackgroundAnswers,
        *,
        replays: bool,
    ) -> None:
        """`key`: its tenant's name and its id; `items`: what it was given to; `replays`: its events are kept.

        `keep` stores a response that failed or was cancelled.
        """
        self.key = key
        self.items = items
        self.status = 0  # as of a response: 0 until its first event
        self.task: Task[None] | None = None
        self.formatter: ResponsesApiFormatter | None = None  # once its prompt is made
        self.replays = replays
        self.ended = False
        self.event_bytes = 0
        self._outline = outline
        self._keep = keep
        self._among = among
        self._entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines: list[bytes] = []  # by sequence number
        self._news = asyncio.Event()

    @property
    def response(self) -> Json:
        if self.formatter is None or not self.status:
            return self._outline.json("queued")
        return self.formatter.current("in_progress")

    # -- its way ---------------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """The gate has let it in: from now on it is found."""
        self._among.add(self)
        self._entered.set_result(None)

    async def entered(self) -> None:
        """Wait until it is inside, or refused."""
        await asyncio.shield(self._entered)

    async def begin_events(self) -> None:
        self.status = 200

    async def events(self, found: list[Json], *, large: bool = False) -> None:
        """They are kept as they are sent; `large` ones are written beside the event loop."""
        if not self.replays:
            return
        lines = await asyncio.to_thread(_written, found, dumped_beside) if large else _written(found, dumped)
        self._lines += lines
        size = sum(map(len, lines))
        self.event_bytes += size
        self._among.grew(self, size)
        self._tell()

    async def end_events(self, last_line: bytes) -> None:
        """The response is among those that are stored."""

    async def fail(self, problem: Problem) -> None:
        if not self._entered.done():
            self._entered.set_exception(problem)
            self._entered.exception()  # its client may have left
            return
        code = "server_error" if problem.kind == SERVER else problem.code or "invalid_prompt"
        await self._end_early("failed", error={"code": code, "message": problem.message})

    async def cancelled(self) -> None:
        if not self._entered.done():
            self._entered.cancel()
            return
        await self._end_early("cancelled")

    async def _end_early(self, status: str, **found: Any) -> None:
        response = (
            self._outline.json(status, **found) if self.formatter is None else self.formatter.current(status, **found)
        )
        self._keep(response)
        if status == "failed":
            event = {"type": "response.failed", "response": response, "sequence_number": len(self._lines)}
            await self.events([event])

    def close(self) -> None:
        """It has ended, in whatever way."""
        self.ended = True
        self._among.ended(self)
        self._tell()

    async def cancel(self) -> None:
        assert self.task is not None
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.shield(self.task)

    # -- its events --------------------------------------------------------------------------------------------------

    def forget_events(self) -> None:
        self.replays = False
        self.event_bytes = 0
        self._lines = []
        self._tell()

    async def followed(self, after: int) -> AsyncGenerator[bytes, None]:
        """Its events behind that of this number (-1: all), those to come included."""
        place = after + 1
        while True:
            while place < len(self._lines):
                some = self._lines[place : place + _LINES_AT_ONCE]
                yield b"".join(some)
                place += len(some)
                await asyncio.sleep(0)  # a client that reads fast keeps nobody else waiting
            if not self.replays:
                said = "its events take too much memory and are not kept any more; ask for the response without stream"
                yield event_line(Problem(503, said, kind=SERVER, code="events_dropped").body)
                return
            if self.ended:
                return
            await self._news.wait()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


def _written(events: Sequence[Json], dump: Callable[[Any], bytes]) -> list[bytes]:
    return [event_line(one, dump) for one in events]


class BackgroundAnswers:
    """Those that run, and those that have ended and whose events are kept, oldest first."""

    def __init__(self, most_bytes: int = MOST_EVENT_BYTES, most_ended: int = MOST_ENDED) -> None:
        self._most_bytes = most_bytes
        self._most_ended = most_ended
        self._running: dict[tuple[str, str], BackgroundAnswer] = {}
        self._ended: dict[tuple[str, str], BackgroundAnswer] = {}
        self.event_bytes = 0

    def add(self, answer: BackgroundAnswer) -> None:
        self._running[answer.key] = answer

    def running(self, tenant: str, name: str) -> BackgroundAnswer | None:
        return self._running.get((tenant, name))

    def replayed(self, tenant: str, name: str) -> BackgroundAnswer | None:
        """One whose events are kept."""
        found = self._running.get((tenant, name)) or self._ended.get((tenant, name))
        return found if found is not None and found.replays else None

    def forget(self, tenant: str, name: str) -> None:
        """One that has ended."""
        found = self._ended.pop((tenant, name), None)
        if found is not None:
            self.event_bytes -= found.event_bytes

    def ended(self, answer: BackgroundAnswer) -> None:
        if self._running.pop(answer.key, None) is not None and answer.replays:
            self._ended[answer.key] = answer
            if len(self._ended) > self._most_ended:
                self.forget(*next(iter(self._ended)))

    def grew(self, answer: BackgroundAnswer, size_bytes: int) -> None:
        """Make room for what one has grown by; where there is none, its own events are dropped."""
        self.event_bytes += size_bytes
        while self.event_bytes > self._most_bytes and self._ended:
            self.forget(*next(iter(self._ended)))
        if self.event_bytes > self._most_bytes:
            self.event_bytes -= answer.event_bytes
            answer.forget_events()

    async def close(self) -> None:
        """The server ends, and they with it."""
        for answer in list(self._running.values()):
            await answer.cancel()

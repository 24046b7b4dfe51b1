"""The way of a request that generates: read, let in, prepared, submitted, streamed, and logged.

Raw ASGI: the client is watched while it is answered, and an answer that nobody reads any more is cancelled. What is
different between endpoints is in what `Endpoint.read` returns, and in what that prepares.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from starlette.requests import Request

from brim.engine.front.answers import Update
from brim.engine.front.validation import GenerationRequest
from brim.engine.media.prepare import GivenMedia
from brim.engine.requests.params import SamplingParams
from brim.errors import BrimError
from brim.serve.gate import QueuedRequest
from brim.serve.http.keys import Tenant, share_of
from brim.serve.http.parsing import parsed
from brim.serve.http.reading import ClientGone, read_body, until_gone
from brim.serve.http.reply import HttpReply
from brim.serve.lifecycle import RunningServer, ServerLifecycle
from brim.serve.log import RequestLog, RequestLogEntry
from brim.serve.prepare.jobs import Prepared
from brim.serve.problems import Problem, problem_of
from brim.serve.requests.sampling import AnswerRequest, sooner
from brim.serve.responses.answers import FinishedAnswer, ResponseFormatter
from brim.serve.settings import ServeSettings

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

CLIENT_LEFT = 499  # as proxies log it
DEADLINE_HEADER = "x-deadline-seconds"


@dataclass(frozen=True, slots=True)
class RequestContext:
    """One request under way: whose it is, what answers it, and its entry in the log."""

    tenant: Tenant
    running: RunningServer
    entry: RequestLogEntry

    async def prepared(
        self, making: Awaitable[tuple[Prepared, ...]], field: str, remedy: str = "send less"
    ) -> tuple[Prepared, ...]:
        """Its prompts, none of them too long; `field` is where they were written."""
        with self.entry.preparing():
            prompts = await making
        self.entry.prepared(prompts)
        for one in prompts:
            self.running.engine.check_prompt_length(len(one.tokens), field=field, remedy=remedy)
        return prompts


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """Prompts for the engine, how answers to them are sampled, and how they are written."""

    prompts: tuple[Prepared, ...]
    params: SamplingParams
    formatter: ResponseFormatter


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A body that was read. It is prepared when the gate has let it in, as so many answers."""

    wanted: AnswerRequest
    answers: int
    prepare: Callable[[], Awaitable[PreparedRequest]]


class Endpoint(Protocol):
    """What is different between the endpoints that generate."""

    async def read(self, found: Mapping[str, Any], size_bytes: int, context: RequestContext) -> ReadRequest:
        """The object in a body of so many bytes, checked."""
        ...


class LoggedEndpoint:
    """An endpoint as an ASGI application: from a body to a reply or a refusal, with a line of the log for each."""

    def __init__(
        self,
        path: str,
        lifecycle: ServerLifecycle,
        settings: ServeSettings,
        request_log: RequestLog,
    ) -> None:
        self._path = path
        self._lifecycle = lifecycle
        self._settings = settings
        self._request_log = request_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        tenant: Tenant = scope["state"]["tenant"]
        entry = self._request_log.entry(
            self._path, tenant.name, None if request.client is None else request.client.host
        )
        reply = HttpReply(send, {"x-request-id": entry.id})
        try:
            body = await self._read(request)
            await until_gone(receive, self._answer(request, body, tenant, reply, entry))
        except ClientGone:
            entry.status = 0 if reply.ended else CLIENT_LEFT  # a server may say so as soon as the last byte is sent
        except Problem as problem:
            await self._refuse(problem, reply, entry)
        except BrimError as error:
            await self._refuse(problem_of(error), reply, entry)
        finally:
            entry.status = entry.status or reply.status or 500
            self._request_log.write(entry)

    async def _read(self, request: Request) -> bytes:
        return await read_body(request, self._settings.limits)

    async def _refuse(self, problem: Problem, reply: HttpReply, entry: RequestLogEntry) -> None:
        entry.error = problem.code or problem.kind
        entry.status = problem.status
        await reply.problem(problem)

    async def _answer(
        self, request: Request, body: bytes, tenant: Tenant, reply: HttpReply, entry: RequestLogEntry
    ) -> None:
        """Answer, or raise why not; cancelled where the client leaves."""
        raise NotImplementedError


class Answering(LoggedEndpoint):
    """One of the endpoints that generate."""

    def __init__(
        self,
        path: str,
        endpoint: Endpoint,
        lifecycle: ServerLifecycle,
        settings: ServeSettings,
        request_log: RequestLog,
    ) -> None:
        super().__init__(path, lifecycle, settings, request_log)
        self._endpoint = endpoint

    async def _parsed(self, request: Request, body: bytes) -> Mapping[str, Any]:
        return await parsed(body)

    async def _answer(
        self, request: Request, body: bytes, tenant: Tenant, reply: HttpReply, entry: RequestLogEntry
    ) -> None:
        self._lifecycle.admit()
        found = await self._parsed(request, body)
        running = self._lifecycle.admit()  # it may have begun to drain meanwhile
        context = RequestContext(tenant, running, entry)
        asked = await self._endpoint.read(found, len(body), context)
        wanted = sooner(asked.wanted, request.headers.get(DEADLINE_HEADER))
        share = share_of(tenant, entry.address)
        with running.gate.entered(asked.answers, share, asyncio.current_task()) as place:
            prepared = await asked.prepare()
            updates = merged(_streams(context, prepared, wanted))
            async with aclosing(updates):
                numbered = Numbered(updates, prepared.params.n, entry, place)
                respond = _events if wanted.stream else _whole
                await respond(prepared.formatter, numbered, reply)


def _streams(
    context: RequestContext, prepared: PreparedRequest, wanted: AnswerRequest
) -> list[AsyncGenerator[Update, None]]:
    """A request to the engine for each prompt; several are numbered behind the id that the client gets."""
    entry, tenant, prompts = context.entry, context.tenant, prepared.prompts
    ids = [entry.id] if len(prompts) == 1 else [f"{entry.id}/{number}" for number in range(len(prompts))]
    deadline = _deadline_left(wanted, entry)
    return [
        context.running.serving.stream_request(
            GenerationRequest(
                one.tokens,
                prepared.params,
                _media(one),
                deadline_seconds=deadline,
                request_id=request_id,
                salt=tenant.salt,
                priority=wanted.priority,
                share=share_of(tenant, entry.address),
            )
        )
        for one, request_id in zip(prompts, ids, strict=True)
    ]


def _deadline_left(wanted: AnswerRequest, entry: RequestLogEntry) -> float | None:
    """Seconds for the engine, of those that the client gives."""
    if wanted.deadline_seconds is None:
        return None
    left = wanted.deadline_seconds - (time.monotonic() - entry.began)
    if left <= 0:
        raise Problem(504, f"deadline_seconds: {wanted.deadline_seconds:g} passed before it began", code="deadline")
    return left


def _media(prepared: Prepared) -> GivenMedia:
    """The processor's output, under the name of each kind that is in it."""
    if prepared.media is None:
        return GivenMedia()
    import torch

    from brim.engine.media.parts import MediaKind
    from brim.engine.media.processed import Processed

    arrays = {name: torch.from_numpy(array) for name, array in prepared.media.items()}
    tensors = Processed(arrays, {MediaKind.IMAGE: prepared.image_digests})
    return GivenMedia(tensors if prepared.images else (), tensors if prepared.audios else ())


# -- the updates of all prompts and answers of one request, as one stream ----------------------------------------------


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


async def _events(formatter: ResponseFormatter, numbered: Numbered, reply: HttpReply) -> None:
    """Stream an answer. What is refused is refused before anything is sent: the first update is waited for."""
    async for number, update in numbered:
        found = (formatter.opening() if not reply.status else []) + formatter.events(number, update)
        if not reply.status:
            await reply.begin_events()
        await reply.events(found)
    await reply.events(formatter.closing(numbered.ended))
    await reply.end_events(formatter.last_line)


async def _whole(formatter: ResponseFormatter, numbered: Numbered, reply: HttpReply) -> None:
    async for number, update in numbered:
        formatter.note(number, update)
    whole = formatter.whole(sorted(numbered.ended, key=lambda one: one.number))
    await (reply.text(whole) if isinstance(whole, str) else reply.json(whole))

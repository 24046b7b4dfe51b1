"""The way of a request that generates: read, let in, prepared, submitted, streamed, and logged.

Raw ASGI: the client is watched while it is answered, and an answer that nobody reads any more is cancelled. What is
different between endpoints is in what `Endpoint.read` returns, and in what that prepares.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from starlette.requests import Request

from brim.engine.front.answers import Completion, Update
from brim.engine.front.validation import GenerationRequest
from brim.engine.media.prepare import GivenMedia
from brim.engine.requests.params import SamplingParams
from brim.errors import BrimError
from brim.serve.api.word_tokens import TextsAsTokens, token_texts
from brim.serve.background import BackgroundAnswer
from brim.serve.gate import QueuedRequest
from brim.serve.http.keys import Tenant, share_of
from brim.serve.http.parsing import parsed
from brim.serve.http.reading import ClientGone, read_body, until_gone
from brim.serve.http.reply import HttpReply, dumped_beside
from brim.serve.lifecycle import RunningServer, ServerLifecycle
from brim.serve.log import RequestLog, RequestLogEntry
from brim.serve.prepare.jobs import Prepared
from brim.serve.problems import ANTHROPIC_PATH, Problem, invalid, problem_of
from brim.serve.requests.answer_request import AnswerRequest, sooner
from brim.serve.requests.answer_warnings import current_warnings, warn_all
from brim.serve.responses.answers import FinishedAnswer, ResponseFormatter
from brim.serve.settings import ServeSettings

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

CLIENT_LEFT = 499  # as proxies log it
DEADLINE_HEADER = "x-deadline-seconds"
MOST_SCORES = 1 << 17  # log-probabilities of prompts in one answer
MOST_SCORES_AT_ONCE = 128  # tokens whose scores are written by the event loop itself, with all alternatives
REQUEST_ID = "x-request-id"
_ALSO_NAMED = {ANTHROPIC_PATH: ("request-id",)}  # where that API's clients look


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
            warn_all(one.warnings)
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
    background: BackgroundAnswer | None = None  # where its answer goes, if not to the client


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
        named = dict.fromkeys((REQUEST_ID, *_ALSO_NAMED.get(self._path, ())), entry.id)
        reply = HttpReply(send, named, self._path)
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
            if not entry.in_background:
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
        if asked.background is None:
            async with _entered(asked, wanted, context) as (prepared, numbered):
                respond = _events if wanted.stream else _whole
                await respond(prepared.formatter, numbered, reply)
        else:
            await self._begin(asked, asked.background, wanted, context, reply)

    async def _begin(
        self,
        asked: ReadRequest,
        answer: BackgroundAnswer,
        wanted: AnswerRequest,
        context: RequestContext,
        reply: HttpReply,
    ) -> None:
        """Let the answer go its way, and tell the client of it: at once, or as it comes for as long as it stays."""
        answer.task = asyncio.create_task(self._in_background(asked, answer, wanted, context))
        await answer.entered()
        if not wanted.stream:
            await reply.json(warned(answer.response))
            return
        await reply.begin_events()
        async for line in answer.followed(-1):
            await reply.lines(line)
        await reply.end_events(b"")

    async def _in_background(
        self, asked: ReadRequest, answer: BackgroundAnswer, wanted: AnswerRequest, context: RequestContext
    ) -> None:
        entry = context.entry
        try:
            async with _entered(asked, wanted, context, answer.enter) as (prepared, numbered):
                await _events(prepared.formatter, numbered, answer)
            entry.status = 200
        except asyncio.CancelledError:
            entry.status = CLIENT_LEFT
            await answer.cancelled()
        except (Problem, BrimError) as error:
            problem = error if isinstance(error, Problem) else problem_of(error)
            entry.error, entry.status = problem.code or problem.kind, problem.status
            await answer.fail(problem)
        finally:
            answer.close()
            if entry.in_background:
                entry.status = entry.status or 500
                self._request_log.write(entry)


@asynccontextmanager
async def _entered(
    asked: ReadRequest, wanted: AnswerRequest, context: RequestContext, let_in: Callable[[], None] | None = None
) -> AsyncGenerator[tuple[PreparedRequest, Numbered], None]:
    """A request inside of the gate: prepared, and with the engine. `let_in` is told that it has a place."""
    entry = context.entry
    share = share_of(context.tenant, entry.address)
    with context.running.gate.entered(asked.answers, share, asyncio.current_task()) as place:
        if let_in is not None:
            entry.in_background = True
            let_in()
        prepared = await asked.prepare()
        _check_scores(wanted, prepared)
        texts = await token_texts(wanted, prepared.params, context.running)
        updates = merged(_streams(context, prepared, wanted, texts))
        async with aclosing(updates):
            yield prepared, Numbered(updates, prepared.params.n, entry, place)


def _streams(
    context: RequestContext, prepared: PreparedRequest, wanted: AnswerRequest, texts: TextsAsTokens
) -> list[AsyncGenerator[Update, None]]:
    """A request to the engine for each prompt; several are numbered behind the id that the client gets."""
    entry, tenant, prompts = context.entry, context.tenant, prepared.prompts
    ids = [entry.id] if len(prompts) == 1 else [f"{entry.id}/{number}" for number in range(len(prompts))]
    deadline = _deadline_left(wanted, entry)
    return [
        context.running.serving.stream_request(
            GenerationRequest(
                one.tokens,
                texts.params,
                _media(one),
                deadline_seconds=deadline,
                request_id=request_id,
                salt=wanted.salt(tenant.salt),
                priority=wanted.priority,
                share=share_of(tenant, entry.address),
                prediction=texts.prediction,
            )
        )
        for one, request_id in zip(prompts, ids, strict=True)
    ]


def _check_scores(wanted: AnswerRequest, prepared: PreparedRequest) -> None:
    """Refuse prompts with more scores than an answer may have."""
    if wanted.prompt_scores is None:
        return
    tokens = sum(len(one.tokens) for one in prepared.prompts) * prepared.params.n
    if tokens * (wanted.prompt_scores + 1) > MOST_SCORES:
        most = MOST_SCORES // (wanted.prompt_scores + 1)
        said = f"{tokens} tokens of prompts are scored for all answers, with {wanted.prompt_scores} alternatives each"
        raise invalid("prompt_logprobs", f"{said}; at most {most} may be: ask for fewer, or send shorter prompts")


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
                self._entry.took_token(number)
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


class EventSink(Protocol):
    """Where the events of an answer go."""

    status: int  # 0: nothing has been sent

    async def begin_events(self) -> None: ...

    async def events(self, found: list[dict[str, Any]], *, large: bool = False) -> None: ...

    async def end_events(self, last_line: bytes) -> None: ...


async def _events(formatter: ResponseFormatter, numbered: Numbered, reply: EventSink) -> None:
    """Stream an answer. What is refused is refused before anything is sent: the first update is waited for."""
    said = False
    async for number, update in numbered:
        opening = formatter.opening() if not reply.status else []
        beside = _scores_of(update.completion or update) > MOST_SCORES_AT_ONCE
        make = partial(formatter.events, number, update)
        found = opening + (await asyncio.to_thread(make) if beside else make())
        if not reply.status:
            await reply.begin_events()
        if found and not said:
            found[0], said = warned(found[0]), True
        await reply.events(found, large=beside)
    beside = sum(_scores_of(one.completion) for one in numbered.ended) > MOST_SCORES_AT_ONCE
    make_last = partial(formatter.closing, numbered.ended)
    last = await asyncio.to_thread(make_last) if beside else make_last()
    await reply.events([warned(one) if "response" in one else one for one in last], large=beside)
    await reply.end_events(formatter.last_line)


async def _whole(formatter: ResponseFormatter, numbered: Numbered, reply: HttpReply) -> None:
    async for number, update in numbered:
        formatter.note(number, update)
    ended = sorted(numbered.ended, key=lambda one: one.number)
    beside = sum(_scores_of(one.completion) for one in ended) > MOST_SCORES_AT_ONCE
    make = partial(formatter.whole, ended)
    if isinstance(whole := await asyncio.to_thread(make) if beside else make(), str):
        await reply.text(whole)
    elif beside:
        await reply.written(await asyncio.to_thread(lambda: dumped_beside(warned(whole))))
    else:
        await reply.json(warned(whole))


def _scores_of(found: Completion | Update) -> int:
    """Tokens of prompt and answer whose log-probabilities are to be written."""
    own = found.logprobs
    return len(found.prompt_logprobs) + (len(own) if isinstance(own, tuple) else 0)


def warned(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer, or an event that has one, with what must be said of its request (`brim.warnings`)."""
    texts = current_warnings().texts
    if not texts:
        return answer
    for inside in ("response", "message"):  # an event of `/v1/responses` or `/v1/messages`
        if inside in answer:
            return answer | {inside: warned(answer[inside])}
    return answer | {"brim": answer.get("brim", {}) | {"warnings": texts}}

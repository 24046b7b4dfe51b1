"""The endpoints that generate: a request is read, let in, made into tokens, answered, and logged.

Raw ASGI: the client is watched while it is answered, and an answer that nobody reads any more is cancelled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from brim.engine.front.answers import Update
from brim.errors import BrimError
from brim.guard.shares import ClientShare
from brim.serve.http.endpoints import Endpoint
from brim.serve.http.keys import Tenant, share_of
from brim.serve.http.parsing import checked, parsed
from brim.serve.http.reading import ClientGone, read_body, until_gone
from brim.serve.http.reply import HttpReply
from brim.serve.http.updates import Numbered, merged
from brim.serve.lifecycle import RunningServer, ServerLifecycle
from brim.serve.log import RequestLog, RequestLogEntry
from brim.serve.prepare.jobs import Prepared
from brim.serve.problems import Problem, problem_of
from brim.serve.requests.generation import AnswerRequest, sooner
from brim.serve.responses.answers import ResponseFormatter
from brim.serve.settings import ServeSettings

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

CLIENT_LEFT = 499  # as proxies log it
DEADLINE_HEADER = "x-deadline-seconds"


class Answering:
    """One of these endpoints, as an ASGI application."""

    def __init__(
        self, path: str, kind: Endpoint, lifecycle: ServerLifecycle, settings: ServeSettings, request_log: RequestLog
    ) -> None:
        self._path = path
        self._kind = kind
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
            body = await read_body(request, self._settings.limits)
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

    async def _refuse(self, problem: Problem, reply: HttpReply, entry: RequestLogEntry) -> None:
        entry.error = problem.code or problem.kind
        entry.status = problem.status
        await reply.problem(problem)

    async def _answer(
        self, request: Request, body: bytes, tenant: Tenant, reply: HttpReply, entry: RequestLogEntry
    ) -> None:
        self._lifecycle.admit()
        found = await parsed(body)
        running = self._lifecycle.admit()  # it may have begun to drain meanwhile
        size = len(body) + self._kind.stored_bytes(found, tenant)
        asked = await checked(partial(self._kind.read, found, running, tenant), size)
        wanted = sooner(asked.wanted, request.headers.get(DEADLINE_HEADER))
        check_model(wanted.model, self._settings.model_name)
        share = share_of(tenant, entry.address)
        with running.gate.entered(self._kind.answers(asked), share, asyncio.current_task()) as place:
            with entry.preparing():
                prepared = await self._kind.prepare(asked, running, tenant)
            entry.prepared(prepared)
            _check_lengths(prepared, running.engine.longest_request, self._kind.field)
            wanted = replace(wanted, params=await self._kind.params(asked, prepared, running))
            shape = self._kind.shape(asked, prepared, running)
            updates = merged(self._streams(running, prepared, wanted, tenant, share, entry))
            async with aclosing(updates):
                numbered = Numbered(updates, wanted.params.n, entry, place)
                await (_events(shape, numbered, reply) if wanted.stream else _whole(shape, numbered, reply))

    def _streams(
        self,
        running: RunningServer,
        prepared: Sequence[Prepared],
        wanted: AnswerRequest,
        tenant: Tenant,
        share: ClientShare,
        entry: RequestLogEntry,
    ) -> list[AsyncGenerator[Update, None]]:
        """A request to the engine for each prompt; several are numbered behind the id that the client gets."""
        ids = [entry.id] if len(prepared) == 1 else [f"{entry.id}/{number}" for number in range(len(prepared))]
        deadline = _deadline_left(wanted, entry)
        return [
            running.serving.stream(
                one.tokens,
                wanted.params,
                **_media(one),
                deadline_seconds=deadline,
                request_id=request_id,
                salt=tenant.salt,
                priority=wanted.priority,
                share=share,
            )
            for one, request_id in zip(prepared, ids, strict=True)
        ]


def check_model(name: str | None, served: str) -> None:
    if name is not None and name != served:
        raise Problem(
            404,
            f"model: there is no '{name:.60}' here; this server has '{served}'",
            param="model",
            code="model_not_found",
        )


def _deadline_left(wanted: AnswerRequest, entry: RequestLogEntry) -> float | None:
    """Seconds for the engine, of those that the client gives."""
    if wanted.deadline_seconds is None:
        return None
    left = wanted.deadline_seconds - (time.monotonic() - entry.began)
    if left <= 0:
        raise Problem(504, f"deadline_seconds: {wanted.deadline_seconds:g} passed before it began", code="deadline")
    return left


def _check_lengths(prepared: Sequence[Prepared], longest: int, field: str) -> None:
    """Before the engine's thread looks at every token of a prompt that is far too long."""
    for one in prepared:
        if len(one.tokens) >= longest:
            raise Problem(
                400,
                f"{field}: {len(one.tokens)} tokens leave no room for an answer in the {longest} of one request; "
                'send less, or let a chat roll with "truncation": "auto"',
                param=field,
                code="context_length_exceeded",
            )


async def _events(shape: ResponseFormatter, numbered: Numbered, reply: HttpReply) -> None:
    """Stream an answer. What is refused is refused before anything is sent: the first update is waited for."""
    async for number, update in numbered:
        found = (shape.opening() if not reply.status else []) + shape.events(number, update)
        if not reply.status:
            await reply.begin_events()
        await reply.events(found)
    await reply.events(shape.closing(numbered.ended))
    await reply.end_events(shape.last_line)


async def _whole(shape: ResponseFormatter, numbered: Numbered, reply: HttpReply) -> None:
    async for number, update in numbered:
        shape.note(number, update)
    await reply.json(shape.whole(sorted(numbered.ended, key=lambda one: one.number)))


def _media(prepared: Prepared) -> dict[str, Mapping[str, Any]]:
    """The processor's output, under the name of each kind that is in it."""
    if prepared.media is None:
        return {}
    import torch

    from brim.engine.media.parts import MediaKind
    from brim.engine.media.processed import Processed

    arrays = {name: torch.from_numpy(array) for name, array in prepared.media.items()}
    tensors = Processed(arrays, {MediaKind.IMAGE: prepared.image_digests})
    counts = {"images": prepared.images, "audios": prepared.audios}
    return {kind: tensors for kind, count in counts.items() if count}

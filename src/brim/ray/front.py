"""A front end: reads requests, chooses their replicas, and passes answers on as they come.

An ASGI application over the replicas of one or more models (`Replicas`), behind the same keys as they are. What
generates goes where the router says. A request whose replica is lost before anything of its answer was sent is sent
once more, to another; one that has begun ends with an error that says so. What is about the server is asked of all
replicas; everything else is answered by any of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request

from brim.ray import over_all
from brim.ray.prompts import RoutedPrompts
from brim.ray.replica_facts import ReplicaLost, Replicas
from brim.ray.wire import Messages, Sending, Whole, plain_scope
from brim.records.routing import RouteRefusal, RouteRequest
from brim.serve.http.app import guarded
from brim.serve.http.keys import Tenant
from brim.serve.http.page import page_routes
from brim.serve.http.parsing import parsed
from brim.serve.http.reading import ClientGone, read_body, until_gone
from brim.serve.http.reply import HttpReply, dumped
from brim.serve.log import RequestLog, RequestLogEntry
from brim.serve.problems import SERVER, Problem
from brim.serve.settings import ServeSettings

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
_ATTEMPTS = 2
_UNAVAILABLE = 503
_NOBODY = RouteRefusal(5, "no replica is serving at present")
_RESPONSES, _MODELS = "/v1/responses/", "/v1/models/"
_OF_ALL = ("/health", "/load", "/metrics", "/ping", "/v1/memory", "/v1/models")
_WITH_MODEL = ("/tokenize", "/detokenize", "/v1/messages/count_tokens")  # their bodies name it


class _Refused(Exception):
    """By the router: no replica can start it in time."""

    def __init__(self, refusal: RouteRefusal) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal


def make_front(
    models: Mapping[str, Replicas],
    settings: ServeSettings,
    patience_seconds: float,
    write_log: Callable[[str], object] | None = None,
) -> ASGIApp:
    """`models` by name; the keys and limits are those of the settings."""
    front = FrontEnd(models, settings, patience_seconds, write_log)
    return guarded(front, settings, tuple(route.path for route in page_routes()))


class FrontEnd:
    def __init__(
        self,
        models: Mapping[str, Replicas],
        settings: ServeSettings,
        patience_seconds: float,
        write_log: Callable[[str], object] | None = None,
    ) -> None:
        self._models = models
        self._journal = RequestLog(write_log, lambda entry: None)
        self._settings = settings
        self._patience = patience_seconds
        self._prompts: dict[str, RoutedPrompts] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        assert scope["type"] == "http", "nothing else is spoken here"
        generates = scope["method"] == "POST" and scope["path"] in GENERATING
        entry = RequestLogEntry(scope["path"], scope["state"]["tenant"].name, (scope.get("client") or (None,))[0])
        reply = HttpReply(send, {"x-request-id": entry.id} if generates else {}, scope["path"])
        try:
            if generates:
                body = await read_body(Request(scope, receive), self._settings.limits)
                await until_gone(receive, self._generate(scope, body, send))
            else:
                await self._other(scope, receive, send, reply)
        except ClientGone:
            return  # nobody is there to be told
        except Problem as problem:
            await reply.problem(problem)
            if generates:  # what replicas answer is in their own logs
                entry.status, entry.error = problem.status, problem.code or problem.kind
                self._journal.write(entry)

    async def _live(self, receive: Receive, send: Send) -> None:
        """The server says when it starts and when it ends."""
        assert (await receive())["type"] == "lifespan.startup"
        await send({"type": "lifespan.startup.complete"})
        assert (await receive())["type"] == "lifespan.shutdown"
        for prompts in self._prompts.values():
            prompts.close()
        await send({"type": "lifespan.shutdown.complete"})

    # -- what generates ------------------------------------------------------------------------------------------

    async def _generate(self, scope: Scope, body: bytes, send: Send) -> None:
        found = await parsed(body)
        tenant: Tenant = scope["state"]["tenant"]
        name, replicas = self._model(found.get("model"))
        pinned, asked = None, RouteRequest(patience_seconds=self._patience)
        earlier = found.get("previous_response_id")
        if scope["path"] == "/v1/responses" and isinstance(earlier, str):
            pinned = await self._holder(replicas, scope, earlier)
        if pinned is None:
            prompts = await self._prompts_of(name, replicas)
            asked = await prompts.route_request(scope["path"], found, len(body), tenant)
        await self._answer(replicas, asked, pinned, scope, body, send)

    def _model(self, name: Any) -> tuple[str, Replicas]:
        if name is None:
            return next(iter(self._models.items()))
        if isinstance(name, str) and name in self._models:
            return name, self._models[name]
        raise Problem(
            404,
            f"model: there is no '{name!s:.60}' here; there are {', '.join(self._models)}",
            param="model",
            code="model_not_found",
        )

    async def _prompts_of(self, name: str, replicas: Replicas) -> RoutedPrompts:
        if name not in self._prompts:
            try:
                facts = await asyncio.wait_for(replicas.facts(), self._patience)
            except (ReplicaLost, TimeoutError):
                raise _as_problem(_NOBODY) from None
            self._prompts.setdefault(name, RoutedPrompts(facts, self._settings.limits, self._patience))
        return self._prompts[name]

    async def _answer(
        self,
        replicas: Replicas,
        asked: RouteRequest,
        pinned: str | None,
        scope: Scope,
        body: bytes,
        send: Send,
    ) -> None:
        plain, begun = plain_scope(scope), _Begun(send)
        for attempt in range(_ATTEMPTS):
            sending = Sending(asked, pinned)
            last = attempt == _ATTEMPTS - 1 or pinned is not None
            try:
                stream = replicas.stream(sending, plain, body)
                async with aclosing(_unless_refused(stream, sending, self._patience)) as answer:
                    async for messages in answer:
                        for message in messages:
                            await begun.take(message, final=last)
                return
            except _Refused as refused:
                raise _as_problem(refused.refusal) from None
            except ReplicaLost as lost:
                if begun.sent:
                    await begun.break_off(_broken_off(lost))
                    return
                if last:
                    raise _lost_twice(lost) from None
                asked = replace(asked, excluded=asked.excluded | {sending.went_to or ""})
                begun.forget()

    async def _holder(self, replicas: Replicas, scope: Scope, response: str) -> str | None:
        """The replica that has a stored response; None: none of them, which any of them says."""
        asked = {**plain_scope(scope), "method": "GET", "path": _RESPONSES + response, "query_string": b""}
        return next((one.replica for one in await replicas.every(asked, b"") if one.status == 200), None)

    # -- what does not -------------------------------------------------------------------------------------------

    async def _other(self, scope: Scope, receive: Receive, send: Send, reply: HttpReply) -> None:
        path, plain = scope["path"], plain_scope(scope)
        if (scope["method"] == "GET" and path in _OF_ALL) or (scope["method"] == "POST" and path == "/ping"):
            await self._of_all(path, plain, send, reply)
        elif path.startswith(_RESPONSES):
            await self._first_found(plain, send)
        else:
            body = (
                b""
                if scope["method"] in ("GET", "HEAD")
                else await read_body(Request(scope, receive), self._settings.limits)
            )
            asked = RouteRequest(patience_seconds=self._patience)
            replicas = await self._named(path, body)
            await until_gone(receive, self._answer(replicas, asked, None, scope, body, send))

    async def _named(self, path: str, body: bytes) -> Replicas:
        """Those of the model that a request is about; of the first where that is not said."""
        name = path.removeprefix(_MODELS) if path.startswith(_MODELS) else None
        if path in _WITH_MODEL:
            name = (await parsed(body)).get("model")
        found = self._models.get(name) if isinstance(name, str) else None
        return found or next(iter(self._models.values()))

    async def _of_all(self, path: str, plain: dict[str, Any], send: Send, reply: HttpReply) -> None:
        if path == "/health":
            status, found = over_all.health(await self._every(plain))
            await reply.json(found, status)
        elif path == "/ping":
            asked = {**plain, "method": "GET", "path": "/health"}
            await _send_whole(send, over_all.health(await self._every(asked))[0], [(b"content-length", b"0")], b"")
        elif path == "/load":
            await reply.json(over_all.load(await self._every(plain)))
        elif path == "/v1/memory":
            chosen = _take_replica(plain)
            await reply.json(over_all.memory(await self._every(plain), chosen))
        elif path == "/v1/models":
            await reply.json(over_all.models(await self._every(plain)))
        elif path == "/metrics":
            body = over_all.metrics(await self._every(plain))
            await _send_whole(send, 200, [(b"content-type", CONTENT_TYPE_LATEST.encode())], body)

    async def _every(self, plain: dict[str, Any]) -> list[Whole]:
        found = await asyncio.gather(*(replicas.every(plain, b"") for replicas in self._models.values()))
        return [one for some in found for one in some]

    async def _first_found(self, plain: dict[str, Any], send: Send) -> None:
        """A stored response is at one replica; the others say that they do not have it."""
        found = sorted(await self._every(plain), key=lambda one: (one.status != 200, one.status == 404))
        if not found:
            raise Problem(503, "no replica answers", kind=SERVER, retry_after=5)
        await _send_whole(send, found[0].status, found[0].headers, found[0].body)


class _Begun:
    """Sends an answer on, and knows whether any of it was sent: its head waits for the first of its body."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._head: dict[str, Any] | None = None
        self.sent = False

    def forget(self) -> None:
        self._head = None

    async def take(self, message: dict[str, Any], *, final: bool) -> None:
        if message["type"] == "http.response.start":
            if message["status"] == _UNAVAILABLE and not final:
                raise ReplicaLost("it takes no requests at present")
            self._head = message
            return
        if self._head is not None:
            await self._send(self._head)
            self._head, self.sent = None, True
        await self._send(message)

    async def break_off(self, problem: Problem) -> None:
        """Nothing that was sent can be taken back: the answer ends with an error."""
        await self._send({"type": "http.response.body", "body": b"data: " + dumped(problem.body) + b"\n\n"})


async def _unless_refused(
    answer: AsyncGenerator[Messages, None], sending: Sending, seconds: float
) -> AsyncGenerator[Messages, None]:
    """The messages of an answer; `_Refused` where the router has refused the request, or found nobody in time."""
    async with aclosing(answer):
        refused: asyncio.Future[Any] = asyncio.wrap_future(sending.refused)
        first: asyncio.Future[Any] = asyncio.ensure_future(anext(answer, None))
        try:
            done, _ = await asyncio.wait({first, refused}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not done and sending.went_to is None:
                raise _Refused(_NOBODY)
            await asyncio.wait({first, refused}, return_when=asyncio.FIRST_COMPLETED)
            if refused.done() and not first.done():
                raise _Refused(refused.result())
            messages = first.result()
        finally:
            for waiting in (first, refused):
                if not waiting.done():
                    waiting.cancel()
                    await asyncio.gather(waiting, return_exceptions=True)
        if messages is not None:
            yield messages
            async for messages in answer:
                yield messages


def _as_problem(refusal: RouteRefusal) -> Problem:
    wait = refusal.retry_after_seconds
    return Problem(
        429,
        f"{refusal.reason}; try again in {wait} s",
        kind="rate_limit_error",
        code="no_replica_in_time",
        retry_after=wait,
    )


def _broken_off(lost: ReplicaLost) -> Problem:
    return Problem(
        502,
        f"the replica that was answering has ended ({lost}); the rest of this answer will not come: ask again",
        kind=SERVER,
        code="replica_lost",
    )


def _lost_twice(lost: ReplicaLost) -> Problem:
    return Problem(
        503,
        f"the replicas that were to answer have ended ({lost}); nothing of the answer was sent: ask again",
        kind=SERVER,
        code="replica_lost",
        retry_after=5,
    )


def _take_replica(plain: dict[str, Any]) -> str | None:
    """`?replica=NAME` is the front end's own; the rest of the query is the replicas'."""
    query = parse_qs(plain["query_string"].decode("latin-1"), keep_blank_values=True)
    chosen = next(iter(query.pop("replica", [])), None)
    plain["query_string"] = urlencode(query, doseq=True).encode()
    return chosen


async def _send_whole(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

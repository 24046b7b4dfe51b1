"""Requests and answers between processes: what a front end sends to a replica, and ASGI messages that come back.

`answered` runs an ASGI application for one request whose body is there, and yields what it sends, several messages at
once where they are ready. When the consumer leaves, the application sees that its client has gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from brim.records.routing import RouteRefusal, RouteRequest

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Scope

_LEAVE_SECONDS = 5.0
Messages = list[dict[str, Any]]
_SCOPE_FIELDS = ("type", "http_version", "method", "scheme", "path", "query_string", "headers", "client", "server")


def plain_scope(scope: Mapping[str, Any]) -> dict[str, Any]:
    """Of an ASGI scope, what crosses between processes."""
    found = {name: scope[name] for name in _SCOPE_FIELDS if name in scope}
    found["headers"] = [(bytes(name), bytes(value)) for name, value in scope["headers"]]
    return found


@dataclass(slots=True)
class Sending:
    """A request on its way to a replica. The router, in the same process, says here what became of it."""

    asked: RouteRequest
    pinned: str | None = None  # the only replica that can answer
    refused: Future[RouteRefusal] = field(default_factory=Future)
    counted_at: str | None = None  # the replica that it is counted at, before Ray has sent it there
    went_to: str | None = None

    def refuse(self, refusal: RouteRefusal) -> None:
        if not self.refused.done():
            self.refused.set_result(refusal)

    def __reduce__(self) -> tuple[Any, ...]:
        return Sending, (self.asked, self.pinned)  # the replica needs neither


@dataclass(frozen=True, slots=True)
class Whole:
    """All of an answer, and whose it is."""

    replica: str
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


async def answered(app: ASGIApp, scope: Scope, body: bytes) -> AsyncGenerator[Messages, None]:
    """What the application sends, in order."""
    sent: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
    gone = asyncio.Event()
    bodies = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if bodies:
            return bodies.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.put_nowait(dict(message))

    working: asyncio.Task[None] = asyncio.create_task(app(scope, receive, send))  # type: ignore[arg-type]
    working.add_done_callback(lambda _: sent.put_nowait(None))
    try:
        while (message := await sent.get()) is not None:
            found = [message]
            with suppress(asyncio.QueueEmpty):
                while (more := sent.get_nowait()) is not None:
                    found.append(more)
                sent.put_nowait(None)
            yield found
        await working  # what it raised
    finally:
        gone.set()
        if not working.done():  # it notices that nobody reads any more, and cancels what it asked of the engine
            await asyncio.wait({working}, timeout=_LEAVE_SECONDS)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


async def whole_answer(app: ASGIApp, scope: Scope, body: bytes, replica: str) -> Whole:
    status, headers, parts = 500, [], []
    async for messages in answered(app, scope, body):
        for message in messages:
            if message["type"] == "http.response.start":
                status, headers = message["status"], list(message.get("headers", []))
            else:
                parts.append(message.get("body", b""))
    return Whole(replica, status, headers, b"".join(parts))

"""One response: a JSON object, or a stream of events. Knows whether it has begun: then an error is an event."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from brim.serve.problems import Problem

if TYPE_CHECKING:
    from starlette.types import Send

Json = Mapping[str, Any]


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))  # made once: `json.dumps` makes one each time


def dumped(found: Json | list[Any]) -> bytes:
    return _ENCODER.encode(found).encode(errors="replace")


def event_line(event: Json) -> bytes:
    """One event; those of a type are named after it."""
    name = f"event: {event['type']}\n".encode() if "type" in event else b""
    return name + b"data: " + dumped(event) + b"\n\n"


class HttpReply:
    def __init__(self, send: Send, headers: Mapping[str, str], path: str = "") -> None:
        """`path` of the request: it says what shape an error has."""
        self._send = send
        self._path = path
        self._headers = headers
        self.status = 0  # of the response; 0: it has not begun
        self.ended = False  # all of it was sent

    async def json(self, found: Json, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        body = dumped(found)
        own = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
        await self._begin(status, own)
        await self._end(body)

    async def begin_events(self) -> None:
        await self._begin(200, {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store"})

    async def events(self, found: list[dict[str, Any]]) -> None:
        """Several events in one write."""
        if found:
            await self.lines(b"".join(event_line(one) for one in found))

    async def lines(self, written: bytes) -> None:
        """Events that are written already."""
        await self._send({"type": "http.response.body", "body": written, "more_body": True})

    async def end_events(self, last_line: bytes) -> None:
        await self._end(last_line)

    async def problem(self, problem: Problem) -> None:
        body = problem.body_at(self._path, self._headers.get("x-request-id"))
        if not self.status:
            await self.json(body, problem.status, problem.headers)
            return
        await self.events([body])
        await self._end(b"")

    async def _end(self, body: bytes) -> None:
        self.ended = True
        await self._send({"type": "http.response.body", "body": body})

    async def _begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        written = [(name.lower().encode(), value.encode()) for name, value in {**self._headers, **headers}.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": written})

"""One response: a JSON object, or a stream of events. Knows whether it has begun: then an error is an event."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from brim.serve.problems import Problem
from brim.units import KIB

if TYPE_CHECKING:
    from starlette.types import Send

Json = Mapping[str, Any]
_PIECE_BYTES = 256 * KIB

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))  # made once: `json.dumps` makes one each time


def dumped(found: Json | list[Any]) -> bytes:
    return _ENCODER.encode(found).encode(errors="replace")


def dumped_beside(found: Json | list[Any]) -> bytes:
    """The same of something large: in a thread, others may run meanwhile, which takes longer."""
    return "".join(_ENCODER.iterencode(found)).encode(errors="replace")


def event_line(event: Json, dump: Callable[[Json], bytes] = dumped) -> bytes:
    """One event; those of a type are named after it."""
    name = f"event: {event['type']}\n".encode() if "type" in event else b""
    return name + b"data: " + dump(event) + b"\n\n"


def _joined(events: Sequence[Json], dump: Callable[[Json], bytes]) -> bytes:
    return b"".join(event_line(one, dump) for one in events)


class HttpReply:
    def __init__(self, send: Send, headers: Mapping[str, str], path: str = "") -> None:
        """`path` of the request: it says what shape an error has."""
        self._send = send
        self._path = path
        self._headers = headers
        self.status = 0  # of the response; 0: it has not begun
        self.ended = False  # all of it was sent

    async def json(self, found: Json, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        await self.written(dumped(found), status, headers)

    async def written(self, body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """A JSON object that is written already."""
        own = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
        await self._begin(status, own)
        await self._end(body)

    async def text(self, found: str) -> None:
        body = found.encode(errors="replace")
        await self._begin(200, {"content-type": "text/plain; charset=utf-8", "content-length": str(len(body))})
        await self._end(body)

    async def json_pieces(self, pieces: Iterator[bytes]) -> None:
        """A JSON text that is made as it is sent: in a thread, some of it at a time."""
        body, is_all = await asyncio.to_thread(_next_piece, pieces)
        length = {"content-length": str(len(body))} if is_all else {}
        await self._begin(200, {"content-type": "application/json", **length})
        while not is_all:
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
            body, is_all = await asyncio.to_thread(_next_piece, pieces)
        await self._end(body)

    async def begin_events(self) -> None:
        await self._begin(200, {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store"})

    async def events(self, found: list[dict[str, Any]], *, large: bool = False) -> None:
        """Several events in one write; `large` ones are written beside the event loop."""
        await self.lines(await asyncio.to_thread(_joined, found, dumped_beside) if large else _joined(found, dumped))

    async def lines(self, body: bytes) -> None:
        """Events that are written already."""
        if body:
            await self._send({"type": "http.response.body", "body": body, "more_body": True})

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


def _next_piece(pieces: Iterator[bytes]) -> tuple[bytes, bool]:
    """As many as are worth a write, and whether these are the last."""
    found, size = [], 0
    for one in pieces:
        found.append(one)
        size += len(one)
        time.sleep(0)  # the event loop's thread may run
        if size >= _PIECE_BYTES:
            return b"".join(found), False
    return b"".join(found), True

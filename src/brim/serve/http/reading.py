"""Requests as they come in: bodies of a bounded size, and clients that leave."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from brim.serve.problems import Problem
from brim.units import format_bytes

if TYPE_CHECKING:
    from starlette.types import Receive

Result = TypeVar("Result")
_DISCARDED = 4  # times the limit is read and thrown away: a client reads the answer when it has sent all of its request


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


async def read_body(request: Request, most: int) -> bytes:
    """The body of a request that says it is JSON; a page in a browser cannot say so to another site unasked."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(415, "the body must be JSON: send it with Content-Type: application/json", code="not_json")
    said = request.headers.get("content-length", "")
    if said.isdecimal() and int(said) > _DISCARDED * most:
        raise _too_large(most)
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size <= most:
                parts.append(part)
            elif size > _DISCARDED * most:
                break
    except ClientDisconnect:
        raise ClientGone from None
    if size > most:
        raise _too_large(most)
    return b"".join(parts)


def _too_large(most: int) -> Problem:
    return Problem(413, f"the body is larger than {format_bytes(most)}; send less", code="body_too_large")


async def until_gone(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Do the work, unless the client leaves before it is done: then the work is cancelled."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_left(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        leaving.cancel()
        working.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

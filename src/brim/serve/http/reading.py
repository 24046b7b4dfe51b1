"""Requests as they come in: bodies of a bounded size, and clients that leave."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from brim.serve.problems import Problem
from brim.serve.settings import RequestLimits
from brim.units import format_bytes

if TYPE_CHECKING:
    from starlette.types import Receive

Result = TypeVar("Result")


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


async def read_body(request: Request, limits: RequestLimits) -> bytes:
    """The body of a request that says it is JSON; a page in a browser cannot say so to another site unasked."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(415, "the body must be JSON: send it with Content-Type: application/json", code="not_json")
    return await read_bytes(request, limits)


async def read_bytes(request: Request, limits: RequestLimits) -> bytes:
    """The body of a request, whatever it is."""
    said = request.headers.get("content-length", "")
    if said.isdecimal() and int(said) > limits.body_bytes:
        raise _too_large(limits)
    parts, size = [], 0
    until = asyncio.get_running_loop().time() + limits.body_seconds
    try:
        async with asyncio.timeout_at(until) as patience:
            async for part in request.stream():
                parts.append(part)
                size += len(part)
                if size > limits.body_bytes:
                    raise _too_large(limits)
                patience.reschedule(until + size / limits.body_rate)
    except ClientDisconnect:
        raise ClientGone from None
    except TimeoutError:
        raise _too_slow(limits, size) from None
    return b"".join(parts)


def _too_large(limits: RequestLimits) -> Problem:
    most = format_bytes(limits.body_bytes)
    return Problem(413, f"the body is larger than {most}; send less", code="body_too_large", closes=True)


def _too_slow(limits: RequestLimits, size: int) -> Problem:
    said = f"{limits.body_seconds:g} s, and one more for each {format_bytes(limits.body_rate)}"
    message = f"{size:,} bytes of the body have come, and the time for it has passed ({said})"
    return Problem(408, message, code="request_timeout", closes=True)


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
        del working, leaving  # a task has its error, and that this frame: such a circle keeps the whole request


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

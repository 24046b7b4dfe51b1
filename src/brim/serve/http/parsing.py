"""Bodies as JSON. A large one is parsed beside the event loop, so that nobody's stream waits for it.

A thread is not enough: the parser lets no other thread run before it is done, or calls a function of Python's. So what
it calls for is such a function (`release_gil`), and what it makes without one, lists and texts, is bounded beforehand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from brim.serve.problems import Problem
from brim.serve.requests.fields import parse_object
from brim.units import KIB

Result = TypeVar("Result")
LARGE_BYTES = 256 * KIB
READ_BESIDE_BYTES = 64 * KIB  # some 10 ms of checks
MOST = {b"[": 1 << 17, b"{": 1 << 17, b'"': 1 << 20, b",": 1 << 20}  # of a large body; those in its texts count as well


async def parsed(body: bytes) -> Mapping[str, Any]:
    """The object in a request's body."""
    if len(body) < LARGE_BYTES:
        return parse_object(body)
    return await asyncio.to_thread(_parsed, body)


async def checked(read: Callable[[], Result], size: int) -> Result:
    """What it makes of a body of so many bytes. The checks of a large one are made beside the event loop too."""
    return read() if size < READ_BESIDE_BYTES else await asyncio.to_thread(read)


def _parsed(body: bytes) -> Mapping[str, Any]:
    for mark, most in MOST.items():
        if body.count(mark) > most:
            raise Problem(
                400, f"the body has more than {most:,} of '{mark.decode()}'; send less at once", code="body_too_complex"
            )
    return parse_object(body, release_gil=True)

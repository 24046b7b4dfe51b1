"""Bodies as JSON. A large one is parsed beside the event loop, so that nobody's stream waits for it.

A thread is not enough: the parser lets no other thread run before it is done, or calls a function of Python's. So what
it calls for is such a function (`release_gil`), and what it makes without one, lists and texts, is bounded beforehand.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from brim.serve.problems import Problem
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


def parse_object(body: bytes, *, release_gil: bool = False) -> Mapping[str, Any]:
    """The object in a request's body. `release_gil`: other threads may run while it is parsed, which takes longer."""
    try:
        found = json.loads(body, **(_TURNS if release_gil else {}))
    except RecursionError:
        raise Problem(400, "the body is nested too deeply", code="invalid_json") from None
    except (UnicodeDecodeError, ValueError) as error:
        raise Problem(400, f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(found, dict):
        raise Problem(400, f"the body must be a JSON object: {{…}}, not {type(found).__name__}", code="invalid_json")
    return found


def _integer(digits: str) -> int:
    return int(digits)


def _number(digits: str) -> float:
    return float(digits)


def _object(found: dict[str, Any]) -> dict[str, Any]:
    return found


_TURNS: Mapping[str, Any] = {"parse_int": _integer, "parse_float": _number, "object_hook": _object}


def _parsed(body: bytes) -> Mapping[str, Any]:
    for mark, most in MOST.items():
        if body.count(mark) > most:
            raise Problem(
                400, f"the body has more than {most:,} of '{mark.decode()}'; send less at once", code="body_too_complex"
            )
    return parse_object(body, release_gil=True)

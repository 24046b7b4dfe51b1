"""What an engine and the driver of its rescues tell each other about steps and requests.

A request is known by a key of the engine's own: anything that can be compared and hashed.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

RequestKey = Hashable


@dataclass(frozen=True, slots=True)
class Work:
    """What a step was to compute of one request."""

    request: RequestKey
    tokens: int
    start: int = 0  # tokens of this request that had been computed before
    reached: int = 0  # the most that had been when a step of it failed before, in this rescue; the driver's to fill in


@dataclass(frozen=True, slots=True)
class RequestProgress:
    """How far a request is."""

    request: RequestKey
    computed: int  # tokens that need not be computed: they are in the pool, or will be found there when it starts
    length: int  # tokens of prompt and answer so far
    running: bool = True  # False: it waits, and has no memory of its own


@dataclass(frozen=True, slots=True)
class LaunchBounds:
    """What a step may contain: so many tokens at most, and, where a failed step is run in parts, some requests only."""

    tokens: int
    only: frozenset[RequestKey] | None = None  # None: any
    calm: bool = True  # no step ran out of memory lately: tokens may be drafted

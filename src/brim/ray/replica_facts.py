"""What a replica says of its model once, and how a front end reaches all replicas of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Protocol

from brim.ray.wire import Messages, Sending, Whole
from brim.serve.prepare.jobs import TokenizerSource


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """What a front end needs to know to make the prompts of a model into blocks."""

    model_name: str
    longest_request: int
    block_size: int
    vocab: int
    tokenizer: TokenizerSource


class ReplicaLost(Exception):
    """The replica died, or could not be reached, before its answer was complete."""


class Replicas(Protocol):
    """All replicas of one model."""

    def stream(self, sending: Sending, scope: dict[str, Any], body: bytes) -> AsyncGenerator[Messages, None]:
        """The answer of the one that the router chooses. Closing it cancels the request; raises `ReplicaLost`."""
        ...

    async def every(self, scope: dict[str, Any], body: bytes) -> list[Whole]:
        """The answers of all that answer."""
        ...

    async def facts(self) -> ReplicaFacts: ...

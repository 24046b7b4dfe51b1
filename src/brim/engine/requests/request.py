"""A request as it was asked (`Request`) and as it is being answered (`Sequence`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from brim.engine.requests.params import SamplingParams


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"  # an end-of-text or stop token, or a stop string
    LENGTH = "length"  # max_tokens, or the end of the context
    CANCELLED = "cancelled"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """Prompt tokens [start, end) that stand for an image or a sound.

    `together` forbids to cut it: its tokens see each other in both directions.
    """

    start: int
    end: int
    together: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked, checked at the door."""

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    max_tokens: int  # what was asked, cut to the context
    stop_ids: frozenset[int] = frozenset()
    deadline: float | None = None  # on the clock of `time.monotonic`
    media: Any = None  # prepared media (`brim.engine.media`), None for text
    spans: tuple[MediaSpan, ...] = ()
    salt: bytes = b""  # what the keys depend on beside the tokens
    fork_of: str | None = None  # a request with the same prompt, whose blocks this one may share

"""A request as it was asked, checked at the door."""

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
    ERROR = "error"  # it alone could not go on; the completion says why


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
    """One answer that was asked for. The `n` answers to one prompt have one id, and differ in `index` and seed."""

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
    index: int = 0  # which of the answers; those behind the first may share its prompt's blocks

    @property
    def key(self) -> tuple[str, int]:
        return self.id, self.index

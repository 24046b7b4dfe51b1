"""A request as it was submitted, already checked."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from brim.engine.requests.params import SamplingParams
from brim.guard.shares import EVERYBODY, ClientShare


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"  # an end-of-text or stop token, or a stop string
    LENGTH = "length"  # max_tokens, or the end of the context
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    ERROR = "error"  # only this request failed; the completion says why


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """Prompt tokens [start, end) of an image or of audio.

    `together`: it must not be split between steps, because its tokens attend to each other in both directions.
    """

    start: int
    end: int
    together: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """One requested answer. The `n` answers to one prompt have one id, and differ in `index` and seed."""

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    max_tokens: int  # as requested, limited to the context
    stop_ids: frozenset[int] = frozenset()
    deadline: float | None = None  # on the clock of `time.monotonic`
    media: Any = None  # prepared media (`brim.engine.media`), None for text
    spans: tuple[MediaSpan, ...] = ()
    marks: tuple[tuple[int, bytes], ...] = ()  # places of images, and what they show as digests
    salt: bytes = b""  # what all keys depend on besides the tokens
    session: str | None = None  # the conversation that its tokens belong to
    priority: int = 0  # those of a higher one start first, among those of one share
    share: ClientShare = EVERYBODY  # shares take turns
    prediction: tuple[int, ...] = ()  # what its client expects of the answer: drafts may be taken from it
    index: int = 0  # which of the answers; those after the first may share its prompt's blocks

    @property
    def key(self) -> tuple[str, int]:
        return self.id, self.index

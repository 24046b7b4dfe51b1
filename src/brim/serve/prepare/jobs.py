"""What the process that makes tokens is given, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from brim.serve.prepare.shared_arrays import SharedArray
from brim.serve.requests.dialogue import Dialogue
from brim.serve.settings import RequestLimits


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """Where a worker finds the tokenizer; neither: there is none."""

    folder: Path | None
    bytes_only: bool = False  # every byte is a token
    media: Any = None  # what it takes besides text (`brim.engine.media.allowed.AllowedMedia`); None: nothing


@dataclass(frozen=True, slots=True)
class ChatJob:
    dialogue: Dialogue
    limits: RequestLimits
    threshold: int  # most tokens of prompt and answer
    room: int | None  # for the answer; None: the conversation does not roll
    counted: bool = False  # nobody will answer it
    salt: bytes = b""  # images are found again by requests of the same only


@dataclass(frozen=True, slots=True)
class SeenImage:
    """What the model's processor has made of one image."""

    file_pixels: int  # before it was processed
    output: dict[str, Any]  # without the pixels
    pixels: dict[str, SharedArray]
    digests: tuple[bytes, ...]  # of its parts, as the engine counts them

    @property
    def size_bytes(self) -> int:
        return sum(one.array.nbytes for one in self.pixels.values())

    @property
    def told(self) -> SeenImage:
        """What a worker needs to know of it."""
        return replace(self, pixels={})


TAIL = 64  # characters


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prompt as the engine takes it."""

    tokens: tuple[int, ...]
    media: dict[str, Any] | None = None  # the processor's output, as arrays
    evicted_turns: int = 0
    evicted_tokens: int = 0
    rolls: bool = False
    tail: str = ""  # the end of the prompt's text: where the answer begins
    images: int = 0
    audios: int = 0
    audio_seconds: float = 0.0  # of all audio
    seen: tuple[tuple[str, SeenImage], ...] = ()  # its images by their URIs; pixels only of those that were not known
    image_digests: tuple[bytes, ...] = ()  # of the parts of all images
    warnings: tuple[str, ...] = ()  # what was asked for and has no effect

    @property
    def notes(self) -> dict[str, Any]:
        """What an answer says of its prompt: what a rolling conversation lost."""
        lost = {"evicted_turns": self.evicted_turns, "evicted_tokens": self.evicted_tokens}
        return {"brim": lost} if self.rolls else {}

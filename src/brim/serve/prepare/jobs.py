"""What the process that makes tokens is given, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brim.serve.asked.dialogue import Dialogue
from brim.serve.settings import Limits


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """Where a worker finds the tokenizer; neither: there is none."""

    folder: Path | None
    bytes_only: bool = False  # every byte is a token
    media: Any = None  # what it takes besides text (`brim.engine.media.allowed.AllowedMedia`); None: nothing


@dataclass(frozen=True, slots=True)
class ChatJob:
    dialogue: Dialogue
    limits: Limits
    threshold: int  # most tokens of prompt and answer
    room: int | None  # for the answer; None: the conversation does not roll


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

    @property
    def dropped(self) -> dict[str, int]:
        """What a rolling conversation lost."""
        return {"evicted_turns": self.evicted_turns, "evicted_tokens": self.evicted_tokens}

"""Requests as a server is sent them: the text, tokens or images of an `Ask`, made up."""

from __future__ import annotations

import base64
import random
import struct
import zlib
from dataclasses import dataclass
from typing import Any, Protocol

from brim.bench.records import Ask
from brim.bench.words import Words

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_LEAST_TOKEN = 10  # special tokens are often the first


class Bodies(Protocol):
    """How requests of a run are written."""

    @property
    def path(self) -> str: ...

    def body(self, ask: Ask, numbers: random.Random) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class RequestDefaults:
    """What all requests of a run have in common."""

    model: str | None
    temperature: float = 0.0
    ignores_end: bool = True  # answers are as long as asked, where the server can do that

    def common(self, ask: Ask) -> dict[str, Any]:
        found: dict[str, Any] = {
            "max_tokens": ask.answer_tokens,
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.model is not None:
            found["model"] = self.model
        if self.ignores_end:
            found["ignore_eos"] = True
        return found


@dataclass(frozen=True, slots=True)
class TextBodies:
    """Made-up texts, and images of one colour; different ones in every request, behind a prefix that all share."""

    asked: RequestDefaults
    words: Words
    chat: bool = True
    prefix: str = ""
    prefix_tokens: int = 0
    image_side: int = 112  # pixels

    @property
    def path(self) -> str:
        return CHAT if self.chat else COMPLETIONS

    def body(self, ask: Ask, numbers: random.Random) -> dict[str, Any]:
        text = self.words.text(ask.prompt_tokens - self.prefix_tokens, numbers)
        text = f"{self.prefix} {text}" if self.prefix else text
        if not self.chat:
            return {"prompt": text, **self.asked.common(ask)}
        content: Any = text
        if ask.images:
            images = [_image(self.image_side, numbers) for _ in range(ask.images)]
            content = [*images, {"type": "text", "text": text}]
        return {"messages": [{"role": "user", "content": content}], **self.asked.common(ask)}


@dataclass(frozen=True, slots=True)
class TokenBodies:
    """Random token ids: exact lengths, for servers that take them."""

    asked: RequestDefaults
    vocab: int
    path: str = COMPLETIONS

    def body(self, ask: Ask, numbers: random.Random) -> dict[str, Any]:
        tokens = [numbers.randrange(_LEAST_TOKEN, self.vocab) for _ in range(ask.prompt_tokens)]
        return {"prompt": tokens, **self.asked.common(ask)}


def _image(side: int, numbers: random.Random) -> dict[str, Any]:
    written = base64.b64encode(png(side, numbers.randbytes(3))).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{written}"}}


def png(side: int, colour: bytes) -> bytes:
    """A square of one colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)  # 8 bits for each of three colours
    rows = zlib.compress((b"\0" + colour * side) * side)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")

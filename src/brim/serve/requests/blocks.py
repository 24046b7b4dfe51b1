"""Content blocks of `/v1/messages` as messages of a chat.

In: turns of blocks, as Anthropic writes them. Out: messages as templates take them: turns of one role that follow each
other are one, results of tools become messages of their own, and calls and thinking belong to the assistant's message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from brim.serve.requests import types as t
from brim.serve.requests.answer_format import SCHEMA
from brim.serve.requests.dialogue import Message, message_of
from brim.serve.requests.media import CACHE_HINTS, IMAGE, Image
from brim.serve.requests.tools import NAME_LENGTH

IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_HINTS = (*CACHE_HINTS, "citations")


@dataclass(frozen=True, slots=True)
class Base64Source(t.JsonObject):
    media_type: str = t.required(t.choice(IMAGE_TYPES))
    data: str = t.required(t.text())


@dataclass(frozen=True, slots=True)
class UrlSource(t.JsonObject):
    url: str = t.required(t.TEXT)


_SOURCE = t.tagged({"base64": Base64Source, "url": UrlSource})


def _image(found: Mapping[str, Any], path: str, model: t.ServedModel) -> Image:
    source = _SOURCE.read(found, path, model)
    if isinstance(source, UrlSource):
        return IMAGE.convert(source.url, f"{path}.url", model)
    return Image(f"data:{source.media_type};base64,{source.data}", f"{path}.data")


@dataclass(frozen=True, slots=True)
class ToolUse(t.JsonObject):
    """A call that the model made earlier."""

    id: str = t.required(t.text())
    name: str = t.required(t.text(most=NAME_LENGTH))
    input: Mapping[str, Any] = t.required(SCHEMA)  # any object
    IGNORED = (*_HINTS, "caller", "toolset_name")

    @property
    def entry(self) -> dict[str, Any]:
        return {"type": "function", "function": {"name": self.name, "arguments": self.input}, "id": self.id}


@dataclass(frozen=True, slots=True)
class ThinkingBlock(t.JsonObject):
    thinking: str = t.required(t.TEXT)
    IGNORED = (*_HINTS, "signature")


@dataclass(frozen=True, slots=True)
class RedactedThinking(t.JsonObject):
    """What no model here has thought; it is dropped."""

    IGNORED = ("data",)


_IMAGE_BLOCK = t.wrapped("source", t.JsonType((dict,), _image, _SOURCE.schema), IGNORED=(*_HINTS, "transformations"))
TEXT_BLOCK = t.wrapped("text", t.TEXT, IGNORED=_HINTS)
_TEXT_FILE = t.tagged({"text": t.wrapped("data", t.TEXT, IGNORED=("media_type",))})
_DOCUMENT = t.wrapped("source", _TEXT_FILE, IGNORED=(*_HINTS, "title", "context"))
_RESULT_PART = t.tagged({"text": TEXT_BLOCK, "image": _IMAGE_BLOCK, "document": _DOCUMENT})


@dataclass(frozen=True, slots=True)
class ToolResult(t.JsonObject):
    """What a call gave."""

    tool_use_id: str | None = t.optional(t.text())
    id: str | None = t.optional(t.text())  # some clients call it so
    content: str | tuple[str | Image, ...] = t.optional(t.either(t.TEXT, t.listed(_RESULT_PART)), default="")
    is_error: bool = t.optional(t.FLAG, default=False)
    IGNORED = (*_HINTS, "toolset_name")
    ONE_NEEDED = ("tool_use_id", "id")

    @property
    def message(self) -> Message:
        content = self.content
        if self.is_error and not _says_so(content):
            content = f"Error: {content}" if isinstance(content, str) else ("Error:", *content)
        return message_of("tool", content, tool_call_id=self.tool_use_id or self.id)


def _says_so(content: str | tuple[str | Image, ...]) -> bool:
    first = content if isinstance(content, str) else next((one for one in content if isinstance(one, str)), "")
    return "error" in first[:64].lower()


Block = str | Image | ToolUse | ToolResult | ThinkingBlock | RedactedThinking
_BLOCK = t.tagged(
    {
        "text": TEXT_BLOCK,
        "image": _IMAGE_BLOCK,
        "document": _DOCUMENT,
        "tool_use": ToolUse,
        "tool_result": ToolResult,
        "thinking": ThinkingBlock,
        "redacted_thinking": RedactedThinking,
    },
    offered=lambda part, model: part != "image" or model.images,
)


@dataclass(frozen=True, slots=True)
class MessageTurn(t.JsonObject):
    role: str = t.required(t.choice(("user", "assistant", "system")))
    content: str | tuple[Block, ...] = t.required(t.either(t.TEXT, t.listed(_BLOCK)))
    IGNORED = CACHE_HINTS

    @property
    def blocks(self) -> tuple[Block, ...]:
        return (self.content,) if isinstance(self.content, str) else self.content


def turns_as_messages(turns: Iterable[MessageTurn]) -> list[Message]:
    found: list[Message] = []
    for role, some in groupby(turns, key=lambda turn: turn.role):
        blocks = [block for turn in some for block in turn.blocks]
        found += [one.message for one in blocks if isinstance(one, ToolResult)]
        parts = tuple(one for one in blocks if isinstance(one, str | Image))
        calls = [one.entry for one in blocks if isinstance(one, ToolUse)]
        thought = "".join(one.thinking for one in blocks if isinstance(one, ThinkingBlock))
        if parts or calls or thought or not any(isinstance(one, ToolResult) for one in blocks):
            found.append(message_of(role, parts, tool_calls=calls or None, reasoning_content=thought or None))
    return found

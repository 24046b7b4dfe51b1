"""The messages of a chat, as a model's template takes them, and the exchanges that may be dropped from it.

In: OpenAI's messages. Out: a `Dialogue`. Texts in parts become one text where there are no media, since most templates
know no parts; arguments of tool calls become objects, which templates write as JSON themselves. Images and audio are
not looked into here (`media.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from brim.serve.problems import invalid
from brim.serve.requests.bounds import Bounds
from brim.serve.requests.fields import RequestFields, check_depth, entries
from brim.serve.requests.media import Audio, Image, not_fetched, read_audio, read_audio_url, read_image
from brim.serve.requests.tools import RequestedTools
from brim.serve.settings import RequestLimits

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


Media = Image | Audio
PART_TYPES = ("text", "image_url", "input_audio", "audio_url")


@dataclass(frozen=True, slots=True)
class Message:
    entry: Mapping[str, Any]  # as templates take it
    media: tuple[Media, ...] = ()  # in the order of their parts

    @property
    def role(self) -> str:
        return str(self.entry["role"])


@dataclass(frozen=True, slots=True)
class Dialogue:
    """The opening always stays; exchanges (a turn of the user, and all that followed it) may be dropped."""

    opening: tuple[Message, ...]
    exchanges: tuple[tuple[Message, ...], ...]
    tools: tuple[Mapping[str, Any], ...] = ()

    def with_exchanges(self, numbers: Sequence[int]) -> Dialogue:
        return replace(self, exchanges=tuple(self.exchanges[number] for number in numbers))

    def with_uris(self, uris: Mapping[str, str]) -> Dialogue:
        """With other URIs of images in place of these."""

        def changed(messages: Iterable[Message]) -> tuple[Message, ...]:
            return tuple(replace(one, media=tuple(medium.moved(uris) for medium in one.media)) for one in messages)

        return replace(self, opening=changed(self.opening), exchanges=tuple(map(changed, self.exchanges)))

    @property
    def messages(self) -> tuple[Message, ...]:
        return (*self.opening, *chain.from_iterable(self.exchanges))

    @property
    def media(self) -> tuple[Media, ...]:
        return tuple(one for message in self.messages for one in message.media)

    @property
    def images(self) -> tuple[Image, ...]:
        return tuple(one for one in self.media if isinstance(one, Image))

    @property
    def audios(self) -> tuple[Audio, ...]:
        return tuple(one for one in self.media if isinstance(one, Audio))


def read_dialogue(fields: RequestFields, bounds: Bounds, tools: RequestedTools) -> Dialogue:
    """The field `messages`; the template is told of the tools."""
    found = fields.items("messages")
    if not found:
        raise invalid("messages", "at least one message is needed", "missing_required_parameter")
    bounds.check(found, "messages")
    return dialogue_of(entries(found, "messages"), bounds.limits, tools, "messages")


def dialogue_of(found: Iterable[RequestFields], limits: RequestLimits, tools: RequestedTools, field: str) -> Dialogue:
    """Messages as a dialogue; `field` is where they were written."""
    dialogue = _grouped([_message(entry) for entry in found], tools.tools)
    _check_count(field, "images", len(dialogue.images), limits.images)
    _check_count(field, "audio files", len(dialogue.audios), limits.audios)
    if not limits.remote_media:
        for image in dialogue.images:
            if image.remote:
                raise not_fetched(image.path, "this server fetches nothing (that needs --allow-remote-media)")
    return dialogue


def _check_count(field: str, what: str, count: int, most: int) -> None:
    if count > most:
        raise invalid(field, f"it has {count} {what}; at most {most} may be sent")


def _grouped(messages: Sequence[Message], tools: tuple[Mapping[str, Any], ...]) -> Dialogue:
    """System messages at the beginning are the opening; then each turn of the user begins an exchange."""
    starts = next((number for number, one in enumerate(messages) if one.role != "system"), len(messages))
    exchanges: list[list[Message]] = []
    for message in messages[starts:]:
        if message.role == "user" or not exchanges:
            exchanges.append([])
        exchanges[-1].append(message)
    return Dialogue(tuple(messages[:starts]), tuple(map(tuple, exchanges)), tools)


def _message(fields: RequestFields) -> Message:
    role = fields.text("role")
    if role not in ROLES:
        raise invalid(fields.path("role"), f"{role!r:.40} is not one of {', '.join(ROLES)}")
    content, media = _content(fields)
    entry: dict[str, Any] = {"role": ROLES[role], "content": content}
    if (name := fields.text("name")) is not None:
        entry["name"] = name
    if (answers := fields.text("tool_call_id")) is not None:
        entry["tool_call_id"] = answers
    if calls := fields.items("tool_calls"):
        entry["tool_calls"] = [_call(one) for one in entries(calls, fields.path("tool_calls"))]
    elif content is None:
        raise invalid(fields.path("content"), "it is missing", "missing_required_parameter")
    entry["content"] = content or ""
    if (reasoning := fields.text("reasoning_content")) is not None:
        entry["reasoning_content"] = reasoning
    fields.leave_out(["refusal", "annotations"])
    fields.refuse_others(["audio", "function_call"])
    return Message(entry, media)


def _content(fields: RequestFields) -> tuple[Any, tuple[Media, ...]]:
    content = fields.raw("content")
    if content is None or isinstance(content, str):
        return content, ()
    if not isinstance(content, list):
        raise invalid(fields.path("content"), "must be a string or a list of parts", "invalid_type")
    parts: list[dict[str, str]] = []
    media: list[Media] = []
    for part in entries(content, fields.path("content")):
        match part.text("type"):
            case "text":
                parts.append({"type": "text", "text": part.needed_text("text")})
            case "image_url":
                parts.append({"type": "image"})
                media.append(read_image(part))
            case "input_audio":
                parts.append({"type": "audio"})
                media.append(read_audio(part))
            case "audio_url":
                parts.append({"type": "audio"})
                media.append(read_audio_url(part))
            case other:
                said = f"{other!r:.40} is not supported; {', '.join(PART_TYPES)} are"
                raise invalid(part.path("type"), said, "unsupported_value")
        part.refuse_others()
    if not media:
        return "\n".join(part["text"] for part in parts), ()
    return parts, tuple(media)


def _call(fields: RequestFields) -> dict[str, Any]:
    """A call that the model made earlier."""
    function = fields.inner("function")
    name = function.text("name") if function is not None else None
    if function is None or not name:
        raise invalid(fields.path("function"), "it needs a name and arguments", "missing_required_parameter")
    written = function.raw("arguments")
    if not isinstance(written, str | dict | None):
        raise invalid(function.path("arguments"), "must be a string with JSON, or an object", "invalid_type")
    try:
        arguments = json.loads(written) if isinstance(written, str) else written
    except (ValueError, RecursionError):
        arguments = written
    function.refuse_others()
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    call |= fields.given("id")
    check_depth(call, function.path("arguments"))
    fields.leave_out(["type", "index"])
    fields.refuse_others()
    return call

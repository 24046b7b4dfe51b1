"""The messages of a chat, as a model's template takes them, and the exchanges that may be dropped from it.

In: OpenAI's messages. Out: a `Dialogue`. Texts in parts become one text where there is no image, since most templates
know no parts; arguments of tool calls become objects, which templates write as JSON themselves. Images are data URIs
or URLs here and are not looked into: they are fetched and decoded where the tokens are made.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from brim.serve.asked.fields import Fields, check_depth, entries
from brim.serve.asked.tools import ToolsAsked
from brim.serve.problems import Problem, invalid
from brim.serve.settings import Limits

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


@dataclass(frozen=True, slots=True)
class Image:
    """An image as it was sent, and where: for the message if it is refused."""

    uri: str
    path: str

    @property
    def remote(self) -> bool:
        """Whether it has to be fetched."""
        return self.uri[:8].lower() == "https://"

    def moved(self, uris: Mapping[str, str]) -> Image:
        return replace(self, uri=uris.get(self.uri, self.uri))


@dataclass(frozen=True, slots=True)
class Message:
    entry: Mapping[str, Any]  # as templates take it
    images: tuple[Image, ...] = ()

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
        """With other URIs of images in the place of these."""

        def changed(messages: Iterable[Message]) -> tuple[Message, ...]:
            return tuple(replace(one, images=tuple(image.moved(uris) for image in one.images)) for one in messages)

        return replace(self, opening=changed(self.opening), exchanges=tuple(map(changed, self.exchanges)))

    @property
    def messages(self) -> tuple[Message, ...]:
        return (*self.opening, *chain.from_iterable(self.exchanges))

    @property
    def images(self) -> tuple[Image, ...]:
        return tuple(image for message in self.messages for image in message.images)


def read_dialogue(fields: Fields, limits: Limits, tools: ToolsAsked) -> Dialogue:
    """The field `messages`; the template is told of the tools."""
    found = fields.items("messages")
    if not found:
        raise invalid("messages", "at least one message is needed", "missing_required_parameter")
    return dialogue_of(entries(found, "messages"), limits, tools, "messages")


def dialogue_of(found: Iterable[Fields], limits: Limits, tools: ToolsAsked, field: str) -> Dialogue:
    """Messages as a dialogue; `field` is where they were written."""
    dialogue = _grouped([_message(entry) for entry in found], tools.tools)
    if len(dialogue.images) > limits.images:
        raise invalid(field, f"it has {len(dialogue.images)} images; at most {limits.images} may be sent")
    if not limits.remote_media:
        for image in dialogue.images:
            if image.remote:
                raise _not_fetched(image.path, "this server fetches nothing (that needs --allow-remote-media)")
    return dialogue


def _grouped(messages: Sequence[Message], tools: tuple[Mapping[str, Any], ...]) -> Dialogue:
    """System messages at the beginning are the opening; then each turn of the user begins an exchange."""
    starts = next((number for number, one in enumerate(messages) if one.role != "system"), len(messages))
    exchanges: list[list[Message]] = []
    for message in messages[starts:]:
        if message.role == "user" or not exchanges:
            exchanges.append([])
        exchanges[-1].append(message)
    return Dialogue(tuple(messages[:starts]), tuple(map(tuple, exchanges)), tools)


def _message(fields: Fields) -> Message:
    role = fields.text("role")
    if role not in ROLES:
        raise invalid(fields.path("role"), f"{role!r:.40} is not one of {', '.join(ROLES)}")
    content, images = _content(fields)
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
    return Message(entry, images)


def _content(fields: Fields) -> tuple[Any, tuple[Image, ...]]:
    content = fields.raw("content")
    if content is None or isinstance(content, str):
        return content, ()
    if not isinstance(content, list):
        raise invalid(fields.path("content"), "it must be a text or a list of parts", "invalid_type")
    parts: list[dict[str, str]] = []
    images: list[Image] = []
    for part in entries(content, fields.path("content")):
        match part.text("type"):
            case "text":
                parts.append({"type": "text", "text": part.text("text") or ""})
            case "image_url":
                parts.append({"type": "image"})
                images.append(_image(part))
            case other:
                raise invalid(
                    part.path("type"), f"{other!r:.40} is not supported; text and image_url are", "unsupported_value"
                )
        part.refuse_others()
    if not images:
        return "\n".join(part["text"] for part in parts), ()
    return parts, tuple(images)


def _image(part: Fields) -> Image:
    where = part.inner("image_url")
    uri = where.text("url") if where is not None else None
    if where is None or uri is None:
        raise invalid(part.path("image_url"), "it needs a url", "missing_required_parameter")
    path = where.path("url")
    found = Image(uri, path)
    if not uri.startswith("data:") and not found.remote:
        raise _not_fetched(path, "only data URIs are taken, and https where the server has --allow-remote-media")
    where.leave_out(["detail"])
    where.refuse_others()
    return found


def _not_fetched(path: str, why: str) -> Problem:
    said = f"{path}: {why}; send the image itself, as data:image/png;base64,…"
    return Problem(400, said, param=path, code="remote_url_refused")


def _call(fields: Fields) -> dict[str, Any]:
    """A call that the model made earlier."""
    function = fields.inner("function")
    name = function.text("name") if function is not None else None
    if function is None or not name:
        raise invalid(fields.path("function"), "it needs a name and arguments", "missing_required_parameter")
    written = function.raw("arguments")
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

"""The messages of a chat, as a model's template takes them, and the exchanges that may be dropped from it.

In: OpenAI's messages. Out: a `Dialogue`. Texts in parts become one text where there are no media, since most templates
know no parts; arguments of tool calls become objects, which templates write as JSON themselves. Messages, parts and
calls are counted before any is looked into. Images and audio are not looked into here (`media.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from brim.engine.requests.lengths import no_room
from brim.serve.parse.custom import INPUT
from brim.serve.problems import invalid, problem_of
from brim.serve.requests import types as t
from brim.serve.requests.media import (
    AUDIO_URL,
    CACHE_HINTS,
    IMAGE_URL,
    INPUT_AUDIO,
    Audio,
    Image,
    Media,
    offered,
)
from brim.serve.requests.template import TemplateSettings
from brim.serve.settings import RequestLimits


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
    template: TemplateSettings = field(default_factory=TemplateSettings)

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


def dialogue_of(
    messages: Sequence[Message],
    tools: tuple[Mapping[str, Any], ...],
    limits: RequestLimits,
    where: str,
    template: TemplateSettings,
) -> Dialogue:
    """System messages at the beginning are the opening; then each turn of the user begins an exchange.

    `where` the messages were written; the template is told of the tools.
    """
    starts = next((number for number, one in enumerate(messages) if one.role != "system"), len(messages))
    exchanges: list[list[Message]] = []
    for message in messages[starts:]:
        if message.role == "user" or not exchanges:
            exchanges.append([])
        exchanges[-1].append(message)
    dialogue = Dialogue(tuple(messages[:starts]), tuple(map(tuple, exchanges)), tools, template)
    for what, some, most in (
        ("images", dialogue.images, limits.images),
        ("audio files", dialogue.audios, limits.audios),
    ):
        if len(some) > most:
            raise invalid(where, f"it has {len(some)} {what}; at most {most} may be sent")
    return dialogue


_LISTS = ("content", "tool_calls", "output")  # of a message, or of an item of `/v1/responses`


def check_counts(messages: Sequence[t.Json], field: str, model: t.ServedModel, *, rolls: bool = False) -> None:
    """How many messages there may be, and parts and calls in them.

    Each takes at least one token of the prompt, so no more than those of one request can fit. Where the oldest are
    dropped (`rolls`), more may be sent; but all that is sent has to be written by the template, so there is a limit.
    """
    _check(len(messages), "messages", field, model, rolls)
    _check(sum(map(_parts, messages)), "parts and calls", field, model, rolls)


def _check(count: int, what: str, field: str, model: t.ServedModel, rolls: bool) -> None:
    most = model.limits.messages
    if count > most:
        raise invalid(field, f"it has {count} {what}; at most {most} are taken: send fewer")
    if count > model.longest and not rolls:
        raise problem_of(
            no_room(field, f"its {count} {what}", model.longest, ", of which each takes one", "send fewer")
        )


def _parts(message: t.Json) -> int:
    """Also those in the result of a tool, which is a part itself in `/v1/messages`."""
    parts = _listed(message)
    return len(parts) + sum(len(_listed(part)) for part in parts)


def _listed(message: t.Json) -> list[t.Json]:
    lists: Iterable[t.Json] = (message.get(name) for name in _LISTS) if isinstance(message, dict) else ()
    return [one for some in lists if isinstance(some, list) for one in some]


# -- as they are written -----------------------------------------------------------------------------------------------

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


Parts = tuple[str | Media, ...]
_PART = t.tagged(
    {
        "text": t.wrapped("text", t.TEXT, IGNORED=CACHE_HINTS),
        "refusal": t.wrapped("refusal", t.TEXT),
        "image_url": IMAGE_URL,
        "input_audio": INPUT_AUDIO,
        "audio_url": AUDIO_URL,
    },
    offered=offered,
)


def _arguments(written: t.Json, path: str, model: t.ServedModel) -> t.Json:
    """JSON in a text as the object that it says; a text that is no JSON stays one."""
    try:
        found = json.loads(written) if isinstance(written, str) else written
    except (ValueError, RecursionError):
        return written
    if isinstance(found, dict | list):
        t.check_depth(found, path)
    return found


ARGUMENTS = t.JsonType((str, dict), _arguments, t.either(t.TEXT, t.OBJECT).schema)


@dataclass(frozen=True, slots=True)
class CalledFunction(t.JsonObject):
    name: str = t.required(t.text())
    arguments: t.Json = t.optional(ARGUMENTS)


@dataclass(frozen=True, slots=True)
class EarlierCall(t.JsonObject):
    """A call that the model made earlier."""

    function: CalledFunction = t.required(t.record(CalledFunction, needs="a name and arguments"))
    id: t.Json = t.optional(t.plain({"type": "string"}))  # templates decide what they take
    IGNORED = ("index",)

    @property
    def value(self) -> dict[str, Any]:
        call = {"type": "function", "function": {"name": self.function.name, "arguments": self.function.arguments}}
        return call if self.id is None else call | {"id": self.id}


@dataclass(frozen=True, slots=True)
class CustomInput(t.JsonObject):
    name: str = t.required(t.text())
    input: str = t.required(t.TEXT)


@dataclass(frozen=True, slots=True)
class EarlierCustomCall(t.JsonObject):
    """Of a tool that takes a text."""

    custom: CustomInput = t.required(t.record(CustomInput, needs="a name and an input"))
    id: t.Json = t.optional(t.plain({"type": "string"}))
    IGNORED = ("index",)

    @property
    def value(self) -> dict[str, Any]:
        written = CalledFunction(self.custom.name, {INPUT: self.custom.input})
        found: dict[str, Any] = EarlierCall(written, self.id).value
        return found


_EARLIER = t.tagged({"function": EarlierCall, "custom": EarlierCustomCall}, default="function")


@dataclass(frozen=True, slots=True)
class ChatMessage(t.JsonObject):
    role: str = t.required(t.choice(ROLES))
    content: str | Parts | None = t.optional(t.either(t.TEXT, t.listed(_PART)))
    name: str | None = t.optional(t.TEXT)
    tool_call_id: str | None = t.optional(t.TEXT)
    tool_calls: tuple[dict[str, Any], ...] = t.optional(t.listed(_EARLIER), default=())
    reasoning_content: str | None = t.optional(t.TEXT)
    reasoning: str | None = t.optional(t.TEXT)  # the same, as newer servers and clients call it
    IGNORED = ("refusal", "annotations", *CACHE_HINTS)
    UNSUPPORTED = ("audio", "function_call")
    ONE_NEEDED = ("content", "tool_calls")

    @property
    def value(self) -> Message:
        others = {
            "name": self.name,
            "tool_call_id": self.tool_call_id,
            "tool_calls": list(self.tool_calls) or None,
            "reasoning_content": self.reasoning_content or self.reasoning,
        }
        return message_of(self.role, self.content, **others)


MESSAGES: t.JsonType[tuple[Message, ...]] = t.listed(
    t.record(ChatMessage), least=1, most=lambda model: model.limits.messages
)


def message_of(role: str, content: str | Parts | None, **others: Any) -> Message:
    """A message of a role, with content in parts; of `others`, what is given stands in it too."""
    parts = () if content is None else (content,) if isinstance(content, str) else content
    media = tuple(one for one in parts if not isinstance(one, str))
    written: Any = [{"type": "text", "text": one} if isinstance(one, str) else {"type": one.kind} for one in parts]
    if not media:
        written = "\n".join(one for one in parts if isinstance(one, str))
    given = {name: value for name, value in others.items() if value is not None}
    return Message({"role": ROLES[role], "content": written} | given, media)

"""The items of `/v1/responses` as messages of a chat.

In: messages, calls, their outputs and reasoning, as OpenAI writes them one beside the other. Out: messages as templates
take them: calls and reasoning belong to the assistant's message that they stand beside.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from brim.serve.parse.custom import INPUT
from brim.serve.requests import types as t
from brim.serve.requests.dialogue import ARGUMENTS, CalledFunction, EarlierCall, Message, Parts, message_of
from brim.serve.requests.media import IMAGE, INPUT_AUDIO, Media, offered

_OF_AN_OUTPUT = ("id", "status")  # an item of an answer that is sent back has these


_TEXT = t.wrapped("text", t.TEXT, IGNORED=("annotations", "logprobs"))
_PART = t.tagged(
    {
        "input_text": _TEXT,
        "output_text": _TEXT,
        "input_image": t.wrapped("image_url", IMAGE, IGNORED=("detail",)),
        "input_audio": INPUT_AUDIO,
    },
    offered=offered,
)
_CONTENT: t.JsonType[str | Parts] = t.either(t.TEXT, t.listed(_PART))


@dataclass(frozen=True, slots=True)
class MessageItem(t.JsonObject):
    role: str = t.required(t.choice(("system", "developer", "user", "assistant")))
    content: str | Parts = t.required(_CONTENT)
    IGNORED = (*_OF_AN_OUTPUT, "phase")

    @property
    def message(self) -> Message:
        return message_of(self.role, self.content)


@dataclass(frozen=True, slots=True)
class CallItem(t.JsonObject):
    name: str = t.required(t.text())
    arguments: t.Json = t.required(replace(ARGUMENTS, kinds=(str,), schema=t.TEXT.schema))
    call_id: str = t.required(t.TEXT)
    IGNORED = _OF_AN_OUTPUT

    @property
    def message(self) -> Message:
        call = EarlierCall(CalledFunction(self.name, self.arguments), self.call_id)
        return message_of("assistant", None, tool_calls=[call.value])


@dataclass(frozen=True, slots=True)
class CustomCallItem(t.JsonObject):
    """A call of a tool that takes a text."""

    name: str = t.required(t.text())
    input: str = t.required(t.TEXT)
    call_id: str = t.required(t.TEXT)
    IGNORED = _OF_AN_OUTPUT

    @property
    def message(self) -> Message:
        return CallItem(self.name, {INPUT: self.input}, self.call_id).message


@dataclass(frozen=True, slots=True)
class OutputItem(t.JsonObject):
    """What a call gave."""

    call_id: str = t.required(t.TEXT)
    output: str | Parts = t.required(_CONTENT)
    IGNORED = _OF_AN_OUTPUT

    @property
    def message(self) -> Message:
        return message_of("tool", self.output, tool_call_id=self.call_id)


@dataclass(frozen=True, slots=True)
class ReasoningItem(t.JsonObject):
    content: tuple[str, ...] = t.optional(
        t.listed(t.record(t.wrapped("text", t.TEXT, default="", IGNORED=("type",)))), default=()
    )
    IGNORED = (*_OF_AN_OUTPUT, "summary", "encrypted_content")


Item = MessageItem | CallItem | CustomCallItem | OutputItem | ReasoningItem
ITEMS: t.JsonType[tuple[Item, ...]] = t.listed(
    t.tagged(
        {
            "message": MessageItem,
            "function_call": CallItem,
            "function_call_output": OutputItem,
            "custom_tool_call": CustomCallItem,
            "custom_tool_call_output": OutputItem,
            "reasoning": ReasoningItem,
        },
        default="message",
    ),
    least=1,
    most=lambda model: model.limits.messages,
)


def messages_of(items: Iterable[Item]) -> list[Message]:
    made: list[tuple[dict[str, Any], tuple[Media, ...]]] = []
    thought = ""
    for item in items:
        if isinstance(item, ReasoningItem):
            thought += "".join(item.content)
            continue
        message = item.message
        entry = dict(message.entry)
        if entry["role"] == "assistant" and thought:
            entry["reasoning_content"], thought = thought, ""
        if isinstance(item, CallItem | CustomCallItem) and made and made[-1][0]["role"] == "assistant":
            before = made[-1][0]
            before.setdefault("tool_calls", []).extend(entry["tool_calls"])
            if "reasoning_content" in entry:
                before["reasoning_content"] = before.get("reasoning_content", "") + entry["reasoning_content"]
        else:
            made.append((entry, message.media))
    return [Message(entry, media) for entry, media in made]

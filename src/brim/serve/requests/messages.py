"""The requests of `/v1/messages` and `/v1/messages/count_tokens`: a chat in Anthropic's spelling.

In: messages of content blocks, with the system's text and the tools beside them. Out: a `ChatRequest`, as of all
chats. Turns of one role that follow each other are one turn, results of tools become messages of their own, and an
assistant's turn at the end is gone on with: so it is in Anthropic's API.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar

from brim.engine.requests.grammar import Grammar
from brim.serve.requests import types as t
from brim.serve.requests.answer_format import SCHEMA
from brim.serve.requests.chat import TRUNCATION, ChatRequest, ReasoningShown, room_for
from brim.serve.requests.dialogue import Dialogue, Message, check_counts, dialogue_of, message_of
from brim.serve.requests.media import CACHE_HINTS, IMAGE, Image
from brim.serve.requests.sampling import HARMLESS, STOP_LIST, TOKENS, GenerationBody
from brim.serve.requests.template import EFFORT, VARIABLES, TemplateSettings
from brim.serve.requests.tools import (
    NAME_LENGTH,
    PARAMETERS,
    NamedFunction,
    RequestedTools,
    ToolChoice,
    ToolFunction,
    requested_tools,
)

MOST_TOOLS = 512
IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_PER_REQUEST = "x-anthropic-billing-header"  # a block that differs each time: no prefix would be found again
_HINTS = (*CACHE_HINTS, "citations")
_UNUSED = (  # of Anthropic's service; they change nothing about an answer here
    "anthropic_beta",
    "anthropic_version",
    "betas",
    "context_management",
    "inference_geo",
    "speed",
)
_ELSEWHERE = ("container", "mcp_servers")  # what that service would run


# -- blocks ------------------------------------------------------------------------------------------------------------


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


_IMAGE_BLOCK = t.wrapped("source", t.JsonType((dict,), _image, _SOURCE.schema), IGNORED=_HINTS)
_TEXT_BLOCK = t.wrapped("text", t.TEXT, IGNORED=_HINTS)
_TEXT_FILE = t.tagged({"text": t.wrapped("data", t.TEXT, IGNORED=("media_type",))})
_DOCUMENT = t.wrapped("source", _TEXT_FILE, IGNORED=(*_HINTS, "title", "context"))
_RESULT_PART = t.tagged({"text": _TEXT_BLOCK, "image": _IMAGE_BLOCK, "document": _DOCUMENT})


@dataclass(frozen=True, slots=True)
class ToolResult(t.JsonObject):
    """What a call gave."""

    tool_use_id: str | None = t.optional(t.text())
    id: str | None = t.optional(t.text())  # some clients call it so
    content: str | tuple[str | Image, ...] = t.optional(t.either(t.TEXT, t.listed(_RESULT_PART)), default="")
    is_error: bool = t.optional(t.FLAG, default=False)
    IGNORED = _HINTS
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
        "text": _TEXT_BLOCK,
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


def _messages(turns: Iterable[MessageTurn]) -> list[Message]:
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


# -- beside the messages -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OwnTool(t.JsonObject):
    """A tool of the client's own."""

    name: str = t.required(t.text(most=NAME_LENGTH))
    input_schema: Mapping[str, Any] = t.required(PARAMETERS)
    description: str | None = t.optional(t.TEXT)
    strict: bool = t.optional(t.FLAG, default=False)
    IGNORED = (*CACHE_HINTS, "allowed_callers", "defer_loading", "eager_input_streaming", "input_examples")

    @property
    def value(self) -> ToolFunction:
        return ToolFunction(self.name, self.description, self.input_schema, self.strict)


@dataclass(frozen=True, slots=True)
class MessageToolChoice:
    chosen: ToolChoice = "auto"
    several: bool = True


@dataclass(frozen=True, slots=True)
class AutomaticChoice(t.JsonObject):
    disable_parallel_tool_use: bool = t.optional(t.FLAG, default=False)
    CHOSEN: ClassVar[str] = "auto"

    @property
    def value(self) -> MessageToolChoice:
        return MessageToolChoice(self.CHOSEN, not self.disable_parallel_tool_use)


@dataclass(frozen=True, slots=True)
class AnyToolChoice(AutomaticChoice):
    CHOSEN = "required"


@dataclass(frozen=True, slots=True)
class NoToolChoice(AutomaticChoice):
    CHOSEN = "none"


@dataclass(frozen=True, slots=True)
class OneToolChoice(t.JsonObject):
    name: str = t.required(t.text())
    disable_parallel_tool_use: bool = t.optional(t.FLAG, default=False)

    @property
    def value(self) -> MessageToolChoice:
        return MessageToolChoice(NamedFunction(self.name), not self.disable_parallel_tool_use)


_TOOL_CHOICE: t.JsonType[MessageToolChoice] = t.tagged(
    {"auto": AutomaticChoice, "any": AnyToolChoice, "tool": OneToolChoice, "none": NoToolChoice}
)


@dataclass(frozen=True, slots=True)
class AdaptiveThinking(t.JsonObject):
    """The template decides."""

    display: str | None = t.optional(t.choice(("summarized", "omitted", "full")))
    THINKS: ClassVar[bool | None] = None

    @property
    def shown(self) -> ReasoningShown:
        return ReasoningShown.LEFT_OUT if self.display == "omitted" else ReasoningShown.APART


@dataclass(frozen=True, slots=True)
class EnabledThinking(AdaptiveThinking):
    budget_tokens: int | None = t.optional(TOKENS)  # a hint: `max_tokens` is what bounds an answer
    THINKS = True


@dataclass(frozen=True, slots=True)
class DisabledThinking(AdaptiveThinking):
    THINKS = False

    @property
    def shown(self) -> ReasoningShown:
        return ReasoningShown.LEFT_OUT


_THINKING: t.JsonType[AdaptiveThinking] = t.tagged(
    {"enabled": EnabledThinking, "disabled": DisabledThinking, "adaptive": AdaptiveThinking}
)


@dataclass(frozen=True, slots=True)
class SchemaFormat(t.JsonObject):
    schema: Mapping[str, Any] = t.required(SCHEMA)
    IGNORED = ("name", "strict", "description")

    @property
    def value(self) -> Grammar:
        return Grammar.json_schema(self.schema)


_FORMAT: t.JsonType[Grammar] = t.tagged({"json_schema": SchemaFormat})


@dataclass(frozen=True, slots=True)
class OutputConfig(t.JsonObject):
    effort: str | None = t.optional(EFFORT)
    format: Grammar | None = t.optional(_FORMAT)
    IGNORED = ("task_budget",)


# -- bodies ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)  # no slots: a class may have one base that has any
class MessagesConversation(t.JsonObject):
    """What a prompt is made of."""

    messages: tuple[MessageTurn, ...] = t.required(
        t.listed(t.record(MessageTurn), least=1, most=lambda model: model.limits.messages)
    )
    system: str | tuple[str, ...] = t.optional(t.either(t.TEXT, t.listed(t.tagged({"text": _TEXT_BLOCK}))), default=())
    tools: tuple[ToolFunction, ...] = t.optional(
        t.listed(t.tagged({"custom": OwnTool}, default="custom"), most=lambda model: MOST_TOOLS), default=()
    )
    tool_choice: MessageToolChoice = t.optional(_TOOL_CHOICE, default=MessageToolChoice())
    thinking: AdaptiveThinking = t.optional(_THINKING, default=AdaptiveThinking())
    output_config: OutputConfig = t.optional(t.record(OutputConfig), default=OutputConfig())
    output_format: Grammar | None = t.optional(_FORMAT)
    chat_template_kwargs: Mapping[str, Any] | None = t.optional(VARIABLES)

    @property
    def requested_tools(self) -> RequestedTools:
        return requested_tools(self.tools, self.tool_choice.chosen, self.tool_choice.several)

    def dialogue(self, tools: RequestedTools, model: t.ServedModel) -> Dialogue:
        said = (self.system,) if isinstance(self.system, str) else self.system
        system = tuple(one for one in said if one and not one.startswith(_PER_REQUEST))
        messages = [*([message_of("system", system)] if system else []), *_messages(self.messages)]
        template = TemplateSettings(
            self.chat_template_kwargs or {},
            self.output_config.effort,
            self.thinking.THINKS,
            continues=_continues(messages[-1]),
        )
        return dialogue_of(messages, tools.tools, model.limits, "messages", template)


def _continues(last: Message) -> bool:
    entry = last.entry
    return entry["role"] == "assistant" and bool(entry["content"]) and "tool_calls" not in entry


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesBody(GenerationBody, MessagesConversation):
    max_tokens: int = t.required(TOKENS)
    stop_sequences: tuple[str, ...] = t.optional(STOP_LIST, default=())
    stop: Any = t.optional(t.only(None, "it is stop_sequences here"))
    n: int | None = t.optional(t.only(1, "one answer is given"))
    metadata: Mapping[str, Any] | None = t.optional(t.OBJECT)
    truncation: str = t.optional(TRUNCATION, default="disabled")
    IGNORED = (*HARMLESS, *_UNUSED)
    UNSUPPORTED = _ELSEWHERE


@dataclass(frozen=True, kw_only=True)
class CountTokensBody(MessagesConversation):
    model: str | None = t.optional(t.MODEL_NAME)
    IGNORED = (*HARMLESS, *_UNUSED, "max_tokens", "metadata", "stream")
    UNSUPPORTED = _ELSEWHERE


def read_messages(found: Mapping[str, t.Json], model: t.ServedModel) -> ChatRequest:
    _count(found, model, rolls=found.get("truncation") == "auto")
    body = MessagesBody.read_body(found, model)
    tools = body.requested_tools
    params = body.params(max_tokens=body.max_tokens, stop=body.stop_sequences)
    return ChatRequest(
        body.answer(params, include_usage=True),
        body.dialogue(tools, model),
        body.truncation == "auto",
        room_for(body.max_tokens, model.longest),
        tools,
        body.form("output_config.format", body.output_config.format or body.output_format),
        body.thinking.shown,
    )


def read_count_tokens(found: Mapping[str, t.Json], model: t.ServedModel) -> Dialogue:
    _count(found, model, rolls=False)
    body = CountTokensBody.read_body(found, model)
    return body.dialogue(body.requested_tools, model)


def _count(found: Mapping[str, t.Json], model: t.ServedModel, *, rolls: bool) -> None:
    messages = found.get("messages")
    if isinstance(messages, list):
        check_counts(messages, "messages", model, rolls=rolls)

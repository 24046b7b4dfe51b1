"""The requests of `/v1/messages` and `/v1/messages/count_tokens`: a chat in Anthropic's spelling.

In: turns of content blocks (`blocks.py`), with the system's text and the tools beside them. Out: a `ChatRequest`, as of
all chats. An assistant's turn at the end is gone on with: so it is in Anthropic's API.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from brim.engine.requests.grammar import Grammar
from brim.serve.requests import types as t
from brim.serve.requests.answer_format import SCHEMA
from brim.serve.requests.blocks import TEXT_BLOCK, MessageTurn, turns_as_messages
from brim.serve.requests.chat import TRUNCATION, ChatRequest, ReasoningShown, room_for
from brim.serve.requests.dialogue import Dialogue, Message, check_counts, dialogue_of, message_of
from brim.serve.requests.media import CACHE_HINTS
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
_PER_REQUEST = "x-anthropic-billing-header"  # a block that differs each time: no prefix would be found again
_UNUSED = (  # of Anthropic's service; they change nothing about an answer here
    "anthropic_beta",
    "anthropic_version",
    "betas",
    "billing_policy",
    "cache_control",
    "compaction",
    "context_management",
    "diagnostics",
    "fallback_credit_token",
    "fallbacks",
    "inference_geo",
    "speed",
    "user_profile_id",
    "workspace_id",
)
_ELSEWHERE = ("container", "mcp_servers", "thread")  # what that service would run or keep


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
    system: str | tuple[str, ...] = t.optional(t.either(t.TEXT, t.listed(t.tagged({"text": TEXT_BLOCK}))), default=())
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
        messages = [*([message_of("system", system)] if system else []), *turns_as_messages(self.messages)]
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

"""The request of `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from brim.engine.requests.grammar import Grammar
from brim.serve.problems import invalid
from brim.serve.requests import types as t
from brim.serve.requests.answer_format import FORMAT, AnswerForm
from brim.serve.requests.answer_request import AnswerRequest
from brim.serve.requests.dialogue import MESSAGES, Dialogue, Message, check_counts, dialogue_of
from brim.serve.requests.sampling import ALTERNATIVES, NOT_YET, TOKENS, TokenDetailBody
from brim.serve.requests.template import VERBOSITY, TemplateFields
from brim.serve.requests.tools import TOOL_CHOICE, TOOLS, RequestedTools, Tool, ToolChoice, requested_tools

DEFAULT_ROOM = 512  # tokens kept for an answer whose length was left open, where a conversation rolls
TRUNCATION = t.choice(("auto", "disabled"))
_PARTS = t.listed(t.tagged({"text": t.wrapped("text", t.TEXT)}), most=lambda model: model.limits.messages)
_JOINED = t.JsonType((list,), lambda value, path, model: "".join(_PARTS.convert(value, path, model)), _PARTS.schema)
PREDICTION = t.tagged({"content": t.wrapped("content", t.either(t.TEXT, _JOINED))})


class ReasoningShown(StrEnum):
    """Where the reasoning of an answer is."""

    APART = "apart"
    LEFT_OUT = "left_out"
    IN_CONTENT = "in_content"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatBody(TokenDetailBody, TemplateFields):
    messages: tuple[Message, ...] = t.required(MESSAGES)
    max_tokens: int | None = t.optional(TOKENS)
    max_completion_tokens: int | None = t.optional(TOKENS)
    logprobs: bool = t.optional(t.FLAG, default=False)
    top_logprobs: int | None = t.optional(ALTERNATIVES)
    truncation: str = t.optional(TRUNCATION, default="disabled")
    modalities: t.Json = t.optional(t.only(["text"], "only text is supported"))
    response_format: Grammar | None = t.optional(FORMAT)
    prediction: str | None = t.optional(PREDICTION)
    echo: bool = t.optional(t.FLAG, default=False)  # the answer begins with the message that it goes on with
    tools: tuple[Tool, ...] = t.optional(TOOLS, default=())
    tool_choice: ToolChoice = t.optional(TOOL_CHOICE, default="auto")
    parallel_tool_calls: bool = t.optional(t.FLAG, default=True)
    verbosity: str | None = t.optional(VERBOSITY)
    include_reasoning: bool = t.optional(t.FLAG, default=True)
    separate_reasoning: bool = t.optional(t.FLAG, default=True)
    UNSUPPORTED: ClassVar[tuple[str, ...]] = (*NOT_YET, "truncate_prompt_tokens", "truncation_side")

    @property
    def reasoning_shown(self) -> ReasoningShown:
        if not self.separate_reasoning:
            return ReasoningShown.IN_CONTENT
        return (
            ReasoningShown.APART if self.include_reasoning and not self.reasoning.exclude else ReasoningShown.LEFT_OUT
        )

    @property
    def most_tokens(self) -> int | None:
        """Of an answer, under either name."""
        if None not in (self.max_completion_tokens, self.max_tokens) and self.max_completion_tokens != self.max_tokens:
            said = f"max_completion_tokens {self.max_completion_tokens} and max_tokens {self.max_tokens} differ"
            raise invalid("max_completion_tokens", f"{said}; give one of them")
        return self.max_completion_tokens or self.max_tokens


@dataclass(frozen=True, slots=True)
class ChatRequest:
    wanted: AnswerRequest
    dialogue: Dialogue
    rolls: bool  # the oldest exchanges are dropped where all of them do not fit
    room: int  # tokens for the answer, where it rolls
    tools: RequestedTools = field(default_factory=RequestedTools)
    form: AnswerForm | None = None  # what the answer must look like
    reasoning: ReasoningShown = ReasoningShown.APART
    echoed: str = ""  # what the answer begins with


def read_chat(found: Mapping[str, t.Json], model: t.ServedModel) -> ChatRequest:
    """A chat request. An answer of open length may fill what the engine holds of one request."""
    count_messages(found, model, rolls=found.get("truncation") == "auto")
    body = ChatBody.read_body(found, model)
    tools = requested_tools(body.tools, body.tool_choice, body.parallel_tool_calls)
    template = body.template(body.messages, body.verbosity)
    dialogue = dialogue_of(body.messages, tools.tools, model.limits, "messages", template)
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("top_logprobs", "it needs logprobs to be true")
    most, alternatives = body.most_tokens, (body.top_logprobs or 0) if body.logprobs else None
    params = body.params(max_tokens=most or model.longest, logprobs=alternatives, prompt_logprobs=body.prompt_logprobs)
    room = room_for(most, model.longest)
    rolls = body.truncation == "auto"
    answer, echoed = body.answer(params, prediction=body.prediction), _echoed(body)
    form = body.form("response_format", body.response_format)
    return ChatRequest(answer, dialogue, rolls, room, tools, form, body.reasoning_shown, echoed)


def _echoed(body: ChatBody) -> str:
    if not body.echo:
        return ""
    if not body.continue_final_message:
        raise invalid(
            "echo", "it is for answers that go on with a message: set continue_final_message, or leave it out"
        )
    said = body.messages[-1].entry["content"]
    return said if isinstance(said, str) else ""


def room_for(most: int | None, longest: int) -> int:
    """Tokens that a conversation that rolls leaves for its answer."""
    return max(1, min(DEFAULT_ROOM, longest // 4) if most is None else min(most, longest // 2))


def count_messages(found: Mapping[str, t.Json], model: t.ServedModel, *, rolls: bool) -> None:
    """Before any of them is looked into."""
    messages = found.get("messages")
    if isinstance(messages, list):
        check_counts(messages, "messages", model, rolls=rolls)

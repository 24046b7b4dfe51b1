"""The requests of `/v1/responses`: a chat in another spelling, which may go on from an earlier answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from brim.engine.requests.grammar import Grammar
from brim.serve.problems import Problem, invalid
from brim.serve.requests import types as t
from brim.serve.requests.answer_format import FLAT_FORMAT
from brim.serve.requests.answer_request import AnswerRequest
from brim.serve.requests.chat import TRUNCATION, ChatRequest, ReasoningShown, room_for
from brim.serve.requests.dialogue import check_counts, dialogue_of, message_of
from brim.serve.requests.items import ITEMS, Item, MessageItem, messages_of
from brim.serve.requests.sampling import ALTERNATIVES, HARMLESS, TOKENS, GenerationBody
from brim.serve.requests.template import VERBOSITY, TemplateFields
from brim.serve.requests.tools import FLAT_TOOL_CHOICE, FLAT_TOOLS, Tool, ToolChoice, requested_tools

Items = tuple[dict[str, Any], ...]
BACKGROUND_PRIORITY = -1  # of a client's own requests, those that it waits for come first
_LOGPROBS = "message.output_text.logprobs"
INCLUDED = (  # beside log-probabilities: of tools that a server runs, or what is in an answer anyway
    _LOGPROBS,
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
)


@dataclass(frozen=True, slots=True)
class AnswerText(t.JsonObject):
    format: Grammar | None = t.optional(FLAT_FORMAT)
    verbosity: str | None = t.optional(VERBOSITY)


PLAIN_TEXT = AnswerText()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseBody(GenerationBody, TemplateFields):
    input: str | tuple[Item, ...] = t.required(t.either(t.TEXT, ITEMS))
    instructions: str | None = t.optional(t.TEXT)
    max_output_tokens: int | None = t.optional(TOKENS)
    n: int | None = t.optional(t.only(1, "one answer is given"))
    previous_response_id: str | None = t.optional(t.TEXT)
    text: AnswerText = t.optional(t.record(AnswerText), default=PLAIN_TEXT)
    truncation: str = t.optional(TRUNCATION, default="disabled")
    include: tuple[str, ...] = t.optional(t.listed(t.choice(INCLUDED)), default=())
    top_logprobs: int | None = t.optional(ALTERNATIVES)
    tools: tuple[Tool, ...] = t.optional(FLAT_TOOLS, default=())
    tool_choice: ToolChoice = t.optional(FLAT_TOOL_CHOICE, default="auto")
    parallel_tool_calls: bool = t.optional(t.FLAG, default=True)
    store: bool = t.optional(t.FLAG, default=True)
    background: bool = t.optional(t.FLAG, default=False)
    max_tool_calls: int | None = t.optional(TOKENS)  # of tools that a server runs: there are none
    prompt_cache_key: str | None = t.optional(t.TEXT)  # prefixes are found again without it
    conversation: Any = t.optional(
        t.only(None, "no conversations are kept here: previous_response_id goes on from one")
    )
    user: t.Json = t.optional(t.ANYTHING)
    stream_options: Any = t.optional(t.record(t.meaning(None, IGNORED=("include_obfuscation",))))
    IGNORED = HARMLESS
    UNSUPPORTED = ("context_management", "prompt")

    @property
    def alternatives(self) -> int | None:
        """Beside each token's own log-probability; None: log-probabilities are not asked for."""
        return 0 if self.top_logprobs is None and _LOGPROBS in self.include else self.top_logprobs


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    chat: ChatRequest
    items: Items  # all of the conversation, what came before included
    store: bool
    background: bool  # its client does not wait for it
    said_back: dict[str, Any]  # fields of the request that the answer repeats

    @property
    def wanted(self) -> AnswerRequest:
        return self.chat.wanted


def read_response(
    found: Mapping[str, t.Json], model: t.ServedModel, earlier: Callable[[str], Items | None]
) -> ResponseRequest:
    """`earlier` finds the conversation that led to an answer, with the answer; None: it is not kept."""
    before, own = _earlier(found, earlier), _items(found)
    check_counts((*before, *own), "input", model, rolls=found.get("truncation") == "auto")
    body = ResponseBody.read_body(found, model)
    kept = ITEMS.read(list(before), "previous_response_id", model) if before else ()
    asked = (MessageItem("user", body.input),) if isinstance(body.input, str) else body.input
    opening = [] if body.instructions is None else [message_of("system", body.instructions)]
    messages = [*opening, *messages_of((*kept, *asked))]
    if not messages:
        raise invalid("input", "there is no message in it; reasoning alone cannot be answered")
    tools = requested_tools(body.tools, body.tool_choice, body.parallel_tool_calls)
    template = body.template(messages, body.text.verbosity)
    dialogue = dialogue_of(messages, tools.tools, model.limits, "input", template)
    if body.background and not body.store:
        raise invalid("background", "background can only be used when `store` is true; leave store out")
    most = body.max_output_tokens
    params = body.params(max_tokens=most or model.longest, logprobs=body.alternatives)
    wanted = body.answer(params, include_usage=True)
    if body.background and found.get("priority") is None:
        wanted = replace(wanted, priority=BACKGROUND_PRIORITY)
    said_back = {
        "background": body.background,
        "instructions": body.instructions,
        "max_output_tokens": most,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": template.effort, "summary": body.reasoning.summary},
        "temperature": params.temperature,
        "text": {"format": (found.get("text") or {}).get("format") or {"type": "text"}}
        | ({} if body.text.verbosity is None else {"verbosity": body.text.verbosity}),
        "tool_choice": found.get("tool_choice") or "auto",
        "tools": found.get("tools") or [],
        "top_logprobs": body.alternatives or 0,
        "top_p": params.top_p,
        "truncation": body.truncation,
        "user": body.user,
    }
    rolls, room = body.truncation == "auto", room_for(most, model.longest)
    shown = ReasoningShown.LEFT_OUT if body.reasoning.exclude else ReasoningShown.APART
    chat = ChatRequest(wanted, dialogue, rolls, room, tools, body.form("text.format", body.text.format), shown)
    return ResponseRequest(chat, (*before, *own), body.store, body.background, said_back)


def _items(found: Mapping[str, t.Json]) -> Items:
    """The input as items, to be counted and kept; whether they are any is found where they are read."""
    given = found.get("input")
    if isinstance(given, str):
        return ({"type": "message", "role": "user", "content": given},)
    return tuple(given) if isinstance(given, list) else ()


def _earlier(found: Mapping[str, t.Json], earlier: Callable[[str], Items | None]) -> Items:
    name = found.get("previous_response_id")
    if not isinstance(name, str):
        return ()
    kept = earlier(name)
    if kept is None:
        raise Problem(
            400,
            f"previous_response_id: there is no answer '{name:.60}' here; it was not stored, was deleted, or has given "
            "way to newer ones; send the conversation in input",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    return kept

"""The requests of `/v1/responses`: a chat in another spelling, which may go on from an earlier answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from brim.engine.front.validation import MOST_PRIORITY
from brim.engine.requests.params import MAX_ALTERNATIVES
from brim.serve.problems import Problem, invalid
from brim.serve.requests.answer_format import read_format
from brim.serve.requests.bounds import Bounds
from brim.serve.requests.dialogue import dialogue_of
from brim.serve.requests.fields import RequestFields
from brim.serve.requests.generation import MOST_TOKENS, TRUNCATION, AnswerRequest, ChatRequest, room_for
from brim.serve.requests.items import messages_of
from brim.serve.requests.metadata import read_metadata
from brim.serve.requests.sampling import HARMLESS, sampling
from brim.serve.requests.tools import read_tools
from brim.serve.settings import RequestLimits

Json = dict[str, Any]
Items = tuple[Json, ...]
INCLUDED = ("message.output_text.logprobs",)
NOT_YET = (
    "background",
    "context_management",
    "conversation",
    "max_tool_calls",
    "prompt",
    "reasoning",
)


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    chat: ChatRequest
    items: Items  # all of the conversation, what came before included
    store: bool
    said_back: Json  # fields of the request that the answer repeats

    @property
    def wanted(self) -> AnswerRequest:
        return self.chat.wanted


def read_response(
    body: Mapping[str, Any], longest: int, limits: RequestLimits, earlier: Callable[[str], Items | None]
) -> ResponseRequest:
    """`earlier` finds the conversation that led to an answer, with the answer; None: it is not kept."""
    fields = RequestFields(body)
    tools = read_tools(fields, flat=True)
    truncation = fields.choice("truncation", TRUNCATION, "disabled")
    before, own = _earlier(fields, earlier), _input(fields)
    Bounds(longest, limits, truncation == "auto").check((*before, *own), "input")
    instructions = fields.text("instructions")
    opening = (
        [] if instructions is None else [RequestFields({"role": "system", "content": instructions}, "instructions")]
    )
    messages = [*opening, *messages_of(list(before), "previous_response_id"), *messages_of(list(own), "input")]
    dialogue = dialogue_of(messages, limits, tools, "input")
    most = fields.integer("max_output_tokens", 1, MOST_TOKENS)
    alternatives = _alternatives(fields)
    params = sampling(fields, max_tokens=most or longest, logprobs=alternatives)
    if params.n != 1:
        raise invalid("n", "one answer is given; leave it out", "unsupported_value")
    schema, text = _text(fields)
    said_back = {
        "instructions": instructions,
        "max_output_tokens": most,
        "metadata": read_metadata(fields),
        "parallel_tool_calls": tools.several,
        "previous_response_id": fields.text("previous_response_id"),
        "temperature": params.temperature,
        "text": text,
        "tool_choice": tools.choice,
        "tools": fields.items("tools") or [],
        "top_logprobs": alternatives or 0,
        "top_p": params.top_p,
        "truncation": truncation,
        "user": fields.raw("user"),
    }
    store = fields.raw("store")
    if store is not None and not isinstance(store, bool):
        raise invalid("store", "it must be true or false", "invalid_type")
    wanted = AnswerRequest(
        model=fields.text("model"),
        params=params,
        stream=fields.flag("stream"),
        include_usage=True,
        deadline_seconds=fields.number("deadline_seconds", 0),
        priority=fields.integer("priority", -MOST_PRIORITY, MOST_PRIORITY) or 0,
    )
    _no_stream_options(fields)
    fields.leave_out(HARMLESS)
    fields.refuse_others(NOT_YET)
    chat = ChatRequest(wanted, dialogue, truncation == "auto", room_for(most, longest), tools, schema)
    return ResponseRequest(chat, (*before, *own), store is not False, said_back)


def _alternatives(fields: RequestFields) -> int | None:
    """Beside each token's own log-probability; None: log-probabilities are not asked for."""
    found = fields.integer("top_logprobs", 0, MAX_ALTERNATIVES)
    for number, name in enumerate(fields.items("include") or ()):
        if name not in INCLUDED:
            raise invalid(f"include[{number}]", f"{name!r:.60} is not supported; {', '.join(INCLUDED)} is")
        found = found or 0
    return found


def _input(fields: RequestFields) -> Items:
    found = fields.raw("input")
    if isinstance(found, str):
        return ({"type": "message", "role": "user", "content": found},)
    if isinstance(found, list) and found:
        return tuple(found)
    raise invalid("input", "must be a string or a list of items", "missing_required_parameter")


def _earlier(fields: RequestFields, earlier: Callable[[str], Items | None]) -> Items:
    name = fields.text("previous_response_id")
    if name is None:
        return ()
    found = earlier(name)
    if found is None:
        raise Problem(
            400,
            f"previous_response_id: there is no answer '{name:.60}' here; it was not stored, was deleted, or has given "
            "way to newer ones; send the conversation in input",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    return found


def _text(fields: RequestFields) -> tuple[Mapping[str, Any] | None, Json]:
    """The schema that the answer must follow, and the field as the answer repeats it."""
    text = fields.inner("text")
    if text is None:
        return None, {"format": {"type": "text"}}
    form = text.inner("format")
    schema = read_format(form, flat=True)
    text.refuse_others(["verbosity"])
    return schema, {"format": {"type": "text"} if form is None else text.raw("format")}


def _no_stream_options(fields: RequestFields) -> None:
    options = fields.inner("stream_options")
    if options is not None:
        options.leave_out(["include_obfuscation"])
        options.refuse_others()

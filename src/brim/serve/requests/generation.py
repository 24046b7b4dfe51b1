"""The requests for answers: `/v1/chat/completions` and `/v1/completions`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from brim.engine.front.validation import MOST_PRIORITY
from brim.engine.requests.params import MAX_ALTERNATIVES, SamplingParams
from brim.serve.problems import invalid
from brim.serve.requests.answer_format import read_format
from brim.serve.requests.bounds import Bounds
from brim.serve.requests.dialogue import Dialogue, read_dialogue
from brim.serve.requests.fields import RequestFields
from brim.serve.requests.metadata import read_metadata
from brim.serve.requests.sampling import HARMLESS, sampling, wants_usage
from brim.serve.requests.tools import RequestedTools, read_tools
from brim.serve.settings import RequestLimits

DEFAULT_COMPLETION = 16  # tokens, as in OpenAI's API
DEFAULT_ROOM = 512  # tokens kept for an answer whose length was left open, where a conversation rolls
MOST_TOKENS = 2**31 - 1
TRUNCATION = ("auto", "disabled")
NOT_YET = (
    "audio",
    "function_call",
    "functions",
    "guided_json",
    "prediction",
    "reasoning_effort",
    "structured_outputs",
    "suffix",
    "verbosity",
    "web_search_options",
)


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """What requests for answers have in common."""

    model: str | None
    params: SamplingParams
    stream: bool
    include_usage: bool
    deadline_seconds: float | None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class ChatRequest:
    wanted: AnswerRequest
    dialogue: Dialogue
    rolls: bool  # the oldest exchanges are dropped where all of them do not fit
    room: int  # tokens for the answer, where it rolls
    tools: RequestedTools = field(default_factory=RequestedTools)
    schema: Mapping[str, Any] | None = None  # the answer is JSON of this schema


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    wanted: AnswerRequest
    prompts: tuple[str | tuple[int, ...], ...]
    echo: bool
    scored_only: bool  # max_tokens is 0: nothing is generated, the prompt is scored

    @property
    def answers(self) -> int:
        return len(self.prompts) * self.wanted.params.n


def read_chat(body: Mapping[str, Any], longest: int, limits: RequestLimits) -> ChatRequest:
    """A chat request. `longest` is what the engine holds of one request: an answer may fill it."""
    fields = RequestFields(body)
    tools = read_tools(fields)
    rolls = fields.choice("truncation", TRUNCATION, "disabled") == "auto"
    dialogue = read_dialogue(fields, Bounds(longest, limits, rolls), tools)
    most = _first(fields, "max_completion_tokens", "max_tokens")
    alternatives = fields.integer("top_logprobs", 0, MAX_ALTERNATIVES)
    scored = fields.flag("logprobs")
    if alternatives is not None and not scored:
        raise invalid("top_logprobs", "it needs logprobs to be true")
    params = sampling(fields, max_tokens=most or longest, logprobs=(alternatives or 0) if scored else None)
    schema = read_format(fields.inner("response_format"))
    _text_only(fields)
    wanted = _wanted(fields, params)
    return ChatRequest(wanted, dialogue, rolls, room_for(most, longest), tools, schema)


def room_for(most: int | None, longest: int) -> int:
    """Tokens that a conversation that rolls leaves for its answer."""
    return max(1, min(DEFAULT_ROOM, longest // 4) if most is None else min(most, longest // 2))


def read_completion(body: Mapping[str, Any], vocab: int) -> CompletionRequest:
    """A request to go on with texts, or with tokens of a vocabulary of this size."""
    fields = RequestFields(body)
    prompts = _prompts(fields, vocab)
    echo = fields.flag("echo")
    alternatives = fields.integer("logprobs", 0, MAX_ALTERNATIVES)
    most = fields.integer("max_tokens", 0, MOST_TOKENS)
    if most == 0 and not echo:
        raise invalid("max_tokens", "0 is for scoring a prompt, with echo; ask for at least 1")
    params = sampling(
        fields,
        max_tokens=DEFAULT_COMPLETION if most is None else max(1, most),
        logprobs=alternatives,
        prompt_logprobs=alternatives if echo else None,
        continues_prompt=True,
    )
    if (best := fields.integer("best_of", 1, MOST_TOKENS)) is not None and best != params.n:
        raise invalid("best_of", f"it is supported only where it equals n, {params.n}", "unsupported_value")
    return CompletionRequest(_wanted(fields, params), prompts, echo, scored_only=most == 0)


def _wanted(fields: RequestFields, params: SamplingParams) -> AnswerRequest:
    """The fields of both; nothing else may be left."""
    stream = fields.flag("stream")
    wanted = AnswerRequest(
        model=fields.text("model"),
        params=params,
        stream=stream,
        include_usage=wants_usage(fields, stream),
        deadline_seconds=fields.number("deadline_seconds", 0),
        priority=fields.integer("priority", -MOST_PRIORITY, MOST_PRIORITY) or 0,
    )
    read_metadata(fields)
    fields.leave_out(HARMLESS)
    fields.refuse_others(NOT_YET)
    return wanted


def _first(fields: RequestFields, *names: str) -> int | None:
    """The most tokens of an answer, under one of several names."""
    found = {name: value for name in names if (value := fields.integer(name, 1, MOST_TOKENS)) is not None}
    if len(set(found.values())) > 1:
        said = " and ".join(f"{name} {value}" for name, value in found.items())
        raise invalid(next(iter(found)), f"{said} differ; give one of them")
    return next(iter(found.values()), None)


def _text_only(fields: RequestFields) -> None:
    """Fields whose only supported value says that the answer is text."""
    if fields.raw("modalities") not in (None, ["text"]):
        raise invalid("modalities", "only text is supported; leave it out", "unsupported_value")


def _prompts(fields: RequestFields, vocab: int) -> tuple[str | tuple[int, ...], ...]:
    prompt = fields.raw("prompt")
    if isinstance(prompt, str):
        return (prompt,)
    if isinstance(prompt, list) and prompt:
        if _are_tokens(prompt):
            return (_tokens(prompt, "prompt", vocab),)
        return tuple(_prompt(one, f"prompt[{number}]", vocab) for number, one in enumerate(prompt))
    raise invalid("prompt", "a text, a list of token ids, or a list of these is needed", "missing_required_parameter")


def _prompt(one: Any, path: str, vocab: int) -> str | tuple[int, ...]:
    if isinstance(one, str):
        return one
    if isinstance(one, list) and _are_tokens(one):
        return _tokens(one, path, vocab)
    raise invalid(path, "must be a string or a list of token ids", "invalid_type")


def _are_tokens(found: list[Any]) -> bool:
    return all(isinstance(one, int) and not isinstance(one, bool) for one in found)


def _tokens(found: list[int], path: str, vocab: int) -> tuple[int, ...]:
    wrong = next((token for token in found if not 0 <= token < vocab), None)
    if wrong is not None:
        raise invalid(path, f"token {wrong!r:.40} is not in the vocabulary (0 to {vocab - 1})")
    return tuple(found)


def sooner(wanted: AnswerRequest, header: str | None) -> AnswerRequest:
    """With the deadline of the header `X-Deadline-Seconds`, where that is sooner."""
    if header is None:
        return wanted
    try:
        seconds = float(header)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise invalid("X-Deadline-Seconds", f"{header!r:.40} is not a positive number of seconds")
    return replace(wanted, deadline_seconds=min(seconds, wanted.deadline_seconds or seconds))

"""`/v1/chat/completions`, and what all endpoints of chats share: prompts, forms of answers, and how those are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from brim.engine.requests.grammar import Grammar
from brim.engine.requests.params import SamplingParams
from brim.errors import InvalidRequest
from brim.serve.api.answering import PreparedRequest, ReadRequest, RequestContext
from brim.serve.http.parsing import checked
from brim.serve.lifecycle import RunningServer, served_model
from brim.serve.parse.grammar import calls_answer, formed_answer
from brim.serve.parse.table import Formats
from brim.serve.prepare.jobs import ChatJob, Prepared
from brim.serve.problems import invalid
from brim.serve.requests.answer_request import AnswerRequest
from brim.serve.requests.chat import ChatRequest, ReasoningShown, read_chat
from brim.serve.responses.answers import Reading, ResponseHeader
from brim.serve.responses.chat import ChatFormatter
from brim.serve.responses.details import AnswerDetails
from brim.serve.responses.scores import Scores
from brim.serve.settings import RequestLimits, ServeSettings

_SHORTER = 'send less, or let the chat roll with "truncation": "auto"'


@dataclass(frozen=True, slots=True)
class ChatEndpoint:
    settings: ServeSettings

    async def read(self, found: Mapping[str, Any], size_bytes: int, context: RequestContext) -> ReadRequest:
        model = served_model(self.settings, context.running)
        asked = await checked(partial(read_chat, found, model), size_bytes)
        return ReadRequest(asked.wanted, asked.wanted.params.n, partial(self._prepare, asked, context))

    async def _prepare(self, asked: ChatRequest, context: RequestContext) -> PreparedRequest:
        prompt = await chat_prompt(asked, context, self.settings.limits, "messages")
        formatter = ChatFormatter(
            ResponseHeader.new("chatcmpl", self.settings.model_name, asked.wanted.request_id),
            prompt,
            reading_of(asked, prompt, context.running),
            answers=asked.wanted.params.n,
            scores=scores_of(asked.wanted, context.running),
            include_usage=asked.wanted.include_usage,
            echoed=asked.echoed,
            details=AnswerDetails.of(asked.wanted, context.running.texts, context.running.engine.loaded.eos_ids),
        )
        params = await answer_params(asked, prompt, context.running, "response_format")
        return PreparedRequest((prompt,), params, formatter)


async def chat_prompt(asked: ChatRequest, context: RequestContext, limits: RequestLimits, field: str) -> Prepared:
    running, room = context.running, asked.room if asked.rolls else None
    job = ChatJob(
        asked.dialogue, limits, running.engine.longest_request, room, salt=asked.wanted.salt(context.tenant.salt)
    )

    async def made() -> tuple[Prepared, ...]:
        return (await running.tokenising.chat(job),)

    (prompt,) = await context.prepared(made(), field, _SHORTER)
    return prompt


async def answer_params(
    asked: ChatRequest, prompt: Prepared, running: RunningServer, schema_field: str
) -> SamplingParams:
    """With the grammar of the answer, if it has one, and the special tokens that its parsers look for.

    `schema_field` is where the endpoint takes a form of the answer, if nothing more precise is known.
    """
    formats, field = _formats(asked, running), schema_field if asked.form is None else asked.form.field
    field = "tools" if asked.tools.forced else field
    try:
        grammar = _grammar(asked, formats, prompt.tail)
        if grammar is not None:
            await running.trials.check(grammar)
        shown = formats.shown(bool(asked.tools.tools))
        continues = asked.dialogue.template.continues
        return replace(asked.wanted.params, grammar=grammar, shown_token_ids=shown, continues_prompt=continues)
    except InvalidRequest as error:
        raise invalid(field, str(error).removeprefix("grammar: ")) from None


def reading_of(asked: ChatRequest, prompt: Prepared, running: RunningServer) -> Reading:
    formats, shown = _formats(asked, running), asked.reasoning
    if shown is ReasoningShown.IN_CONTENT:
        formats = replace(formats, reasoning=None)
    tools, thoughts = asked.tools, shown is not ReasoningShown.LEFT_OUT
    whole_of = "" if tools.whole is None else tools.forced[0]
    return Reading(formats, tools.parameters, prompt.tail, thoughts, tuple(tools.custom), whole_of)


def scores_of(wanted: AnswerRequest, running: RunningServer) -> Scores | None:
    """None: log-probabilities were not asked for."""
    params = wanted.params
    if params.logprobs is None:
        return None
    ends = {*running.engine.loaded.eos_ids, *params.stop_token_ids}
    return Scores(running.texts, ends, by_id=wanted.tokens_as_ids, with_own=bool(params.logprob_token_ids))


def _formats(asked: ChatRequest, running: RunningServer) -> Formats:
    return running.formats.forcing() if asked.tools.forced else running.formats


def _grammar(asked: ChatRequest, formats: Formats, tail: str) -> Grammar | None:
    tools = asked.tools
    if tools.whole is not None:
        return formed_answer(formats, tail, tools.whole)
    if tools.forced:
        return calls_answer(formats, tail, tools.forced_parameters, tools.several)
    if asked.form is None:
        return None
    return formed_answer(formats, tail, asked.form.grammar, tools.parameters if tools.tools else {}, tools.several)

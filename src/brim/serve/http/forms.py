"""What an answer of a chat must look like and how it is read: by what was asked, the prompt and the model's formats."""

from __future__ import annotations

from dataclasses import replace

from brim.engine.requests.grammar import Grammar
from brim.engine.requests.params import SamplingParams
from brim.errors import InvalidRequest
from brim.serve.lifecycle import RunningServer
from brim.serve.parse.grammar import calls_answer, json_answer
from brim.serve.parse.table import Formats
from brim.serve.prepare.jobs import Prepared
from brim.serve.problems import Problem
from brim.serve.requests.generation import ChatRequest
from brim.serve.responses.answers import Reading
from brim.serve.responses.scores import Scores


def reading_of(asked: ChatRequest, prepared: Prepared, running: RunningServer) -> Reading:
    return Reading(_formats(asked, running), asked.tools.parameters, prepared.tail)


def scores_of(params: SamplingParams, running: RunningServer) -> Scores | None:
    """None: log-probabilities were not asked for."""
    if params.logprobs is None:
        return None
    return Scores(running.texts, {*running.engine.loaded.eos_ids, *params.stop_token_ids})


async def as_asked(asked: ChatRequest, prepared: Prepared, running: RunningServer, schema_field: str) -> SamplingParams:
    """With the grammar of the answer, if it has one, and the special tokens that its parsers look for.

    `schema_field` is where a schema of the answer was written.
    """
    formats, field = _formats(asked, running), "tools" if asked.tools.forced else schema_field
    try:
        grammar = _grammar(asked, formats, prepared.tail)
        if grammar is not None:
            await running.trials.check(grammar)
        shown = formats.shown(bool(asked.tools.tools))
        return replace(asked.wanted.params, grammar=grammar, shown_token_ids=shown)
    except InvalidRequest as error:
        said = str(error).removeprefix("grammar: ")
        raise Problem(400, f"{field}: {said}", param=field, code="invalid_value") from None


def _formats(asked: ChatRequest, running: RunningServer) -> Formats:
    return running.formats.forcing() if asked.tools.forced else running.formats


def _grammar(asked: ChatRequest, formats: Formats, tail: str) -> Grammar | None:
    tools = asked.tools
    if tools.forced:
        return calls_answer(formats, tail, tools.forced_parameters, tools.several)
    if asked.schema is None:
        return None
    return json_answer(formats, tail, asked.schema, tools.parameters if tools.tools else {}, tools.several)

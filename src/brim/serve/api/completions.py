"""`/v1/completions`: prompts of text or tokens, as they are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from brim.engine.requests.params import SamplingParams
from brim.errors import InvalidRequest
from brim.serve.api.answering import PreparedRequest, ReadRequest, RequestContext
from brim.serve.http.parsing import checked
from brim.serve.lifecycle import RunningServer, served_model
from brim.serve.prepare.jobs import Prepared
from brim.serve.problems import invalid
from brim.serve.requests.completion import CompletionRequest, read_completion
from brim.serve.responses.answers import ResponseHeader
from brim.serve.responses.completion import CompletionFormatter
from brim.serve.responses.details import AnswerDetails
from brim.serve.settings import ServeSettings
from brim.serve.token_texts import TokenTexts

MOST_CONTEXTS = 8  # of a prompt that is cut to one
_ECHOED_AT_ONCE = 4096  # tokens that the event loop itself makes texts of


@dataclass(frozen=True, slots=True)
class CompletionsEndpoint:
    settings: ServeSettings

    async def read(self, found: Mapping[str, Any], size_bytes: int, context: RequestContext) -> ReadRequest:
        model = served_model(self.settings, context.running)
        asked = await checked(partial(read_completion, found, model), size_bytes)
        return ReadRequest(asked.wanted, asked.answers, partial(self._prepare, asked, context))

    async def _prepare(self, asked: CompletionRequest, context: RequestContext) -> PreparedRequest:
        prompts = await context.prepared(_tokens(asked, context.running), "prompt")
        params, texts = await self._params(asked, context.running), context.running.texts
        echoed = (asked.prompts if asked.kept is None else [one.tokens for one in prompts]) if asked.echo else ()
        echoes = partial(_texts_of, echoed, texts)
        beside = sum(map(len, echoed)) > _ECHOED_AT_ONCE
        formatter = CompletionFormatter(
            head=ResponseHeader.new("cmpl", self.settings.model_name, asked.wanted.request_id),
            prepared=prompts,
            prompts=await asyncio.to_thread(echoes) if beside else echoes(),
            answers=params.n,
            scored=params.alternatives,
            scored_only=asked.scored_only,
            include_usage=asked.wanted.include_usage,
            texts=texts,
            details=AnswerDetails.of(asked.wanted, texts, context.running.engine.loaded.eos_ids),
            by_id=asked.wanted.tokens_as_ids,
        )
        return PreparedRequest(prompts, params, formatter)

    async def _params(self, asked: CompletionRequest, running: RunningServer) -> SamplingParams:
        """With the grammar of the answer, if it has one."""
        form = asked.form
        if form is None:
            return asked.wanted.params
        try:
            await running.trials.check(form.grammar)
            return replace(asked.wanted.params, grammar=form.grammar)
        except InvalidRequest as error:
            raise invalid(form.field, str(error).removeprefix("grammar: ")) from None


def _texts_of(prompts: Iterable[str | tuple[int, ...]], texts: TokenTexts) -> tuple[str, ...]:
    return tuple(one if isinstance(one, str) else texts.whole(one) for one in prompts)


async def _tokens(asked: CompletionRequest, running: RunningServer) -> tuple[Prepared, ...]:
    """Tokens of the prompts, as many as are kept; a text that is cut may be longer than a context, within bounds."""
    texts = [prompt for prompt in asked.prompts if isinstance(prompt, str)]
    made = iter(
        await running.tokenising.texts(
            texts,
            special=asked.add_special_tokens,
            longest=running.engine.longest_request * (1 if asked.kept is None else MOST_CONTEXTS),
            only_counted=asked.kept is not None,
        )
        if texts
        else ()
    )
    kept = slice(None) if asked.kept is None else asked.kept
    return tuple(Prepared((next(made) if isinstance(one, str) else one)[kept]) for one in asked.prompts)

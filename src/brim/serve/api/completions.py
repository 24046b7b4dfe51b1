"""`/v1/completions`: prompts of text or tokens, as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from brim.serve.api.answering import PreparedRequest, ReadRequest, RequestContext
from brim.serve.http.parsing import checked
from brim.serve.lifecycle import RunningServer, served_model
from brim.serve.prepare.jobs import Prepared
from brim.serve.requests.completion import CompletionRequest, Prompts, read_completion
from brim.serve.responses.answers import ResponseHeader
from brim.serve.responses.completion import CompletionFormatter
from brim.serve.settings import ServeSettings


@dataclass(frozen=True, slots=True)
class CompletionsEndpoint:
    settings: ServeSettings

    async def read(self, found: Mapping[str, Any], size_bytes: int, context: RequestContext) -> ReadRequest:
        model = served_model(self.settings, context.running)
        asked = await checked(partial(read_completion, found, model), size_bytes)
        return ReadRequest(asked.wanted, asked.answers, partial(self._prepare, asked, context))

    async def _prepare(self, asked: CompletionRequest, context: RequestContext) -> PreparedRequest:
        prompts = await context.prepared(_tokens(asked.prompts, context.running), "prompt")
        params, texts = asked.wanted.params, context.running.texts
        echoed = asked.prompts if asked.echo else ()
        formatter = CompletionFormatter(
            head=ResponseHeader.new("cmpl", self.settings.model_name),
            prepared=prompts,
            prompts=tuple(one if isinstance(one, str) else texts.whole(one) for one in echoed),
            answers=params.n,
            scored=params.logprobs is not None,
            scored_only=asked.scored_only,
            include_usage=asked.wanted.include_usage,
            texts=texts,
        )
        return PreparedRequest(prompts, params, formatter)


async def _tokens(prompts: Prompts, running: RunningServer) -> tuple[Prepared, ...]:
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    longest = running.engine.longest_request
    made = iter(await running.tokenising.texts(texts, longest=longest) if texts else ())
    return tuple(Prepared(next(made) if isinstance(one, str) else one) for one in prompts)

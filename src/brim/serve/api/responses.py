"""`/v1/responses`: answers that may be stored, and gone on from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from brim.serve.api.answering import MOST_SCORES_AT_ONCE, PreparedRequest, ReadRequest, RequestContext, warned
from brim.serve.api.chat import answer_params, chat_prompt, reading_of, scores_of
from brim.serve.background import BackgroundAnswer, BackgroundAnswers
from brim.serve.http.keys import Tenant
from brim.serve.http.parsing import checked
from brim.serve.http.reply import dumped, dumped_beside
from brim.serve.lifecycle import served_model
from brim.serve.problems import invalid
from brim.serve.requests.responses_api import Items, ResponseRequest, read_response
from brim.serve.responses.answers import ResponseHeader
from brim.serve.responses.responses_api import ResponseOutline, ResponsesApiFormatter
from brim.serve.settings import ServeSettings
from brim.serve.stored import StoredResponse, StoredResponses


@dataclass(frozen=True, slots=True)
class ResponsesEndpoint:
    settings: ServeSettings
    stored: StoredResponses
    background: BackgroundAnswers

    async def read(self, found: Mapping[str, Any], size_bytes: int, context: RequestContext) -> ReadRequest:
        model = served_model(self.settings, context.running)
        kept = self._kept(context.tenant, found.get("previous_response_id"))
        size_bytes += 0 if kept is None else len(kept.items)  # they are read again

        def earlier(name: str) -> Items | None:
            return None if kept is None else tuple(json.loads(kept.items))

        asked = await checked(partial(read_response, found, model, earlier), size_bytes)
        head = ResponseHeader.new("resp", self.settings.model_name, asked.wanted.request_id)
        named = head if asked.wanted.request_id else replace(head, id=head.id.replace("-", "_"))
        outline = ResponseOutline(named, asked.said_back, asked.store)
        keep, key = partial(self._keep, context.tenant, asked.items), (context.tenant.name, named.id)
        if asked.background and self.background.running(*key) is not None:
            raise invalid("request_id", "a response of this id is being answered in the background; give another")
        answer = (
            BackgroundAnswer(key, outline, asked.items, keep, self.background, replays=asked.wanted.stream)
            if asked.background
            else None
        )
        return ReadRequest(asked.wanted, 1, partial(self._prepare, asked, outline, answer, context), answer)

    async def _prepare(
        self,
        asked: ResponseRequest,
        outline: ResponseOutline,
        answer: BackgroundAnswer | None,
        context: RequestContext,
    ) -> PreparedRequest:
        chat, running = asked.chat, context.running
        prompt = await chat_prompt(chat, context, self.settings.limits, "input")
        formatter = ResponsesApiFormatter(
            outline,
            prompt,
            reading_of(chat, prompt, running),
            partial(self._keep, context.tenant, asked.items) if asked.store else None,
            scores_of(asked.wanted, running),
        )
        if answer is not None:
            answer.formatter = formatter
        params = await answer_params(chat, prompt, running, "text.format")
        return PreparedRequest((prompt,), params, formatter)

    def _kept(self, tenant: Tenant, name: Any) -> StoredResponse | None:
        return self.stored.find(tenant.name, name) if isinstance(name, str) else None

    def _keep(self, tenant: Tenant, items: Items, response: dict[str, Any]) -> None:
        parts = (part for item in response["output"] for part in item.get("content") or ())
        scores = sum(len(part.get("logprobs") or ()) for part in parts)
        dump = dumped_beside if scores > MOST_SCORES_AT_ONCE else dumped  # by a thread, then
        kept = StoredResponse(dump(warned(response)), dump([*items, *response["output"]]))
        self.stored.keep(tenant.name, response["id"], kept)

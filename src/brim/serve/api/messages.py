"""`/v1/messages`: chats as Anthropic writes them, and how many tokens one has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from brim.serve.api.answering import PreparedRequest, ReadRequest, RequestContext
from brim.serve.api.chat import answer_params, chat_prompt, reading_of
from brim.serve.http.parsing import checked
from brim.serve.lifecycle import served_model
from brim.serve.requests.chat import ChatRequest
from brim.serve.requests.messages import read_messages
from brim.serve.responses.answers import ResponseHeader
from brim.serve.responses.messages import MessagesFormatter
from brim.serve.settings import ServeSettings


@dataclass(frozen=True, slots=True)
class MessagesEndpoint:
    settings: ServeSettings

    async def read(self, found: Mapping[str, Any], size_bytes: int, context: RequestContext) -> ReadRequest:
        model = served_model(self.settings, context.running)
        asked = await checked(partial(read_messages, found, model), size_bytes)
        return ReadRequest(asked.wanted, 1, partial(self._prepare, asked, context))

    async def _prepare(self, asked: ChatRequest, context: RequestContext) -> PreparedRequest:
        running = context.running
        prompt = await chat_prompt(asked, context, self.settings.limits, "messages")
        head = ResponseHeader.new("msg", self.settings.model_name, asked.wanted.request_id)
        formatter = MessagesFormatter(
            head if asked.wanted.request_id else replace(head, id=head.id.replace("-", "_")),
            prompt,
            reading_of(asked, prompt, running),
            max_tokens=asked.wanted.params.max_tokens,
            block_size=running.engine.settings.block_size,
        )
        return PreparedRequest(
            (prompt,), await answer_params(asked, prompt, running, "output_config.format"), formatter
        )

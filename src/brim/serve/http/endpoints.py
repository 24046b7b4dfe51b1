"""What is different between the endpoints that generate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from brim.engine.requests.params import SamplingParams
from brim.serve.http.forms import as_asked, reading_of, scores_of
from brim.serve.http.keys import Tenant
from brim.serve.lifecycle import RunningServer
from brim.serve.prepare.jobs import ChatJob, Prepared
from brim.serve.requests.generation import ChatRequest, CompletionRequest, read_chat, read_completion
from brim.serve.responses.answers import ResponseFormatter, ResponseHeader
from brim.serve.responses.chat import ChatFormatter
from brim.serve.responses.completion import CompletionFormatter
from brim.serve.settings import ServeSettings


class Endpoint(Protocol):
    """How one of them reads a request, makes its prompts, and shapes its answers."""

    @property
    def field(self) -> str:
        """Where the prompt is."""
        ...

    def stored_bytes(self, body: Mapping[str, Any], tenant: Tenant) -> int:
        """What reading it takes from the server's memory."""
        ...

    def read(self, body: Mapping[str, Any], running: RunningServer, tenant: Tenant) -> Any: ...

    def answers(self, asked: Any) -> int: ...

    async def prepare(self, asked: Any, running: RunningServer, tenant: Tenant) -> tuple[Prepared, ...]: ...

    async def params(self, asked: Any, prepared: tuple[Prepared, ...], running: RunningServer) -> SamplingParams:
        """How answers are drawn, now that the prompt is known."""
        ...

    def shape(self, asked: Any, prepared: tuple[Prepared, ...], running: RunningServer) -> ResponseFormatter: ...


@dataclass(frozen=True, slots=True)
class ChatEndpoint:
    settings: ServeSettings
    field: str = "messages"

    def stored_bytes(self, body: Mapping[str, Any], tenant: Tenant) -> int:
        return 0

    def read(self, body: Mapping[str, Any], running: RunningServer, tenant: Tenant) -> ChatRequest:
        return read_chat(body, running.engine.longest_request, self.settings.limits)

    def answers(self, asked: ChatRequest) -> int:
        return asked.wanted.params.n

    async def prepare(self, asked: ChatRequest, running: RunningServer, tenant: Tenant) -> tuple[Prepared, ...]:
        room = asked.room if asked.rolls else None
        job = ChatJob(asked.dialogue, self.settings.limits, running.engine.longest_request, room, salt=tenant.salt)
        return (await running.tokenising.chat(job),)

    async def params(
        self, asked: ChatRequest, prepared: tuple[Prepared, ...], running: RunningServer
    ) -> SamplingParams:
        return await as_asked(asked, prepared[0], running, "response_format")

    def shape(self, asked: ChatRequest, prepared: tuple[Prepared, ...], running: RunningServer) -> ChatFormatter:
        params = asked.wanted.params
        return ChatFormatter(
            ResponseHeader.new("chatcmpl", self.settings.model_name),
            prepared[0],
            reading_of(asked, prepared[0], running),
            answers=params.n,
            scores=scores_of(params, running),
            include_usage=asked.wanted.include_usage,
        )


@dataclass(frozen=True, slots=True)
class CompletionsEndpoint:
    settings: ServeSettings
    field: str = "prompt"

    def stored_bytes(self, body: Mapping[str, Any], tenant: Tenant) -> int:
        return 0

    def read(self, body: Mapping[str, Any], running: RunningServer, tenant: Tenant) -> CompletionRequest:
        return read_completion(body, running.engine.loaded.vocab)

    def answers(self, asked: CompletionRequest) -> int:
        return asked.answers

    async def prepare(self, asked: CompletionRequest, running: RunningServer, tenant: Tenant) -> tuple[Prepared, ...]:
        texts = [prompt for prompt in asked.prompts if isinstance(prompt, str)]
        longest = running.engine.longest_request
        made = iter(await running.tokenising.texts(texts, longest=longest) if texts else ())
        return tuple(Prepared(next(made) if isinstance(one, str) else one) for one in asked.prompts)

    async def params(
        self, asked: CompletionRequest, prepared: tuple[Prepared, ...], running: RunningServer
    ) -> SamplingParams:
        return asked.wanted.params

    def shape(
        self, asked: CompletionRequest, prepared: tuple[Prepared, ...], running: RunningServer
    ) -> CompletionFormatter:
        params, texts = asked.wanted.params, running.texts
        echoed = asked.prompts if asked.echo else ()
        return CompletionFormatter(
            head=ResponseHeader.new("cmpl", self.settings.model_name),
            prepared=prepared,
            prompts=tuple(one if isinstance(one, str) else texts.whole(one) for one in echoed),
            answers=params.n,
            scored=params.logprobs is not None,
            scored_only=asked.scored_only,
            include_usage=asked.wanted.include_usage,
            texts=texts,
        )

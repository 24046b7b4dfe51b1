"""The endpoint `/v1/responses`: answers that may be stored, and gone on from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from brim.engine.requests.params import SamplingParams
from brim.serve.http.forms import as_asked, reading_of, scores_of
from brim.serve.http.keys import Tenant
from brim.serve.http.reply import dumped
from brim.serve.lifecycle import RunningServer
from brim.serve.prepare.jobs import ChatJob, Prepared
from brim.serve.requests.responses_api import Items, ResponseRequest, read_response
from brim.serve.responses.answers import ResponseHeader
from brim.serve.responses.responses_api import ResponsesApiFormatter
from brim.serve.settings import ServeSettings
from brim.serve.stored import StoredResponse, StoredResponses


@dataclass(frozen=True, slots=True)
class ResponsesEndpoint:
    settings: ServeSettings
    stored: StoredResponses
    field: str = "input"

    def stored_bytes(self, body: Mapping[str, Any], tenant: Tenant) -> int:
        name = body.get("previous_response_id")
        kept = self.stored.find(tenant.name, name) if isinstance(name, str) else None
        return 0 if kept is None else len(kept.items)

    def read(self, body: Mapping[str, Any], running: RunningServer, tenant: Tenant) -> _Read:
        earlier = partial(self._earlier, tenant)
        asked = read_response(body, running.engine.longest_request, self.settings.limits, earlier)
        return _Read(asked, tenant)

    def _earlier(self, tenant: Tenant, name: str) -> Items | None:
        kept = self.stored.find(tenant.name, name)
        return None if kept is None else tuple(json.loads(kept.items))

    def answers(self, asked: _Read) -> int:
        return 1

    async def prepare(self, asked: _Read, running: RunningServer, tenant: Tenant) -> tuple[Prepared, ...]:
        chat = asked.asked.chat
        room = chat.room if chat.rolls else None
        job = ChatJob(chat.dialogue, self.settings.limits, running.engine.longest_request, room, salt=tenant.salt)
        return (await running.tokenising.chat(job),)

    async def params(self, asked: _Read, prepared: tuple[Prepared, ...], running: RunningServer) -> SamplingParams:
        return await as_asked(asked.asked.chat, prepared[0], running, "text.format")

    def shape(self, asked: _Read, prepared: tuple[Prepared, ...], running: RunningServer) -> ResponsesApiFormatter:
        head = ResponseHeader.new("resp", self.settings.model_name)
        return ResponsesApiFormatter(
            replace(head, id=head.id.replace("-", "_")),
            prepared[0],
            reading_of(asked.asked.chat, prepared[0], running),
            asked.asked.said_back,
            partial(self._keep, asked) if asked.asked.store else None,
            scores_of(asked.wanted.params, running),
        )

    def _keep(self, asked: _Read, response: dict[str, Any]) -> None:
        items = [*asked.asked.items, *response["output"]]
        self.stored.keep(asked.tenant.name, response["id"], StoredResponse(dumped(response), dumped(items)))


@dataclass(frozen=True, slots=True)
class _Read:
    """A request, and whose it is."""

    asked: ResponseRequest
    tenant: Tenant

    @property
    def wanted(self) -> Any:
        return self.asked.wanted

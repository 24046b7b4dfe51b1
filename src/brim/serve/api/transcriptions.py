"""`/v1/audio/transcriptions` and `/v1/audio/translations`: a form with a file, answered as a chat about the audio."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from brim.errors import InvalidRequest
from brim.serve.api.answering import Answering, PreparedRequest, ReadRequest, RequestContext
from brim.serve.api.chat import answer_params, chat_prompt, reading_of
from brim.serve.http.parsing import checked
from brim.serve.http.reading import read_bytes
from brim.serve.lifecycle import ServerLifecycle, served_model
from brim.serve.log import RequestLog
from brim.serve.requests.multipart import boundary_of, parse_form
from brim.serve.requests.transcription import TranscriptionRequest, form_values, read_transcription
from brim.serve.responses.transcription import TranscriptionFormatter
from brim.serve.settings import ServeSettings

if TYPE_CHECKING:
    from starlette.requests import Request

_TASKS = {"/v1/audio/transcriptions": "transcribe", "/v1/audio/translations": "translate"}
_IN_CHAT = "messages[0].content[0].input_audio.data"  # where the file is in the chat that is made of a form


class Transcribing(Answering):
    """One of these endpoints, as an ASGI application."""

    def __init__(self, path: str, lifecycle: ServerLifecycle, settings: ServeSettings, request_log: RequestLog) -> None:
        super().__init__(path, TranscriptionEndpoint(settings, _TASKS[path]), lifecycle, settings, request_log)

    async def _read(self, request: Request) -> bytes:
        boundary_of(request.headers.get("content-type", ""))  # before the body is waited for
        return await read_bytes(request, self._settings.limits)

    async def _parsed(self, request: Request, body: bytes) -> Mapping[str, Any]:
        boundary = boundary_of(request.headers.get("content-type", ""))
        return await asyncio.to_thread(lambda: form_values(parse_form(body, boundary)))


@dataclass(frozen=True, slots=True)
class TranscriptionEndpoint:
    settings: ServeSettings
    task: str

    async def read(self, found: Mapping[str, Any], size_bytes: int, context: RequestContext) -> ReadRequest:
        model = served_model(self.settings, context.running)
        asked = await checked(partial(read_transcription, found, model, self.task), size_bytes)
        return ReadRequest(asked.chat.wanted, 1, partial(self._prepare, asked, context))

    async def _prepare(self, asked: TranscriptionRequest, context: RequestContext) -> PreparedRequest:
        try:
            prompt = await chat_prompt(asked.chat, context, self.settings.limits, "file")
        except InvalidRequest as error:
            raise InvalidRequest(str(error).replace(_IN_CHAT, "file")) from None
        reading = reading_of(asked.chat, prompt, context.running)
        formatter = TranscriptionFormatter(prompt, reading, asked.form, asked.language, asked.task)
        params = await answer_params(asked.chat, prompt, context.running, "response_format")
        return PreparedRequest((prompt,), params, formatter)

"""The endpoints that hear: forms with a file."""

from __future__ import annotations

from typing import Any

from brim.serve.openapi.responses import NUMBER, TEXT, given
from brim.serve.requests.transcription import TranscriptionForm
from brim.serve.requests.types import Schema, ServedModel

FORM = "multipart/form-data"
TRANSCRIBED = given({"text": TEXT}, {"usage": {"type": "object"}, "duration": NUMBER, "language": TEXT, "task": TEXT})


def form_schema(model: ServedModel) -> Schema:
    """The fields of a form; a file is bytes there."""
    whole = TranscriptionForm.openapi(model)
    return whole | {"properties": whole["properties"] | {"file": {"type": "string", "format": "binary"}}}


def form_body(model: ServedModel) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {FORM: {"schema": form_schema(model)}}}}

"""The requests of `/v1/audio/transcriptions` and `/v1/audio/translations`: a form with a file, as a chat about it.

The model is asked in words, through its own chat template: what it answers is what `generate` answers to the same
prompt. Languages are named as the client names them.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from brim.serve.problems import Problem, invalid
from brim.serve.requests import types as t
from brim.serve.requests.chat import ChatRequest, read_chat
from brim.serve.requests.multipart import FormFields

FORMATS = ("json", "text", "verbose_json")
_TIMED = ("srt", "vtt")
_NUMBERS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
_COUNTS = ("seed", "top_k", "max_completion_tokens", "max_tokens")
_FLAGS = ("stream", "stream_include_usage", "stream_continuous_usage_stats")
_TEXTS = ("model", "language", "prompt", "response_format", "to_language")
_IGNORED = ("chunking_strategy", "timestamp_granularities[]", "include[]", "user", "hotwords", "use_beam_search")
_SAMPLED = (*_NUMBERS, *_COUNTS)


@dataclass(frozen=True, slots=True)
class TranscriptionRequest:
    chat: ChatRequest
    form: str  # of FORMATS
    language: str | None
    task: str  # transcribe or translate


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptionForm(t.JsonObject):
    """The fields that are read here; those of sampling are a chat's."""

    file: str = t.required(t.text())  # in base64
    model: str | None = t.optional(t.MODEL_NAME)
    language: str | None = t.optional(t.text(64))
    to_language: str | None = t.optional(t.text(64))
    prompt: str | None = t.optional(t.TEXT)
    response_format: str = t.optional(t.choice((*FORMATS, *_TIMED)), default="json")
    IGNORED: ClassVar[tuple[str, ...]] = (*_SAMPLED, *_FLAGS, *_IGNORED)


def form_values(form: FormFields) -> dict[str, Any]:
    """A form as JSON would have it: numbers and flags are what they say, and the file is in base64."""
    found: dict[str, Any] = {}
    for name, sent in form.texts.items():
        if len(sent) > 1 and not name.endswith("[]"):
            raise invalid(f"{name:.60}", "it was sent more than once")
        if name == "file":
            raise invalid("file", "it has no filename: send the audio as a file of the form")
        found[name] = _value(name, sent[0])
    if "file" not in form.files:
        raise invalid("file", "it is missing: send the audio as a file of the form", "missing_required_parameter")
    other = next((name for name in form.files if name != "file"), None)
    if other is not None:
        raise invalid(f"{other:.60}", "one file is taken, under the name 'file'", "unknown_parameter")
    if not form.files["file"]:
        raise invalid("file", "it is empty")
    return found | {"file": base64.b64encode(form.files["file"]).decode()}


def _value(name: str, written: str) -> Any:
    if name in _FLAGS:
        if written.lower() not in ("true", "false", "1", "0"):
            raise invalid(name, f"{written!r:.40} is not true or false", "invalid_type")
        return written.lower() in ("true", "1")
    if name in (*_NUMBERS, *_COUNTS) and written:
        try:
            return (int if name in _COUNTS else float)(written)
        except ValueError:
            raise invalid(name, f"{written!r:.40} is not a number", "invalid_type") from None
    return written or None


def read_transcription(found: Mapping[str, t.Json], model: t.ServedModel, task: str) -> TranscriptionRequest:
    """As a chat with the audio in it. Nothing is drawn at random unless a temperature is given."""
    if not model.audio:
        raise Problem(404, "the model that is served here takes no audio; serve one that does", code="other_task")
    body = TranscriptionForm.read_body(found, model)
    if body.response_format in _TIMED:
        said = f"{body.response_format} needs times of words, which a chat model does not give; ask for json, text"
        raise invalid("response_format", f"{said} or verbose_json", "unsupported_value")
    sampled = {name: found[name] for name in _SAMPLED if found.get(name) is not None}
    stream = bool(found.get("stream"))
    if stream and body.response_format == "text":
        raise invalid("response_format", "a stream is of events; ask for json")
    audio = {"type": "input_audio", "input_audio": {"data": body.file, "format": "wav"}}  # its bytes say what it is
    content = [audio, {"type": "text", "text": instruction(body, task)}]
    chat = read_chat(
        {"messages": [{"role": "user", "content": content}], "temperature": 0, "stream": stream, **sampled}, model
    )
    return TranscriptionRequest(chat, body.response_format, body.language, task)


def instruction(body: TranscriptionForm, task: str) -> str:
    """What the model is asked to do with the audio."""
    spoken = f" The speech is in the language '{body.language}'." if body.language else ""
    hint = f" Context that may help: {body.prompt}" if body.prompt else ""
    if task == "translate":
        wanted = f"into {body.to_language or 'English'}"
        return f"Translate the speech in this audio {wanted}. Answer with the translation only.{spoken}{hint}"
    return f"Transcribe the speech in this audio, word for word. Answer with the transcript only.{spoken}{hint}"

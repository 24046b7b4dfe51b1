"""Answers of `/v1/audio/transcriptions`, as OpenAI's API has them: JSON, plain text, or events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from brim.engine.front.answers import Update
from brim.serve.parse.pieces import Said
from brim.serve.parse.table import AnswerReader
from brim.serve.prepare.jobs import Prepared
from brim.serve.responses.answers import DONE, FinishedAnswer, Json, Reading, finish_reason


@dataclass(slots=True)
class TranscriptionFormatter:
    """One transcript. Reasoning, where a model begins with some, is no part of it."""

    prompt: Prepared
    reading: Reading
    form: str
    language: str | None
    task: str
    last_line: bytes = DONE
    _reader: AnswerReader = field(init=False)
    _text: str = ""

    def __post_init__(self) -> None:
        self._reader = self.reading.reader()

    def note(self, number: int, update: Update) -> None:
        self._text += self._said(update)

    def _said(self, update: Update) -> str:
        """What an update adds to the transcript."""
        pieces = self._reader.feed(update.text)
        if update.completion is not None:
            pieces += self._reader.close()
        return "".join(piece.text for piece in pieces if isinstance(piece, Said))

    def whole(self, ended: Sequence[FinishedAnswer]) -> Json | str:
        finish_reason(ended[0].completion)
        if self.form == "text":
            return self._text + "\n"
        if self.form == "verbose_json":
            return {
                "task": self.task,
                "language": self.language or "unknown",
                "duration": round(self.prompt.audio_seconds, 3),
                "text": self._text,
                "segments": [],
                "usage": self._usage(),
            }
        return {"text": self._text, "usage": self._usage()}

    def opening(self) -> list[Json]:
        return []

    def events(self, number: int, update: Update) -> list[Json]:
        said = self._said(update)
        self._text += said
        return [{"type": "transcript.text.delta", "delta": said}] if said else []

    def closing(self, ended: Sequence[FinishedAnswer]) -> list[Json]:
        done = ended[0].completion
        finish_reason(done)
        counts = {
            "type": "tokens",
            "input_tokens": len(self.prompt.tokens),
            "output_tokens": len(done.tokens),
            "total_tokens": len(self.prompt.tokens) + len(done.tokens),
        }
        return [{"type": "transcript.text.done", "text": self._text, "usage": counts}]

    def _usage(self) -> dict[str, Any]:
        return {"type": "duration", "seconds": ceil(self.prompt.audio_seconds)}

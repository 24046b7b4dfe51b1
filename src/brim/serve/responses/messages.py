"""Answers of `/v1/messages`: content blocks, and the events that they come in, as Anthropic writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

from brim.engine.front.answers import Completion, Update
from brim.engine.requests.request import FinishReason
from brim.serve.parse.pieces import Argued, Called, Piece, Said, Thought
from brim.serve.prepare.jobs import Prepared
from brim.serve.responses.answers import (
    FinishedAnswer,
    Json,
    Reading,
    ResponseHeader,
    finish_reason,
    new_call_id,
    usage,
)


class MessagesFormatter:
    last_line = b""

    def __init__(
        self, head: ResponseHeader, prepared: Prepared, reading: Reading, *, max_tokens: int, block_size: int
    ) -> None:
        """`max_tokens` were asked for; `block_size` is that of the KV pool, in which prompts are found again."""
        self._head = head
        self._prepared = prepared
        self._reader = reading.reader()
        self._max_tokens = max_tokens
        self._block_size = block_size
        self._blocks: list[_ContentBlock] = []
        self._calls = 0

    def note(self, number: int, update: Update) -> None:
        self.events(number, update)

    def whole(self, ended: Sequence[FinishedAnswer]) -> Json:
        done = ended[0].completion
        content = [block.json for block in self._blocks]
        return self._message(content, self._usage(ended), **self._ending(done)) | self._prepared.notes

    def opening(self) -> list[Json]:
        """What of the prompt was found is known at the end."""
        counts = _counts(len(self._prepared.tokens), 0, 0, 0)
        message = self._message([], counts, stop_reason=None, stop_sequence=None) | self._prepared.notes
        return [{"type": "message_start", "message": message}, {"type": "ping"}]

    def events(self, number: int, update: Update) -> list[Json]:
        done = update.completion
        pieces = self._reader.feed(update.text)
        if done is not None:
            finish_reason(done)
            pieces += self._reader.close()
            if not pieces and not self._blocks:
                pieces = [Said("")]
        found = [event for piece in pieces for event in self._read(piece)]
        return found if done is None else [*found, *self._close()]

    def closing(self, ended: Sequence[FinishedAnswer]) -> list[Json]:
        return [
            {"type": "message_delta", "delta": self._ending(ended[0].completion), "usage": self._usage(ended)},
            {"type": "message_stop"},
        ]

    def _read(self, piece: Piece) -> Iterator[Json]:
        if not self._blocks or not self._blocks[-1].takes(piece):
            yield from self._close()
            self._blocks.append(_ContentBlock(len(self._blocks), piece))
            self._calls += isinstance(piece, Called)
            yield self._blocks[-1].start
        if not isinstance(piece, Called) and piece.text:
            yield self._blocks[-1].more(piece.text)

    def _close(self) -> list[Json]:
        return self._blocks[-1].end() if self._blocks else []

    def _message(self, content: list[Json], counts: Json, **ending: Any) -> Json:
        return {
            "id": self._head.id,
            "type": "message",
            "role": "assistant",
            "model": self._head.model,
            "content": content,
            **ending,
            "usage": counts,
        }

    def _ending(self, done: Completion) -> Json:
        stop = done.stop if isinstance(done.stop, str) else None
        match done.finish_reason:
            case FinishReason.STOP if self._calls:
                reason = "tool_use"
            case FinishReason.STOP:
                reason = "end_turn" if stop is None else "stop_sequence"
            case FinishReason.LENGTH if len(done.tokens) < self._max_tokens:
                reason = "model_context_window_exceeded"
            case _:  # a deadline too: it is an answer that was cut off
                reason = "max_tokens"
        return {"stop_reason": reason, "stop_sequence": stop}

    def _usage(self, ended: Sequence[FinishedAnswer]) -> Json:
        found = usage([self._prepared], ended)
        prompt, cached = found["prompt_tokens"], found["prompt_tokens_details"]["cached_tokens"]
        created = max(0, prompt // self._block_size * self._block_size - cached)
        return _counts(prompt, cached, created, found["completion_tokens"])


def _counts(prompt: int, cached: int, created: int, generated: int) -> Json:
    """The three counts of input add up to the prompt; `created` will be found by the next one that begins alike."""
    return {
        "input_tokens": prompt - cached - created,
        "cache_creation_input_tokens": created,
        "cache_read_input_tokens": cached,
        "output_tokens": generated,
    }


class _ContentBlock:
    """One block of content, as it grows."""

    def __init__(self, place: int, piece: Piece) -> None:
        self._place = place
        self._first = piece
        self._text = ""
        self._ended = False
        self._call = new_call_id() if isinstance(piece, Called) else ""

    def takes(self, piece: Piece) -> bool:
        if isinstance(self._first, Called):
            return isinstance(piece, Argued) and piece.number == self._first.number
        return type(piece) is type(self._first)

    @property
    def json(self) -> Json:
        return self._json(self._text, _arguments(self._text))

    @property
    def start(self) -> Json:
        return {"type": "content_block_start", "index": self._place, "content_block": self._json("", {}, "")}

    def more(self, text: str) -> Json:
        self._text += text
        match self._first:
            case Called():
                return self._delta("input_json_delta", "partial_json", text)
            case Thought():
                return self._delta("thinking_delta", "thinking", text)
            case _:
                return self._delta("text_delta", "text", text)

    def end(self) -> list[Json]:
        """Events that end it, once."""
        if self._ended:
            return []
        self._ended = True
        signed = [self._delta("signature_delta", "signature", _signature(self._text))]
        ended = {"type": "content_block_stop", "index": self._place}
        return [*(signed if isinstance(self._first, Thought) else []), ended]

    def _delta(self, kind: str, field: str, text: str) -> Json:
        return {"type": "content_block_delta", "index": self._place, "delta": {"type": kind, field: text}}

    def _json(self, text: str, arguments: Json, signature: str | None = None) -> Json:
        match self._first:
            case Called(_, name):
                return {"type": "tool_use", "id": self._call, "name": name, "input": arguments}
            case Thought():
                signed = _signature(text) if signature is None else signature
                return {"type": "thinking", "thinking": text, "signature": signed}
            case _:
                return {"type": "text", "text": text}


def _arguments(written: str) -> Json:
    """Those of a call that was cut off are not known."""
    try:
        found = json.loads(written)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _signature(thought: str) -> str:
    """Clients send thinking back with its signature only; nobody checks it here."""
    return blake2b(thought.encode(errors="replace"), digest_size=16).hexdigest()

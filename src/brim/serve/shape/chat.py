"""Answers of `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from brim.engine.front.answers import Completion, Update
from brim.engine.requests.request import FinishReason
from brim.engine.schedule.events import TokenLogprobs
from brim.serve.parse.pieces import Answered, Argued, Called, Piece, Said, Thought, whole
from brim.serve.parse.table import AnswerReader
from brim.serve.prepare.jobs import Prepared
from brim.serve.shape.answers import DONE, Ended, Head, Json, Reading, finish_reason, new_call_id, score_of, usage
from brim.serve.token_texts import TokenTexts

WHOLE, CHUNK = "chat.completion", "chat.completion.chunk"
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # a token that is a part of a character: its bytes are not known


@dataclass(slots=True)
class _Streamed:
    """One answer while it is streamed."""

    reader: AnswerReader
    calls: int = 0


class ChatShape:
    last_line = DONE

    def __init__(
        self,
        head: Head,
        prepared: Prepared,
        reading: Reading,
        *,
        answers: int,
        scored: bool,
        include_usage: bool,
        texts: TokenTexts,
        ends: Collection[int],
    ) -> None:
        """`scored`: log-probabilities were asked for; `ends`: tokens that end an answer and are no part of it."""
        self._head = head
        self._prepared = prepared
        self._reading = reading
        self._scored = scored
        self._include_usage = include_usage
        self._texts = texts
        self._end_ids = ends
        self._streamed = [_Streamed(reading.reader()) for _ in range(answers)]

    def whole(self, ended: Sequence[Ended]) -> Json:
        found = self._head.of(WHOLE, [self._choice(one) for one in ended])
        return found | {"usage": self._usage(ended)} | self._dropped()

    def opening(self) -> list[Json]:
        delta = {"role": "assistant", "content": ""}
        found = [self._chunk([_delta(number, delta)]) for number in range(len(self._streamed))]
        return [found[0] | self._dropped(), *found[1:]]

    def events(self, number: int, update: Update) -> list[Json]:
        done, streamed = update.completion, self._streamed[number]
        pieces = streamed.reader.feed(update.text)
        if done is not None:
            pieces += streamed.reader.close()
        streamed.calls += sum(isinstance(piece, Called) for piece in pieces)
        deltas = [_piece_delta(piece) for piece in pieces]
        scores = self._scores(update, done)
        if scores and not deltas:
            deltas = [{"content": ""}]
        choices = [_delta(number, delta) for delta in deltas]
        if scores:
            choices[0]["logprobs"] = {"content": scores}
        if done is not None:
            choices.append(_delta(number, {}, _reason(done, streamed.calls)))
        return [self._chunk([choice]) for choice in choices]

    def closing(self, ended: Sequence[Ended]) -> list[Json]:
        return [self._head.of(CHUNK, []) | {"usage": self._usage(ended)}] if self._include_usage else []

    def _usage(self, ended: Sequence[Ended]) -> Json:
        thought = sum(self._reading.reasoning_tokens(one.completion.tokens) for one in ended)
        return usage([self._prepared], ended) | {"completion_tokens_details": {"reasoning_tokens": thought}}

    def _chunk(self, choices: list[Json]) -> Json:
        found = self._head.of(CHUNK, choices)
        return found | {"usage": None} if self._include_usage else found

    def _dropped(self) -> Json:
        """What a rolling conversation lost."""
        return {"brim": self._prepared.dropped} if self._prepared.rolls else {}

    def _choice(self, one: Ended) -> Json:
        done = one.completion
        reader = self._reading.reader()
        answered = whole(reader.feed(done.text or "") + reader.close())
        scores = None
        if self._scored:
            kept = done.logprobs[:-1] if self._ends(done) else done.logprobs
            scores = {"content": [self._score(score) for score in kept]}
        return {
            "index": one.number,
            "message": _message(answered),
            "logprobs": scores,
            "finish_reason": _reason(done, len(answered.calls)),
        }

    def _scores(self, update: Update, done: Completion | None) -> list[Json]:
        if update.logprobs is None or (done is not None and self._ends(done)):
            return []
        return [self._score(update.logprobs)]

    def _ends(self, done: Completion) -> bool:
        """Whether its last token only ended it."""
        return done.finish_reason is FinishReason.STOP and bool(done.tokens) and done.tokens[-1] in self._end_ids

    def _score(self, score: TokenLogprobs) -> Json:
        return self._token(score.token, score.logprob) | {
            "top_logprobs": [self._token(token, logprob) for token, logprob in score.top]
        }

    def _token(self, token: int, logprob: float) -> Json:
        text = self._texts.of(token)
        complete = _UNFINISHED not in text
        return {"token": text, "logprob": score_of(logprob), "bytes": list(text.encode()) if complete else None}


def _message(answered: Answered) -> Json:
    content = answered.content if answered.content or not answered.calls else None
    found: Json = {"role": "assistant", "content": content}
    if answered.reasoning:
        found["reasoning_content"] = answered.reasoning
    if answered.calls:
        found["tool_calls"] = [
            {"id": new_call_id(), "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answered.calls
        ]
    return found


def _piece_delta(piece: Piece) -> Json:
    match piece:
        case Said(text):
            return {"content": text}
        case Thought(text):
            return {"reasoning_content": text}
        case Called(number, name):
            function = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": number, "id": new_call_id(), "type": "function", "function": function}]}
        case Argued(number, text):
            return {"tool_calls": [{"index": number, "function": {"arguments": text}}]}


def _reason(done: Completion, calls: int) -> str:
    reason = finish_reason(done)
    return "tool_calls" if calls and done.finish_reason is FinishReason.STOP else reason


def _delta(number: int, delta: dict[str, Any], reason: str | None = None) -> Json:
    return {"index": number, "delta": delta, "finish_reason": reason}

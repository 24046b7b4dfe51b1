"""Answers of `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from brim.engine.front.answers import Completion, Update
from brim.engine.requests.request import FinishReason
from brim.serve.parse.pieces import Answered, Argued, Called, Piece, Said, Thought, whole
from brim.serve.parse.table import AnswerReader
from brim.serve.prepare.jobs import Prepared
from brim.serve.responses.answers import (
    DONE,
    FinishedAnswer,
    Json,
    Reading,
    ResponseHeader,
    finish_reason,
    new_call_id,
    usage,
)
from brim.serve.responses.details import AnswerDetails, usage_so_far
from brim.serve.responses.scores import Scores

WHOLE, CHUNK = "chat.completion", "chat.completion.chunk"


@dataclass(slots=True)
class _Streamed:
    """One answer while it is streamed."""

    reader: AnswerReader
    calls: int = 0
    tokens: int = 0
    unsent: list[int] = field(default_factory=list)  # tokens of which no event has told yet


class ChatFormatter:
    last_line = DONE

    def __init__(
        self,
        head: ResponseHeader,
        prepared: Prepared,
        reading: Reading,
        *,
        answers: int,
        scores: Scores | None,
        include_usage: bool,
        details: AnswerDetails,
        echoed: str = "",
    ) -> None:
        """`scores`: log-probabilities were asked for; `echoed` is what each answer begins with."""
        self._details = details
        self._head = head
        self._prepared = prepared
        self._reading = reading
        self._scores = scores
        self._include_usage = include_usage
        self._echoed = echoed
        self._streamed = [_Streamed(reading.reader()) for _ in range(answers)]

    def whole(self, ended: Sequence[FinishedAnswer]) -> Json:
        found = self._head.of(WHOLE, [self._choice(one) for one in ended])
        prompt = self._details.of_prompt(self._prepared.tokens, ended[0].completion.prompt_logprobs)
        return found | {"usage": self._usage(ended)} | prompt | self._prepared.notes

    def opening(self) -> list[Json]:
        delta = {"role": "assistant", "content": self._echoed}
        found = [self._chunk([_delta(number, delta)]) for number in range(len(self._streamed))]
        return [found[0] | self._details.with_prompt_ids(self._prepared.tokens) | self._prepared.notes, *found[1:]]

    def note(self, number: int, update: Update) -> None:
        pass  # what has ended says it all

    def events(self, number: int, update: Update) -> list[Json]:
        done, streamed = update.completion, self._streamed[number]
        if update.token is not None:
            streamed.tokens += 1
            streamed.unsent.append(update.token)
        pieces = streamed.reader.feed(update.text)
        if done is not None:
            pieces += streamed.reader.close()
        streamed.calls += sum(isinstance(piece, Called) for piece in pieces)
        deltas = [_piece_delta(piece) for piece in pieces]
        scores = [] if self._scores is None else self._scores.of_update(update)
        of_prompt = self._details.with_prompt_scores(update)
        if not deltas and (scores or of_prompt):
            deltas = [{"content": ""}]
        if done is not None and not deltas:
            deltas = [{}]
        choices = [_delta(number, delta) for delta in deltas]
        if not choices:
            return []
        if scores:
            choices[0]["logprobs"] = {"content": scores}
        if self._details.token_ids:
            choices[0]["token_ids"], streamed.unsent = streamed.unsent, []
        if done is not None:
            choices[-1] |= {"finish_reason": _reason(done, streamed.calls)} | self._details.of_end(done)
        found = [self._chunk([choice]) for choice in choices]
        return [found[0] | of_prompt, *found[1:]]

    def closing(self, ended: Sequence[FinishedAnswer]) -> list[Json]:
        return [self._head.of(CHUNK, []) | {"usage": self._usage(ended)}] if self._include_usage else []

    def _usage(self, ended: Sequence[FinishedAnswer]) -> Json:
        thought = sum(self._reading.reasoning_tokens(one.completion.tokens) for one in ended)
        details = {
            "reasoning_tokens": thought,
            "accepted_prediction_tokens": sum(one.completion.accepted_tokens for one in ended),
            "rejected_prediction_tokens": sum(
                one.completion.predicted_tokens - one.completion.accepted_tokens for one in ended
            ),
        }
        return usage([self._prepared], ended) | {"completion_tokens_details": details}

    def _chunk(self, choices: list[Json]) -> Json:
        found = self._head.of(CHUNK, choices)
        if not self._include_usage:
            return found
        return found | {"usage": self._usage_so_far() if self._details.continuous_usage else None}

    def _usage_so_far(self) -> Json:
        return usage_so_far(len(self._prepared.tokens), sum(one.tokens for one in self._streamed))

    def _choice(self, one: FinishedAnswer) -> Json:
        done = one.completion
        reader = self._reading.reader()
        answered = whole(reader.feed(done.text or "") + reader.close())
        return {
            "index": one.number,
            "message": _message(answered, self._echoed),
            "logprobs": None if self._scores is None else {"content": self._scores.of_answer(done)},
            "finish_reason": _reason(done, len(answered.calls)),
            **self._details.of_answer(done, done.tokens),
        }


def _message(answered: Answered, echoed: str) -> Json:
    content = echoed + answered.content
    found: Json = {"role": "assistant", "content": content if content or not answered.calls else None}
    if answered.reasoning:
        found |= _reasoning(answered.reasoning)
    if answered.calls:
        found["tool_calls"] = [_call(Called(0, call.name, call.custom), call.arguments) for call in answered.calls]
    return found


def _call(called: Called, written: str) -> Json:
    if called.custom:
        return {"id": new_call_id(), "type": "custom", "custom": {"name": called.name, "input": written}}
    return {"id": new_call_id(), "type": "function", "function": {"name": called.name, "arguments": written}}


def _reasoning(text: str) -> Json:
    """Under both names that clients look for."""
    return {"reasoning_content": text, "reasoning": text}


def _piece_delta(piece: Piece) -> Json:
    match piece:
        case Said(text):
            return {"content": text}
        case Thought(text):
            return _reasoning(text)
        case Called(number):
            return {"tool_calls": [{"index": number, **_call(piece, "")}]}
        case Argued(number, text, custom):
            written = {"custom": {"input": text}} if custom else {"function": {"arguments": text}}
            return {"tool_calls": [{"index": number, **written}]}


def _reason(done: Completion, calls: int) -> str:
    reason = finish_reason(done)
    return "tool_calls" if calls and done.finish_reason is FinishReason.STOP else reason


def _delta(number: int, delta: dict[str, Any]) -> Json:
    return {"index": number, "delta": delta, "finish_reason": None}

"""Answers of `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from brim.engine.front.answers import Completion, Update
from brim.engine.requests.request import FinishReason
from brim.engine.schedule.events import TokenLogprobs
from brim.serve.prepare.jobs import Prepared
from brim.serve.shape.answers import Ended, Head, Json, finish_reason, usage
from brim.serve.token_texts import TokenTexts

WHOLE, CHUNK = "chat.completion", "chat.completion.chunk"
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # a token that is a part of a character: its bytes are not known


@dataclass(frozen=True, slots=True)
class ChatShape:
    head: Head
    prepared: Prepared
    answers: int
    scored: bool  # log-probabilities were asked for
    include_usage: bool
    texts: TokenTexts
    ends: Collection[int]  # tokens that end an answer and are no part of it

    def whole(self, ended: Sequence[Ended]) -> Json:
        found = self.head.of(WHOLE, [self._choice(one) for one in ended])
        return found | {"usage": usage([self.prepared], ended)} | self._dropped()

    def opening(self) -> list[Json]:
        delta = {"role": "assistant", "content": ""}
        found = [self._chunk([_delta(number, delta)]) for number in range(self.answers)]
        return [found[0] | self._dropped(), *found[1:]]

    def events(self, number: int, update: Update) -> list[Json]:
        done = update.completion
        scores = self._scores(update, done)
        found = []
        if update.text or scores:
            choice = _delta(number, {"content": update.text})
            found.append(self._chunk([choice | {"logprobs": {"content": scores}} if self.scored else choice]))
        if done is not None:
            found.append(self._chunk([_delta(number, {}, finish_reason(done))]))
        return found

    def usage_event(self, ended: Sequence[Ended]) -> Json:
        return self.head.of(CHUNK, []) | {"usage": usage([self.prepared], ended)}

    def _chunk(self, choices: list[Json]) -> Json:
        found = self.head.of(CHUNK, choices)
        return found | {"usage": None} if self.include_usage else found

    def _dropped(self) -> Json:
        """What a rolling conversation lost."""
        if not self.prepared.rolls:
            return {}
        return {
            "brim": {
                "evicted_turns": self.prepared.evicted_turns,
                "evicted_tokens": self.prepared.evicted_tokens,
            }
        }

    def _choice(self, one: Ended) -> Json:
        done = one.completion
        scores = None
        if self.scored:
            kept = done.logprobs[:-1] if self._ends(done) else done.logprobs
            scores = {"content": [self._score(score) for score in kept]}
        return {
            "index": one.number,
            "message": {"role": "assistant", "content": done.text or ""},
            "logprobs": scores,
            "finish_reason": finish_reason(done),
        }

    def _scores(self, update: Update, done: Completion | None) -> list[Json]:
        if update.logprobs is None or (done is not None and self._ends(done)):
            return []
        return [self._score(update.logprobs)]

    def _ends(self, done: Completion) -> bool:
        """Whether its last token only ended it."""
        return done.finish_reason is FinishReason.STOP and bool(done.tokens) and done.tokens[-1] in self.ends

    def _score(self, score: TokenLogprobs) -> Json:
        return self._token(score.token, score.logprob) | {
            "top_logprobs": [self._token(token, logprob) for token, logprob in score.top]
        }

    def _token(self, token: int, logprob: float) -> Json:
        text = self.texts.of(token)
        whole = _UNFINISHED not in text
        return {"token": text, "logprob": logprob, "bytes": list(text.encode()) if whole else None}


def _delta(number: int, delta: dict[str, Any], reason: str | None = None) -> Json:
    return {"index": number, "delta": delta, "finish_reason": reason}

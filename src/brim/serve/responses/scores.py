"""Log-probabilities of the tokens of an answer, as OpenAI's chats and responses write them."""

from __future__ import annotations

from collections.abc import Collection

from brim.engine.front.answers import Completion, Update
from brim.engine.requests.request import FinishReason
from brim.engine.schedule.events import TokenLogprobs
from brim.serve.responses.answers import Json, score_of
from brim.serve.token_texts import TokenTexts

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # a token that is a part of a character: its bytes are not known


class Scores:
    def __init__(self, texts: TokenTexts, ends: Collection[int], *, by_id: bool = False) -> None:
        """`ends`: tokens that end an answer and are no part of it; `by_id`: tokens are named by their ids."""
        self._texts = texts
        self._by_id = by_id
        self._end_ids = ends

    def of_answer(self, done: Completion) -> list[Json]:
        kept = done.logprobs[:-1] if self._only_ends(done) else done.logprobs
        return [self._score(score) for score in kept]

    def of_update(self, update: Update) -> list[Json]:
        done = update.completion
        if update.logprobs is None or (done is not None and self._only_ends(done)):
            return []
        return [self._score(update.logprobs)]

    def _only_ends(self, done: Completion) -> bool:
        """Whether its last token only ended it."""
        return done.finish_reason is FinishReason.STOP and bool(done.tokens) and done.tokens[-1] in self._end_ids

    def _score(self, score: TokenLogprobs) -> Json:
        return self._token(score.token, score.logprob) | {
            "top_logprobs": [self._token(token, logprob) for token, logprob in score.top]
        }

    def _token(self, token: int, logprob: float) -> Json:
        text = self._texts.of(token)
        complete = _UNFINISHED not in text
        return {
            "token": named_by_id(token) if self._by_id else text,
            "logprob": score_of(logprob),
            "bytes": list(text.encode()) if complete else None,
        }


def named_by_id(token: int) -> str:
    """A token as vLLM names it where its text may be a part of a character."""
    return f"token_id:{token}"

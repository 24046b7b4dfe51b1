"""What answers say of their tokens, as vLLM's and SGLang's do: ids, scores of the prompt, what ended them.

Whole answers have all of these keys, null where they were not asked for; events of a stream have those that were.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from brim.engine.front.answers import Completion, Update
from brim.engine.schedule.events import TokenLogprobs
from brim.serve.responses.answers import Json, score_of
from brim.serve.token_texts import TokenTexts


@dataclass(frozen=True, slots=True)
class AnswerDetails:
    """What was asked for, and what it takes to say it."""

    texts: TokenTexts
    eos_ids: Collection[int]  # tokens that end an answer of the model's own accord
    token_ids: bool = False
    prompt_scores: int | None = None  # alternatives beside each token; None: the prompt's scores were not asked for
    continuous_usage: bool = False

    def of_prompt(self, tokens: Sequence[int], scores: Iterable[TokenLogprobs]) -> Json:
        return {
            "prompt_token_ids": list(tokens) if self.token_ids else None,
            "prompt_logprobs": None if self.prompt_scores is None else self._scored(scores),
        }

    def of_end(self, done: Completion) -> Json:
        """`stop_reason` is vLLM's: None where the model ended the answer itself; `matched_stop` is SGLang's."""
        own = isinstance(done.stop, int) and done.stop in self.eos_ids
        return {"stop_reason": None if own else done.stop, "matched_stop": done.stop}

    def of_answer(self, done: Completion) -> Json:
        return {**self.of_end(done), "token_ids": list(done.tokens) if self.token_ids else None}

    def with_prompt_ids(self, tokens: Sequence[int]) -> Json:
        """For the first event of a stream."""
        return {"prompt_token_ids": list(tokens)} if self.token_ids else {}

    def with_prompt_scores(self, update: Update) -> Json:
        """For the event of the first token."""
        if self.prompt_scores is None or not update.prompt_logprobs:
            return {}
        return {"prompt_logprobs": self._scored(update.prompt_logprobs)}

    def _scored(self, scores: Iterable[TokenLogprobs]) -> list[Json | None]:
        """By the ids of the tokens; nothing stands before the first, so it has no likelihood."""
        return [None, *map(self._entry, scores)]

    def _entry(self, score: TokenLogprobs) -> Json:
        top = {token: (logprob, rank) for rank, (token, logprob) in enumerate(score.top[: self.prompt_scores], 1)}
        return {
            str(token): {"logprob": score_of(logprob), "rank": rank, "decoded_token": self.texts.of(token)}
            for token, (logprob, rank) in {score.token: (score.logprob, score.rank), **top}.items()
        }


def usage_so_far(prompt_tokens: int, generated: int) -> Json:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": generated,
        "total_tokens": prompt_tokens + generated,
    }

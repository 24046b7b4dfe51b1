"""Answers of `/v1/completions`, with the prompt before them where that was asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from brim.engine.front.answers import Completion, Update
from brim.engine.schedule.events import TokenLogprobs
from brim.serve.prepare.jobs import Prepared
from brim.serve.responses.answers import DONE, FinishedAnswer, Json, ResponseHeader, finish_reason, score_of, usage
from brim.serve.responses.details import AnswerDetails, usage_so_far
from brim.serve.responses.scores import named_by_id
from brim.serve.token_texts import TokenTexts

KIND = "text_completion"


@dataclass(frozen=True, slots=True)
class CompletionFormatter:
    head: ResponseHeader
    prepared: tuple[Prepared, ...]
    prompts: tuple[str, ...]  # texts to echo; empty where they are not
    answers: int  # to each prompt
    scored: int | None  # alternatives beside each token; None: log-probabilities were not asked for
    scored_only: bool  # nothing was to be generated
    include_usage: bool
    texts: TokenTexts
    details: AnswerDetails
    by_id: bool = False  # tokens beside log-probabilities are named by their ids
    last_line: bytes = DONE
    streamed: dict[int, int] = field(default_factory=dict)  # characters of what was scored of each answer so far
    unsent: dict[int, list[int]] = field(default_factory=dict)  # tokens of each answer of which no event has told yet
    begun: set[int] = field(default_factory=set)  # answers that had an event
    generated: Counter[int] = field(default_factory=Counter)  # tokens of each answer so far

    def whole(self, ended: Sequence[FinishedAnswer]) -> Json:
        found = self.head.of(KIND, [self._choice(one) for one in ended])
        return found | {"usage": usage(self.prepared, ended, self.scored_only)}

    def opening(self) -> list[Json]:
        if not self.prompts or self.scored is not None:
            return []  # scores of a prompt come with the first token
        numbers = range(len(self.prepared) * self.answers)
        return [self._chunk(number, self._echo(number), None, None) for number in numbers]

    def note(self, number: int, update: Update) -> None:
        pass  # what has ended says it all

    def events(self, number: int, update: Update) -> list[Json]:
        done = update.completion
        reason = None if done is None else finish_reason(done)
        of_prompt = self.details.with_prompt_scores(update)
        found = self._scored_prompt(number, update)
        if self.scored_only:
            return found if reason is None else [*found, self._chunk(number, "", None, "length", of_prompt)]
        if update.token is not None:
            self.generated[number] += 1
            self.unsent.setdefault(number, []).append(update.token)
        if not update.text and update.logprobs is None and reason is None and not of_prompt:
            return found
        more = of_prompt | ({} if done is None else self.details.of_end(done))
        if self.details.token_ids:
            more["token_ids"] = self.unsent.pop(number, [])
        return [*found, self._chunk(number, update.text, self._next_scores(number, update), reason, more)]

    def _scored_prompt(self, number: int, update: Update) -> list[Json]:
        """The prompt with its scores, before the answer's first token, or before its end where it has none."""
        ends = update.completion is not None
        if not self.prompts or self.scored is None or number in self.streamed or (update.token is None and not ends):
            return []
        self.streamed[number] = len(self._echo(number))
        scores = update.prompt_logprobs if update.completion is None else update.completion.prompt_logprobs
        return [self._chunk(number, self._echo(number), self._prompt_scores(number, scores), None)]

    def closing(self, ended: Sequence[FinishedAnswer]) -> list[Json]:
        if not self.include_usage:
            return []
        return [self.head.of(KIND, []) | {"usage": usage(self.prepared, ended, self.scored_only)}]

    def _chunk(self, number: int, text: str, scores: Json | None, reason: str | None, more: Json | None = None) -> Json:
        choice = {"index": number, "text": text, "logprobs": scores, "finish_reason": reason, **(more or {})}
        if number not in self.begun:
            self.begun.add(number)
            choice |= self.details.with_prompt_ids(self.prepared[number // self.answers].tokens)
        found = self.head.of(KIND, [choice])
        if not self.include_usage:
            return found
        prompt = sum(len(one.tokens) for one in self.prepared)
        so_far = usage_so_far(prompt, self.generated.total()) if self.details.continuous_usage else None
        return found | {"usage": so_far}

    def _echo(self, number: int) -> str:
        return self.prompts[number // self.answers] if self.prompts else ""

    def _choice(self, one: FinishedAnswer) -> Json:
        done = one.completion
        reason = finish_reason(done)
        text = self._echo(one.number) + ("" if self.scored_only else done.text or "")
        return {
            "index": one.number,
            "text": text,
            "logprobs": None if self.scored is None else self._all_scores(one.number, done),
            "finish_reason": "length" if self.scored_only else reason,
            **(
                self.details.of_answer(done)
                | ({"token_ids": []} if self.scored_only and self.details.token_ids else {})
            ),
            **self.details.of_prompt(self.prepared[one.number // self.answers].tokens, done.prompt_logprobs),
        }

    def _all_scores(self, number: int, done: Completion) -> Json:
        own = () if self.scored_only else done.logprobs
        return self._prompt_scores(number, (*done.prompt_logprobs, *own)) if self.prompts else self._scores(own, 0)

    def _prompt_scores(self, number: int, scores: Sequence[TokenLogprobs]) -> Json:
        """Of what begins with the prompt, all but its first token."""
        prompt = self.prepared[number // self.answers].tokens
        start = len(self._echo(number)) - sum(
            len(self.texts.of(token)) for token in prompt
        )  # some strip the first space
        first = TokenLogprobs(prompt[0], 0.0, ())  # nothing stands before it: it has no likelihood
        found = self._scores((first, *scores), start)
        found["token_logprobs"][0] = None
        found["top_logprobs"][0] = None
        return found

    def _next_scores(self, number: int, update: Update) -> Json | None:
        """Of a token that is streamed, behind those of the same answer that were."""
        if update.logprobs is None:
            return None
        start = self.streamed.get(number, 0)
        found = self._scores((update.logprobs,), start)
        self.streamed[number] = start + len(self.texts.of(update.logprobs.token))
        return found

    def _scores(self, scores: Sequence[TokenLogprobs], start: int) -> Json:
        tokens = [self.texts.of(score.token) for score in scores]
        name = named_by_id if self.by_id else self.texts.of
        offsets = []
        for token in tokens:
            offsets.append(max(0, start))
            start += len(token)
        tops = [  # the token itself too, as in OpenAI's API
            {
                name(token): score_of(logprob)
                for token, logprob in ((score.token, score.logprob), *score.top[: self.scored])
            }
            for score in scores
        ]
        return {
            "tokens": [name(score.token) for score in scores] if self.by_id else tokens,
            "token_logprobs": [score_of(score.logprob) for score in scores],
            "top_logprobs": tops,
            "text_offset": offsets,
        }

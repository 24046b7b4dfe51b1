"""Answers of `/v1/completions`, with the prompt before them where that was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from brim.engine.front.answers import Completion, Update
from brim.engine.schedule.events import TokenLogprobs
from brim.serve.prepare.jobs import Prepared
from brim.serve.responses.answers import DONE, FinishedAnswer, Json, ResponseHeader, finish_reason, score_of, usage
from brim.serve.token_texts import TokenTexts

KIND = "text_completion"


@dataclass(frozen=True, slots=True)
class CompletionFormatter:
    head: ResponseHeader
    prepared: tuple[Prepared, ...]
    prompts: tuple[str, ...]  # texts to echo; empty where they are not
    answers: int  # to each prompt
    scored: bool
    scored_only: bool  # nothing was to be generated
    include_usage: bool
    texts: TokenTexts
    last_line: bytes = DONE
    streamed: dict[int, int] = field(default_factory=dict)  # characters of what was scored of each answer so far

    def whole(self, ended: Sequence[FinishedAnswer]) -> Json:
        found = self.head.of(KIND, [self._choice(one) for one in ended])
        return found | {"usage": usage(self.prepared, ended, self.scored_only)}

    def opening(self) -> list[Json]:
        if not self.prompts or self.scored:
            return []  # scores of a prompt come with the first token
        numbers = range(len(self.prepared) * self.answers)
        return [self._chunk(number, self._echo(number), None, None) for number in numbers]

    def note(self, number: int, update: Update) -> None:
        pass  # what has ended says it all

    def events(self, number: int, update: Update) -> list[Json]:
        reason = None if update.completion is None else finish_reason(update.completion)
        found = self._scored_prompt(number, update)
        if self.scored_only:
            return found if reason is None else [*found, self._chunk(number, "", None, "length")]
        if not update.text and update.logprobs is None and reason is None:
            return found
        return [*found, self._chunk(number, update.text, self._next_scores(number, update), reason)]

    def _scored_prompt(self, number: int, update: Update) -> list[Json]:
        """The prompt with its scores, before the answer's first token, or before its end where it has none."""
        ends = update.completion is not None
        if not self.prompts or not self.scored or number in self.streamed or (update.token is None and not ends):
            return []
        self.streamed[number] = len(self._echo(number))
        scores = update.prompt_logprobs if update.completion is None else update.completion.prompt_logprobs
        return [self._chunk(number, self._echo(number), self._prompt_scores(number, scores), None)]

    def closing(self, ended: Sequence[FinishedAnswer]) -> list[Json]:
        if not self.include_usage:
            return []
        return [self.head.of(KIND, []) | {"usage": usage(self.prepared, ended, self.scored_only)}]

    def _chunk(self, number: int, text: str, scores: Json | None, reason: str | None) -> Json:
        choice = {"index": number, "text": text, "logprobs": scores, "finish_reason": reason}
        found = self.head.of(KIND, [choice])
        return found | {"usage": None} if self.include_usage else found

    def _echo(self, number: int) -> str:
        return self.prompts[number // self.answers] if self.prompts else ""

    def _choice(self, one: FinishedAnswer) -> Json:
        done = one.completion
        reason = finish_reason(done)
        text = self._echo(one.number) + ("" if self.scored_only else done.text or "")
        return {
            "index": one.number,
            "text": text,
            "logprobs": self._all_scores(one.number, done) if self.scored else None,
            "finish_reason": "length" if self.scored_only else reason,
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
        if found["top_logprobs"] is not None:
            found["top_logprobs"][0] = None
        return found

    def _next_scores(self, number: int, update: Update) -> Json | None:
        """Of a token that is streamed, behind those of the same answer that were."""
        if update.logprobs is None:
            return None
        start = self.streamed.get(number, 0)
        found = self._scores((update.logprobs,), start)
        self.streamed[number] = start + len(found["tokens"][0])
        return found

    def _scores(self, scores: Sequence[TokenLogprobs], start: int) -> Json:
        tokens = [self.texts.of(score.token) for score in scores]
        offsets = []
        for token in tokens:
            offsets.append(max(0, start))
            start += len(token)
        tops = [{self.texts.of(token): score_of(logprob) for token, logprob in score.top} for score in scores]
        return {
            "tokens": tokens,
            "token_logprobs": [score_of(score.logprob) for score in scores],
            "top_logprobs": tops if any(tops) else None,
            "text_offset": offsets,
        }

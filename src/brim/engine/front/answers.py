"""What a caller gets: updates while a request is answered, a completion when it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from brim.engine.front.detokenise import TextStream
from brim.engine.requests.request import FinishReason, Request
from brim.engine.schedule.events import SequenceEvent, TokenLogprobs, TopLogits
from brim.engine.schedule.prompt_scores import PromptScores
from brim.errors import first_line


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished answer."""

    request_id: str
    index: int  # which of the `n` answers
    prompt_tokens: int
    reused_tokens: int  # of the prompt, found in the pool
    tokens: tuple[int, ...]
    text: str | None  # None without a tokenizer, and where it could not be decoded
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: Sequence[TokenLogprobs] = ()  # of all tokens of the prompt but the first
    top_logits: TopLogits | None = None  # of all tokens; None: `top_k_logits` was 0, or there is no token
    preemptions: int = 0
    error: str | None = None  # why, where the reason is `error`
    passing: bool = False  # an error that the same request may not meet again
    in_request: bool = False  # an error in what was asked for, which showed on the way
    predicted_tokens: int = 0  # of the client's prediction, that were tried
    accepted_tokens: int = 0  # of them
    stop: str | int | None = None  # what ended it, where the reason is `stop`: a stop string, or a token


@dataclass(frozen=True, slots=True)
class Update:
    """What became known of a request in a step."""

    request_id: str
    index: int
    token: int | None = None
    text: str = ""
    logprobs: TokenLogprobs | None = None
    top_logits: TopLogits | None = None  # of this token
    completion: Completion | None = None
    prompt_logprobs: Sequence[TokenLogprobs] = ()  # with the first token: all of the prompt is known then


class TextError(Exception):
    """The tokenizer could not make text of a request's tokens."""


class _Choice:
    """One of the answers of a request, as it grows. Its text is a function of its tokens, and can be made again."""

    def __init__(self, request: Request, tokenizer: Any) -> None:
        self.request = request
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.prompt_scores: tuple[PromptScores, ...] = ()  # of chunks that follow each other
        self.top_logits: list[TopLogits] = []
        self.done = False
        self._tokenizer = tokenizer
        self._stream: TextStream | None = None
        self._pushed = 0  # tokens that the stream knows, for certain

    @property
    def text(self) -> str | None:
        return None if self._stream is None else self._stream.text

    def push(self, token: int | None, end: bool) -> tuple[str, str | None]:
        """The characters that can be shown now, all of them at the end; and the stop string that was found."""
        if self._tokenizer is None:
            return "", None
        try:
            stream = self._current_stream()
            self._stream = None  # until it is known to be whole again
            text = "" if token is None else stream.push(token, searched=self._is_searched(len(self.tokens)))
            if end or stream.stopped:
                text += stream.close()
        except Exception as error:
            raise TextError(f"its text cannot be decoded: {first_line(error)}") from error
        self._stream = stream
        self._pushed = len(self.tokens) + (token is not None)
        return text, stream.stop

    def _is_searched(self, number: int) -> bool:
        """Whether a stop string may end with this token."""
        return number >= self.request.params.min_tokens

    def _current_stream(self) -> TextStream:
        """The stream of the text so far; made again where an error has left it in the middle of something."""
        if self._stream is not None and self._pushed == len(self.tokens):
            return self._stream
        params = self.request.params
        before = self.request.prompt if params.continues_prompt else ()
        shown = params.shown_token_ids if params.skip_special_tokens else None
        stream = TextStream(self._tokenizer, params.stop, before, shown, include_stop=params.include_stop)
        for number, token in enumerate(self.tokens):
            stream.push(token, searched=self._is_searched(number))
        return stream


class Answer:
    """The answers of one request."""

    def __init__(self, request_id: str, requests: tuple[Request, ...], tokenizer: Any) -> None:
        self.request_id = request_id
        self._choices = [_Choice(request, tokenizer) for request in requests]

    @property
    def count(self) -> int:
        return len(self._choices)

    @property
    def complete(self) -> bool:
        return all(choice.done for choice in self._choices)

    def awaits(self, request: Request) -> bool:
        """Whether it has not ended. What was drawn since then is dropped, as is what a cancelled one of its id left."""
        choice = self._choices[request.index] if request.index < self.count else None
        return choice is not None and choice.request is request and not choice.done

    def settled(self, event: SequenceEvent) -> Update:
        """What an event means to the caller. A text that cannot be decoded, twice, ends its own answer and no other."""
        if event.error is not None:
            return self.fail(event, event.error)
        try:
            return self.take(event)
        except TextError:
            pass  # once more, from the answer's first token on
        try:
            return self.take(event)
        except TextError as error:
            return self.fail(event, str(error))

    def take(self, event: SequenceEvent) -> Update:
        """What an event means to the caller. If it raises, the event has not been taken, and may be given again."""
        choice = self._choices[event.sequence.request.index]
        # The token that ended it is not part of the text, unless it was asked for.
        ended = event.finish is FinishReason.STOP
        shown = None if ended and not choice.request.params.include_stop else event.token
        text, stop = choice.push(shown, end=event.finish is not None)
        finish = FinishReason.STOP if stop is not None else event.finish
        tokens = () if event.token is None else (event.token,)
        logprobs = () if event.logprobs is None else (event.logprobs,)
        scores = choice.prompt_scores
        if event.prompt_logprobs:
            scores = _with_chunk(scores, event.prompt_logprobs, event.prompt_start)
        completion = None if finish is None else _completion(choice, event, finish, tokens, logprobs, scores)
        if completion is not None and finish is FinishReason.STOP:
            completion = replace(completion, stop=event.token if stop is None else stop)
        update = Update(
            self.request_id,
            choice.request.index,
            event.token,
            text,
            event.logprobs,
            event.top_logits,
            completion,
            PromptScores.joined(scores) if scores and tokens and not choice.tokens else (),
        )
        choice.tokens.extend(tokens)
        choice.logprobs.extend(logprobs)
        if event.top_logits is not None:
            choice.top_logits.append(event.top_logits)
        choice.prompt_scores = scores
        choice.done = finish is not None
        return update

    def fail(self, event: SequenceEvent, problem: str) -> Update:
        """This one answer ends with an error; what was known of it before stays."""
        choice = self._choices[event.sequence.request.index]
        ended = _completion(choice, event, FinishReason.ERROR, (), (), choice.prompt_scores)
        completion = replace(ended, error=problem, passing=event.passing, in_request=event.in_request)
        choice.done = True
        return Update(self.request_id, choice.request.index, completion=completion)


def _completion(
    choice: _Choice,
    event: SequenceEvent,
    finish: FinishReason,
    tokens: tuple[int, ...],
    logprobs: tuple[TokenLogprobs, ...],
    prompt_scores: tuple[PromptScores, ...],
) -> Completion:
    """The answer so far, with what has just become known of it."""
    request = choice.request
    return Completion(
        request_id=request.id,
        index=request.index,
        prompt_tokens=len(request.prompt),
        predicted_tokens=event.sequence.predicted,
        accepted_tokens=event.sequence.predicted_accepted,
        reused_tokens=min(event.sequence.reused, len(request.prompt)),
        tokens=(*choice.tokens, *tokens),
        text=choice.text,
        finish_reason=finish,
        logprobs=(*choice.logprobs, *logprobs),
        prompt_logprobs=PromptScores.joined(prompt_scores) if prompt_scores else (),
        top_logits=_joined([*choice.top_logits, *([event.top_logits] if tokens and event.top_logits else [])]),
        preemptions=event.sequence.preemptions,
    )


def _with_chunk(known: tuple[PromptScores, ...], chunk: PromptScores, start: int) -> tuple[PromptScores, ...]:
    """One chunk more. Of what is recomputed after a preemption, the first scores stay."""
    behind = 1 + sum(len(part) for part in known)  # the first token of a prompt has none
    assert start <= behind, f"scores of a prompt from position {start} on, and {behind} is the next"
    new = chunk.behind(min(behind - start, len(chunk)))
    return (*known, new) if new else known


def _joined(parts: list[TopLogits]) -> TopLogits | None:
    """Those of all tokens, one below the other."""
    if not parts:
        return None
    return TopLogits(
        np.concatenate([part.logits for part in parts]),
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([part.log_normaliser for part in parts]),
    )

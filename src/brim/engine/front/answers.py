"""What a caller gets: updates while a request is answered, a completion when it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from brim.engine.front.detokenise import TextStream
from brim.engine.requests.request import FinishReason, Request
from brim.engine.schedule.events import Event, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished answer."""

    request_id: str
    index: int  # which of the `n` answers
    prompt_tokens: int
    reused_tokens: int  # of the prompt, found in the pool
    tokens: tuple[int, ...]
    text: str | None  # None without a tokenizer
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class Update:
    """What became known of a request in a step."""

    request_id: str
    index: int
    token: int | None = None
    text: str = ""
    logprobs: TokenLogprobs | None = None
    completion: Completion | None = None
    stopped_by_text: bool = False


class _Choice:
    """One of the answers of a request, as it grows."""

    def __init__(self, request: Request, tokenizer: Any) -> None:
        self.request = request
        self.stream = None if tokenizer is None else TextStream(tokenizer, request.params.stop)
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.prompt_logprobs: dict[int, TokenLogprobs] = {}
        self.done = False


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

    def done(self, index: int) -> bool:
        """This one has ended; what the device drew for it since then is dropped."""
        return self._choices[index].done

    def take(self, index: int, event: Event) -> Update:
        """What an event means to the caller."""
        choice = self._choices[index]
        for place, scores in enumerate(event.prompt_logprobs):
            choice.prompt_logprobs.setdefault(event.prompt_start + place, scores)
        text = ""
        finish = event.finish
        ended_by_token = finish is FinishReason.STOP
        if event.token is not None:
            choice.tokens.append(event.token)
            if event.logprobs is not None:
                choice.logprobs.append(event.logprobs)
            if choice.stream is not None and not ended_by_token:
                text = choice.stream.push(event.token)
        stopped = choice.stream is not None and choice.stream.stopped
        if stopped:
            finish = FinishReason.STOP
        if finish is not None and choice.stream is not None:
            text += choice.stream.close()
            if choice.stream.stopped:
                finish = FinishReason.STOP
        completion = None
        if finish is not None:
            choice.done = True
            completion = self._completion(index, event, finish)
        return Update(
            self.request_id,
            index,
            event.token,
            text,
            event.logprobs,
            completion,
            stopped_by_text=stopped and event.finish is None,
        )

    def _completion(self, index: int, event: Event, finish: FinishReason) -> Completion:
        choice = self._choices[index]
        return Completion(
            request_id=self.request_id,
            index=index,
            prompt_tokens=len(choice.request.prompt),
            reused_tokens=min(event.sequence.reused, len(choice.request.prompt)),
            tokens=tuple(choice.tokens),
            text=None if choice.stream is None else choice.stream.text,
            finish_reason=finish,
            logprobs=tuple(choice.logprobs),
            prompt_logprobs=tuple(scores for _, scores in sorted(choice.prompt_logprobs.items())),
            preemptions=event.sequence.preemptions,
        )

"""What all answers share: their head, their usage, how they ended."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from brim.engine.front.answers import Completion, Update
from brim.engine.requests.request import FinishReason
from brim.errors import InvalidRequest
from brim.serve.parse.custom import CustomCalls
from brim.serve.parse.pieces import Tools
from brim.serve.parse.table import AnswerReader, Formats
from brim.serve.prepare.jobs import Prepared
from brim.serve.problems import SERVER, Problem, media_unavailable, problem_of

Json = dict[str, Any]
DONE = b"data: [DONE]\n\n"
IMPOSSIBLE = -9999.0


@dataclass(frozen=True, slots=True)
class ResponseHeader:
    """What every object of one answer begins with."""

    id: str
    created: int
    model: str

    @staticmethod
    def new(prefix: str, model: str, own_id: str | None = None) -> ResponseHeader:
        """`own_id` is the client's."""
        return ResponseHeader(own_id or f"{prefix}-{secrets.token_hex(12)}", int(time.time()), model)

    def of(self, kind: str, choices: list[Json]) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}


@dataclass(frozen=True, slots=True)
class FinishedAnswer:
    """One finished answer, and its number among all of the request."""

    number: int
    completion: Completion


class ResponseFormatter(Protocol):
    """How answers of one endpoint look."""

    def note(self, number: int, update: Update) -> None:
        """An update of an answer that is given as a whole."""
        ...

    def whole(self, ended: Sequence[FinishedAnswer]) -> Json | str:
        """All of it at once, when every update was noted; where plain text was asked for, as text."""
        ...

    def opening(self) -> list[Json]:
        """Events before the first token."""
        ...

    def events(self, number: int, update: Update) -> list[Json]:
        """Events of one update."""
        ...

    def closing(self, ended: Sequence[FinishedAnswer]) -> list[Json]:
        """Events when all answers have ended."""
        ...

    @property
    def last_line(self) -> bytes:
        """What the stream ends with."""
        ...


@dataclass(frozen=True, slots=True)
class Reading:
    """How answers to one prompt are read: by which formats, for which tools."""

    formats: Formats
    tools: Tools
    tail: str = ""  # the end of the prompt
    thoughts: bool = True  # reasoning is shown
    custom: tuple[str, ...] = ()  # tools whose input is a text
    whole_of: str = ""  # the one that all of the answer is the input of

    def reader(self) -> AnswerReader:
        custom = CustomCalls(self.custom, self.whole_of) if self.custom else None
        return self.formats.reader({} if self.whole_of else self.tools, self.tail, self.thoughts, custom)

    def reasoning_tokens(self, tokens: Sequence[int]) -> int:
        return self.formats.reasoning_tokens(tokens, self.tail)


def score_of(logprob: float) -> float:
    """A log-probability as JSON has it: there is no infinity, and OpenAI's API says this for tokens that cannot be."""
    return max(logprob, IMPOSSIBLE)


def new_call_id() -> str:
    """Nine letters and digits: templates of Mistral take no others."""
    return secrets.token_hex(5)[:9]


def usage(prepared: Iterable[Prepared], ended: Sequence[FinishedAnswer], scored_only: bool = False) -> Json:
    prompt = sum(len(one.tokens) for one in prepared)
    generated = 0 if scored_only else sum(len(one.completion.tokens) for one in ended)
    firsts = (one.completion for one in ended if one.completion.index == 0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": sum(one.reused_tokens for one in firsts)},
    }


def finish_reason(completion: Completion) -> str:
    """stop, length or deadline. An answer that failed is no answer."""
    if completion.passing:
        raise media_unavailable(completion.error or "no encoder runs")
    if completion.in_request:
        raise problem_of(InvalidRequest(completion.error or "the request cannot be followed"))
    if completion.finish_reason is FinishReason.ERROR:
        raise Problem(500, completion.error or "the request failed", kind=SERVER, code="request_failed")
    return str(completion.finish_reason)

"""Answers of `/v1/responses`: items of output, and the events that they come in.

`_Output` makes items of the pieces of an answer, one after the other, and tells what happened in events;
`ResponseShape` puts the response around them.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from brim.engine.front.answers import Completion, Update
from brim.engine.requests.request import FinishReason
from brim.serve.parse.pieces import Argued, Called, Piece, Said, Thought
from brim.serve.prepare.jobs import Prepared
from brim.serve.responses.answers import (
    FinishedAnswer,
    Json,
    Reading,
    ResponseHeader,
    finish_reason,
    new_call_id,
    usage,
)
from brim.serve.responses.scores import Scores

_WHY_INCOMPLETE = {FinishReason.LENGTH: "max_output_tokens", FinishReason.DEADLINE: "deadline"}


@dataclass(frozen=True, slots=True)
class ResponseOutline:
    """A response, but for its output."""

    head: ResponseHeader
    said_back: Json  # fields of the request
    stored: bool

    def json(self, status: str, output: Sequence[Json] = (), **found: Any) -> Json:
        return {
            "id": self.head.id,
            "object": "response",
            "created_at": self.head.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.head.model,
            "output": list(output),
            "usage": None,
            "store": self.stored,
            **self.said_back,
            **found,
        }


class ResponsesApiFormatter:
    last_line = b""

    def __init__(
        self,
        outline: ResponseOutline,
        prepared: Prepared,
        reading: Reading,
        keep: Callable[[Json], None] | None,
        scores: Scores | None,
    ) -> None:
        """`keep` is given the finished response, to be stored; `scores`: log-probabilities were asked for."""
        self._outline = outline
        self._prepared = prepared
        self._reading = reading
        self._keep = keep
        self._scores = scores
        self._reader = reading.reader()
        self._output = _Output()
        self._events = 0

    def note(self, number: int, update: Update) -> None:
        self.events(number, update)

    def whole(self, ended: Sequence[FinishedAnswer]) -> Json:
        return self._finished(ended)

    def opening(self) -> list[Json]:
        response = self.current("in_progress")
        return self._numbered(
            [{"type": f"response.{name}", "response": response} for name in ("created", "in_progress")]
        )

    def events(self, number: int, update: Update) -> list[Json]:
        done = update.completion
        pieces = self._reader.feed(update.text)
        scores = [] if self._scores is None else self._scores.of_update(update)
        if done is None:
            return self._numbered(self._output.read(pieces, scores))
        finish_reason(done)
        cut = done.finish_reason is not FinishReason.STOP
        return self._numbered(self._output.read(pieces + self._reader.close(), scores, end=True, cut=cut))

    def closing(self, ended: Sequence[FinishedAnswer]) -> list[Json]:
        response = self._finished(ended)
        return self._numbered([{"type": f"response.{response['status']}", "response": response}])

    def _numbered(self, events: Iterator[Json] | list[Json]) -> list[Json]:
        found = []
        for event in events:
            found.append(event | {"sequence_number": self._events})
            self._events += 1
        return found

    def _finished(self, ended: Sequence[FinishedAnswer]) -> Json:
        done = ended[0].completion
        finish_reason(done)  # an answer that failed is no answer
        why = _WHY_INCOMPLETE.get(done.finish_reason)
        response = self.current(
            "completed" if why is None else "incomplete",
            incomplete_details=None if why is None else {"reason": why},
            usage=self._usage(ended, done),
        )
        if self._keep is not None:
            self._keep(response)
        return response

    def _usage(self, ended: Sequence[FinishedAnswer], done: Completion) -> Json:
        found = usage([self._prepared], ended)
        return {
            "input_tokens": found["prompt_tokens"],
            "input_tokens_details": found["prompt_tokens_details"],
            "output_tokens": found["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": self._reading.reasoning_tokens(done.tokens)},
            "total_tokens": found["total_tokens"],
        }

    def current(self, status: str, **found: Any) -> Json:
        """The response with its output so far."""
        return self._outline.json(status, self._output.items, **self._prepared.notes, **found)


class _Output:
    """The items of an answer as they grow. Each is opened, filled and closed before the next."""

    def __init__(self) -> None:
        self.items: list[Json] = []
        self._open: _Item | None = None
        self._scores: list[Json] = []  # of tokens whose text is not there yet

    def read(self, pieces: list[Piece], scores: list[Json], *, end: bool = False, cut: bool = False) -> Iterator[Json]:
        """The events of these pieces. `end`: they are the last; `cut`: the answer was cut off where it is.

        `scores` are those of the tokens that have come with them. A message gets the scores that have come since its
        last text; those of reasoning, of calls and of what tells them apart are nobody's.
        """
        self._scores += scores
        for piece in pieces:
            if self._open is None or not self._open.takes(piece):
                if self._open is not None:
                    self._scores = scores
                yield from self._close("completed")
                yield from self._begin(_item_for(piece))
            assert self._open is not None
            yield from self._open.more(piece, self._scores)
            self._scores = []
        if end:
            if not self.items:
                yield from self._begin(_Text("message"))
            if self._open is not None:
                self._open.scores += self._scores
            yield from self._close("incomplete" if cut else "completed")

    def _begin(self, item: _Item) -> Iterator[Json]:
        item.place = len(self.items)
        self.items.append(item.json("in_progress"))
        self._open = item
        yield {"type": "response.output_item.added", "output_index": item.place, "item": self.items[-1]}
        yield from item.opened()

    def _close(self, status: str) -> Iterator[Json]:
        item, self._open = self._open, None
        if item is None:
            return
        yield from item.closed()
        self.items[item.place] = item.json(status)
        yield {"type": "response.output_item.done", "output_index": item.place, "item": self.items[item.place]}


class _Item(ABC):
    """One item. Its text grows by pieces of one kind."""

    def __init__(self, prefix: str, delta: str) -> None:
        """`prefix` is that of its id, `delta` names the events in which its text comes."""
        self.id = f"{prefix}_{secrets.token_hex(12)}"
        self.delta = delta
        self.place = 0
        self.text = ""
        self.scores: list[Json] = []

    @abstractmethod
    def takes(self, piece: Piece) -> bool:
        """Whether the piece belongs to this item."""

    @abstractmethod
    def json(self, status: str) -> Json:
        """The item as it is now."""

    @abstractmethod
    def opened(self) -> list[Json]:
        """Events before its text."""

    @abstractmethod
    def closed(self) -> list[Json]:
        """Events behind its text."""

    def more(self, piece: Piece, scores: list[Json]) -> Iterator[Json]:
        if isinstance(piece, Called) or not piece.text:
            return
        self.text += piece.text
        self.scores = self.scores + scores
        yield self.at(scores) | {"type": f"response.{self.delta}.delta", "delta": piece.text}

    def at(self, scores: list[Json] | None = None) -> Json:
        """Where an event belongs; those of a message say the scores of its text."""
        return {"item_id": self.id, "output_index": self.place}


class _Text(_Item):
    """What was said, or thought."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        message = kind == "message"
        super().__init__(*(("msg", "output_text") if message else ("rs", "reasoning_text")))
        self._takes: type[Said | Thought] = Said if message else Thought

    def takes(self, piece: Piece) -> bool:
        return isinstance(piece, self._takes)

    def json(self, status: str) -> Json:
        parts = [] if status == "in_progress" else [self._part()]
        if self._kind == "message":
            return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": parts}
        return {"id": self.id, "type": "reasoning", "status": status, "summary": [], "content": parts}

    def opened(self) -> list[Json]:
        return [self.at() | {"type": "response.content_part.added", "part": self._part()}]

    def closed(self) -> list[Json]:
        return [
            self.at(self.scores) | {"type": f"response.{self.delta}.done", "text": self.text},
            self.at() | {"type": "response.content_part.done", "part": self._part()},
        ]

    def at(self, scores: list[Json] | None = None) -> Json:
        said: Json = {"logprobs": scores or []} if self._kind == "message" else {}
        return super().at() | {"content_index": 0} | said

    def _part(self) -> Json:
        if self._kind == "message":
            return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": self.scores}
        return {"type": "reasoning_text", "text": self.text}


class _Call(_Item):
    """A call of a tool: of a function, or of a custom one with its text."""

    def __init__(self, called: Called) -> None:
        super().__init__(*(("ctc", "custom_tool_call_input") if called.custom else ("fc", "function_call_arguments")))
        self._called = called
        self._call_id = new_call_id()
        self._kind, self._field = ("custom_tool_call", "input") if called.custom else ("function_call", "arguments")

    def takes(self, piece: Piece) -> bool:
        return isinstance(piece, Argued) and piece.number == self._called.number

    def json(self, status: str) -> Json:
        return {
            "id": self.id,
            "type": self._kind,
            "status": status,
            "call_id": self._call_id,
            "name": self._called.name,
            self._field: self.text,
        }

    def opened(self) -> list[Json]:
        return []

    def closed(self) -> list[Json]:
        named = {} if self._called.custom else {"name": self._called.name}
        return [self.at() | {"type": f"response.{self.delta}.done", **named, self._field: self.text}]


def _item_for(piece: Piece) -> _Item:
    match piece:
        case Called():
            return _Call(piece)
        case Thought():
            return _Text("reasoning")
        case _:
            return _Text("message")

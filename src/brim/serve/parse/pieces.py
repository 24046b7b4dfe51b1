"""The parts of an answer, and a parser at work on one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from brim.serve.parse.source import TextSource


@dataclass(frozen=True, slots=True)
class Said:
    """More of the content."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """More of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """A tool is called; its arguments follow."""

    number: int  # among the calls of the answer
    name: str
    custom: bool = False  # what follows is a text


@dataclass(frozen=True, slots=True)
class Argued:
    """More of the arguments of a call, which are JSON in the end, or of the text of a custom one."""

    number: int
    text: str
    custom: bool = False


Piece = Said | Thought | Called | Argued
Pieces = Generator[Piece | None, None, None]  # None: it waits for more text
Tools = Mapping[str, Mapping[str, Any]]  # the schema of each tool's parameters, by the tool's name
Parse = Callable[[TextSource, Tools], Pieces]


class Parser:
    """One parser on one answer."""

    def __init__(self, parse: Parse, tools: Tools) -> None:
        self._source = TextSource()
        self._pieces = parse(self._source, tools)

    def feed(self, text: str) -> list[Piece]:
        """What has become certain."""
        self._source.add(text)
        return self._read()

    def close(self) -> list[Piece]:
        """The rest, when no text follows."""
        self._source.closed = True
        return self._read()

    def _read(self) -> list[Piece]:
        found: list[Piece] = []
        for piece in self._pieces:
            if piece is None:
                break
            found.append(piece)
        return found


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A whole call."""

    name: str
    arguments: str
    custom: bool = False  # they are a text


@dataclass(frozen=True, slots=True)
class Answered:
    """A whole answer."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()


def whole(pieces: Iterable[Piece]) -> Answered:
    """All pieces of an answer, put together."""
    content, reasoning, called, arguments = "", "", [], []
    for piece in pieces:
        match piece:
            case Said(text):
                content += text
            case Thought(text):
                reasoning += text
            case Called():
                called.append(piece)
                arguments.append("")
            case Argued(number, text):
                arguments[number] += text
    calls = tuple(ToolCall(one.name, written, one.custom) for one, written in zip(called, arguments, strict=True))
    return Answered(content, reasoning, calls)

"""Calls of custom tools: tools whose input is a text, and not JSON.

A model calls one like a function with one parameter, `input`; what it writes there is read out of the JSON as it comes.
Where the text must follow a grammar of its own, the answer is that text and nothing else (`whole_of`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import replace

from brim.serve.parse.pieces import Argued, Called, Piece, Said

INPUT = "input"
_BEGIN = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4})')
_BEGUN = re.compile(  # an escape of which more may come, or of the second half of its character
    r"\\(?:u[0-9a-fA-F]{0,3})?|\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?"
)


class CustomCalls:
    """The last reader of an answer: calls of these tools get their texts."""

    def __init__(self, names: Collection[str], whole_of: str = "") -> None:
        """`whole_of`: all that is said is the input of this tool."""
        self._names = names
        self._whole_of = whole_of
        self._begun = False
        self._inputs: dict[int, _Input] = {}

    def read(self, pieces: list[Piece]) -> list[Piece]:
        return [made for piece in pieces for made in self._read(piece)]

    def close(self) -> list[Piece]:
        rest = [(number, one.close()) for number, one in self._inputs.items()]
        return [Argued(number, text, custom=True) for number, text in rest if text]

    def _read(self, piece: Piece) -> list[Piece]:
        match piece:
            case Said(text) if self._whole_of:
                begin = [] if self._begun else [Called(0, self._whole_of, custom=True)]
                self._begun = True
                return [*begin, Argued(0, text, custom=True)]
            case Called(number, name) if name in self._names:
                self._inputs[number] = _Input()
                return [replace(piece, custom=True)]
            case Argued(number, text) if number in self._inputs:
                found = self._inputs[number].feed(text)
                return [Argued(number, found, custom=True)] if found else []
        return [piece]


class _Input:
    """The text in `{"input": "…"}`, decoded as far as it is known. Other arguments are given as they are written."""

    def __init__(self) -> None:
        self._written = ""  # and not handed out
        self._inside: bool | None = None  # None: it has not begun; False: it has ended

    def feed(self, text: str) -> str:
        if self._inside is False:
            return ""
        self._written += text
        if self._inside is None:
            begin = _BEGIN.match(self._written)
            if begin is None:
                return ""
            self._inside, self._written = True, self._written[begin.end() :]
        return self._decoded()

    def close(self) -> str:
        """What is left when no more comes."""
        if self._inside is not None:
            return self._written  # an escape that was cut off
        try:
            found = json.loads(self._written)
        except ValueError:
            return self._written
        value = found.get(INPUT, found) if isinstance(found, dict) else found
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def _decoded(self) -> str:
        """Characters and escapes that are whole; the closing quote ends it."""
        found, place = "", 0
        while place < len(self._written):
            letter = self._written[place]
            if letter == '"':
                self._inside, self._written = False, ""
                return found
            if letter != "\\":
                found, place = found + letter, place + 1
                continue
            if _BEGUN.fullmatch(self._written, place):
                break
            escape = _ESCAPE.match(self._written, place)
            if escape is None:  # it is what it is
                found, place = found + letter, place + 1
            else:
                found, place = found + json.loads(f'"{escape[0]}"'), escape.end()
        self._written = self._written[place:]
        return found

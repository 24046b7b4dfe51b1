"""The channels of gpt-oss: reasoning in `analysis`, content in `final`, calls in `commentary` to a function.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json
    <|message|>{…}<|call|>

Two parsers, one behind the other: that of reasoning leaves calls as they are, for that of tools.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from brim.serve.parse.pieces import Argued, Called, Piece, Pieces, Said, Thought, Tools
from brim.serve.parse.source import TextSource, UnexpectedEnd, collected, passing

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
MARKS = (START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN)
_HEADS = (START, CHANNEL)
_ENDS = (END, CALL, RETURN)
_TO_FUNCTION = re.compile(r"to=functions\.([^\s<]+)")


def parse_reasoning(source: TextSource, tools: Tools) -> Pieces:
    """Reasoning and content; calls stay as they are written."""
    mark = yield from passing(source, (*_HEADS, *_ENDS), Said)
    while mark is not None:
        if mark in _ENDS:
            mark = yield from passing(source, (*_HEADS, *_ENDS), Said)
            continue
        try:
            head, _ = yield from collected(source, MESSAGE)
        except UnexpectedEnd:
            return
        head = mark + head
        if _TO_FUNCTION.search(head):
            yield Said(head + MESSAGE)
            mark = yield from passing(source, (*_ENDS, START), Said)
            yield Said(CALL)
        else:
            thinking = "analysis" in head.partition(CHANNEL)[2]
            make: Callable[[str], Piece] = Thought if thinking else Said
            mark = yield from passing(source, (*_ENDS, START), make)


def parse_calls(source: TextSource, tools: Tools) -> Pieces:
    """Calls; all else is content."""
    number = 0
    while (mark := (yield from passing(source, _HEADS, Said))) is not None:
        source.keep()
        try:
            head, _ = yield from collected(source, MESSAGE)
        except UnexpectedEnd:
            yield Said(mark + source.kept)
            return
        function = _TO_FUNCTION.search(mark + head)
        if function is None:
            yield Said(mark + head + MESSAGE)
            continue
        yield Called(number, function[1])
        yield from passing(source, _ENDS, partial(Argued, number))
        number += 1

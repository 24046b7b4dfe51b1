"""`{"name": …, "parameters": …}`, alone or behind `<|python_tag|>`, several with `;` between them: Llama 3."""

from __future__ import annotations

from brim.serve.parse.calls import json_call
from brim.serve.parse.pieces import Pieces, Said, Tools
from brim.serve.parse.source import TextSource, begins_with, next_character, passing

TAG = "<|python_tag|>"
_BETWEEN = (";", ",")


def parse(source: TextSource, tools: Tools) -> Pieces:
    number = 0
    while True:
        tagged = yield from begins_with(source, TAG)
        first = yield from next_character(source)
        if first != "{" or not (yield from json_call(source, number, TAG if tagged else "", bare=not tagged)):
            break
        number += 1
        while (yield from next_character(source)) in _BETWEEN:
            source.take(1)
    yield from passing(source, (), Said, trim=False)

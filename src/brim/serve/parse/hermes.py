"""`<tool_call>{"name": …, "arguments": …}</tool_call>`, as Hermes, Qwen 2.5 and Qwen 3 write it."""

from __future__ import annotations

from brim.serve.parse.calls import json_call
from brim.serve.parse.pieces import Pieces, Said, Tools
from brim.serve.parse.source import TextSource, next_character, passing, skipped

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def parse(source: TextSource, tools: Tools) -> Pieces:
    number = 0
    while (yield from passing(source, (OPEN,), Said)) is not None:
        called = yield from json_call(source, number, OPEN)
        number += called
        if called:
            yield from skipped(source, CLOSE)
            yield from next_character(source)

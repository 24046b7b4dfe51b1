"""Calls as elements, as Qwen 3 Coder writes them:

    <tool_call><function=NAME><parameter=KEY>VALUE</parameter>…</function></tool_call>

A value is text; the tool's schema says where it is JSON.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from typing import Any

from brim.serve.parse.hermes import CLOSE, OPEN
from brim.serve.parse.pieces import Argued, Called, Piece, Pieces, Said, Tools
from brim.serve.parse.source import (
    Malformed,
    TextSource,
    UnexpectedEnd,
    begins_with,
    collected,
    next_character,
    passing,
    skipped,
)

FUNCTION, PARAMETER = "<function=", "<parameter="
FUNCTION_END, PARAMETER_END = "</function>", "</parameter>"


def parse(source: TextSource, tools: Tools) -> Pieces:
    number = 0
    while (mark := (yield from passing(source, (OPEN, FUNCTION), Said))) is not None:
        source.keep()
        called = False
        try:
            if mark == OPEN and not (yield from begins_with(source, FUNCTION)):
                raise Malformed
            for piece in _function(source, number, tools):
                called = called or isinstance(piece, Called)
                yield piece
        except (Malformed, UnexpectedEnd):
            if not called:
                yield Said(mark + source.kept)
        if called:
            number += 1
            if mark == OPEN:
                yield from skipped(source, CLOSE)
            yield from next_character(source)


def _function(source: TextSource, number: int, tools: Tools) -> Generator[Piece | None, None, None]:
    name, _ = yield from collected(source, ">")
    yield Called(number, name.strip())
    schema = tools.get(name.strip(), {}).get("properties", {})
    before = "{"
    try:
        while (yield from collected(source, PARAMETER, FUNCTION_END))[1] == PARAMETER:
            key, _ = yield from collected(source, ">")
            value, _ = yield from collected(source, PARAMETER_END)
            yield Argued(number, f"{before}{json.dumps(key)}: {_value(value, schema.get(key))}")
            before = ", "
    finally:
        source.keep()
    yield Argued(number, "{}" if before == "{" else "}")


def _value(written: str, schema: Any) -> str:
    """The value as JSON. One line break on either side belongs to the element."""
    text = written.removeprefix("\n").removesuffix("\n")
    if isinstance(schema, Mapping) and schema.get("type") == "string":
        return json.dumps(text, ensure_ascii=False)
    try:
        json.loads(text)
    except ValueError:
        return json.dumps(text, ensure_ascii=False)
    return text

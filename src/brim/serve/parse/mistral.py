"""`[TOOL_CALLS]` and a list of calls as JSON, or a name, `[ARGS]` and the arguments, as later models of Mistral do."""

from __future__ import annotations

from brim.serve.parse.calls import Reading, arguments, json_call
from brim.serve.parse.pieces import Called, Pieces, Said, Tools
from brim.serve.parse.source import Malformed, TextSource, UnexpectedEnd, collected, next_character, passing

OPEN, ARGUMENTS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


def parse(source: TextSource, tools: Tools) -> Pieces:
    number = 0
    while (yield from passing(source, (OPEN,), Said)) is not None:
        if (yield from next_character(source)) != "[":
            number += yield from _named(source, number)
            continue
        source.take(1)
        while (yield from next_character(source)) == "{":
            number += yield from json_call(source, number, OPEN + "[")
            while (yield from next_character(source)) in (",", "]"):
                source.take(1)


def _named(source: TextSource, number: int) -> Reading:
    """A name, and its arguments."""
    source.keep()
    try:
        name, mark = yield from collected(source, ARGUMENTS, CALL_ID, "{")
        if not name.strip():
            raise Malformed
        yield Called(number, name.strip())
    except (UnexpectedEnd, Malformed):
        yield Said(OPEN + source.kept)
        return False
    try:
        if mark == CALL_ID:
            yield from collected(source, ARGUMENTS)
        elif mark == "{":
            source.text = mark + source.text
        yield from arguments(source, number)
    except (UnexpectedEnd, Malformed):
        pass  # what there is of them has been shown
    return True

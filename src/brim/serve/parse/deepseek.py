"""Calls of DeepSeek: a name and its arguments between special tokens (V3.1), or in a block of code (V3 and R1).

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}<｜tool▁call▁end｜><｜tool▁calls▁end｜>
<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME⏎```json⏎{…}⏎```<｜tool▁call▁end｜>…
"""

from __future__ import annotations

from brim.serve.parse.calls import Reading, arguments
from brim.serve.parse.pieces import Called, Pieces, Said, Tools
from brim.serve.parse.source import Malformed, TextSource, UnexpectedEnd, collected, next_character, passing, skipped

CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEPARATOR, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
IN_CODE = "function"  # stands where the name does, if that follows in a block of code
CODE, CODE_END = "```json", "```"


def parse(source: TextSource, tools: Tools) -> Pieces:
    number = 0
    while (yield from passing(source, (CALLS,), Said)) is not None:
        while (yield from skipped(source, CALL, CALLS_END)) == CALL:
            number += yield from _call(source, number)
        yield from next_character(source)


def _call(source: TextSource, number: int) -> Reading:
    source.keep()
    try:
        name, _ = yield from collected(source, SEPARATOR)
        if name.strip() == IN_CODE:
            name, _ = yield from collected(source, CODE)
    except UnexpectedEnd:
        yield Said(CALL + source.kept)
        return False
    yield Called(number, name.strip())
    try:
        yield from arguments(source, number)
    except (UnexpectedEnd, Malformed):
        return True  # what there is of them has been shown
    yield from skipped(source, CALL_END)
    return True

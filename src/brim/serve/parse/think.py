"""Reasoning between two marks, at the beginning of an answer: `<think>…</think>`, `[THINK]…[/THINK]`."""

from __future__ import annotations

from brim.serve.parse.pieces import Parse, Pieces, Said, Thought, Tools
from brim.serve.parse.source import TextSource, begins_with, next_character, passing


def thinking(start: str, end: str, begun: bool) -> Parse:
    """A parser for these marks. `begun`: the prompt ends with the first one."""

    def parse(source: TextSource, tools: Tools) -> Pieces:
        opened = yield from begins_with(source, start)
        if opened or begun:
            yield from next_character(source)
            yield from passing(source, (end,), Thought)
            yield from next_character(source)
        yield from passing(source, (), Said, trim=False)

    return parse

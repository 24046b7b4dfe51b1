"""Text that grows, and what parsers look for in it: marks, characters, JSON values.

Readers are generators: they yield None while they need more text, and what they have found as soon as it is certain.
At the end of the text those that must find something raise `Ended`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

Made = TypeVar("Made")
Found = TypeVar("Found")
Waiting = Generator[None, None, Found]  # reads on, and returns what it has found
_SPACE = " \t\r\n"


class UnexpectedEnd(Exception):
    """The text is over, and something was missing."""


class Malformed(Exception):
    """This is not what the format writes."""


class TextSource:
    """The text that nobody has taken yet. `kept` is what was taken since `keep` was called."""

    def __init__(self) -> None:
        self.text = ""
        self.closed = False
        self.kept = ""

    def add(self, text: str) -> None:
        self.text += text

    def keep(self) -> None:
        """Begin to keep what is taken, to give it back if it turns out to mean nothing."""
        self.kept = ""

    def take(self, count: int) -> str:
        taken, self.text = self.text[:count], self.text[count:]
        self.kept += taken
        return taken


def passing(
    source: TextSource, marks: tuple[str, ...], make: Callable[[str], Made], *, trim: bool = True
) -> Generator[Made | None, None, str | None]:
    """The text before the first of the marks, as it comes; returns the mark, None at the end of the text.

    `trim`: space before a mark is left out.
    """
    spaces = ""  # held back until something other than a mark follows
    while True:
        text, mark = _before(source, marks)
        solid = spaces + text
        if trim and (mark is not None or not source.closed):
            shown = solid.rstrip(_SPACE)
            spaces = "" if mark is not None else solid[len(shown) :]
            solid = shown
        else:
            spaces = ""
        if solid:
            yield make(solid)
        if mark is not None:
            return mark
        if source.closed and not source.text:
            return None
        yield None


def collected(source: TextSource, *marks: str) -> Waiting[tuple[str, str]]:
    """The text before the first of the marks, whole, and the mark."""
    found = ""
    while True:
        text, mark = _before(source, marks)
        found += text
        if mark is not None:
            return found, mark
        if source.closed and not source.text:
            raise UnexpectedEnd
        yield None


def skipped(source: TextSource, *marks: str) -> Waiting[str | None]:
    """Leave out everything up to one of the marks; None at the end of the text."""
    try:
        _, mark = yield from collected(source, *marks)
    except UnexpectedEnd:
        return None
    return mark


def _before(source: TextSource, marks: tuple[str, ...]) -> tuple[str, str | None]:
    """The text that is certainly before all marks, and the first mark if that is complete."""
    places = [(place, mark) for mark in marks if (place := source.text.find(mark)) >= 0]
    if places:
        place, mark = min(places)
        text = source.take(place)
        source.take(len(mark))
        return text, mark
    held = 0 if source.closed else max((_overlap(source.text, mark) for mark in marks), default=0)
    return source.take(len(source.text) - held), None


def _overlap(text: str, mark: str) -> int:
    """How many characters at the end of the text the mark may begin with."""
    return next((size for size in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:size])), 0)


def next_character(source: TextSource) -> Waiting[str]:
    """The next character that is no space; it is not taken, the space before it is. Empty at the end of the text."""
    while True:
        solid = source.text.lstrip(_SPACE)
        source.take(len(source.text) - len(solid))
        if solid or source.closed:
            return solid[:1]
        yield None


def begins_with(source: TextSource, mark: str) -> Waiting[bool]:
    """Whether the text begins with the mark, which is taken then. Space before it does not count."""
    while not source.closed and mark.startswith(source.text.lstrip(_SPACE)[: len(mark)]):
        if len(source.text.lstrip(_SPACE)) >= len(mark):
            break
        yield None
    solid = source.text.lstrip(_SPACE)
    if not solid.startswith(mark):
        return False
    source.take(len(source.text) - len(solid) + len(mark))
    return True


def json_string(source: TextSource) -> Waiting[str]:
    """A JSON string, as it is written, quotes included."""
    if (yield from next_character(source)) != '"':
        raise Malformed
    found = ""
    for piece in json_value(source, str):
        if piece is None:
            yield None
        else:
            found += piece
    return found


def json_value(source: TextSource, make: Callable[[str], Made]) -> Generator[Made | None, None, None]:
    """A JSON value as it is written, as it comes. Ends with it; a number or word ends before what follows."""
    first = yield from next_character(source)
    if not first:
        raise UnexpectedEnd
    if first in ",:]}":
        raise Malformed
    depth, inside, escaped = 0, False, False
    while True:
        for place, character in enumerate(source.text):
            if inside:
                inside = escaped or character != '"'
                escaped = character == "\\" and not escaped
            elif character == '"':
                inside = True
            elif character in "[{":
                depth += 1
            elif character in ",]} \t\r\n" and depth == 0:
                yield from _taken(source, place, make)
                return
            elif character in "]}":
                depth -= 1
            if depth == 0 and not inside and character in '"]}':
                yield from _taken(source, place + 1, make)
                return
        yield from _taken(source, len(source.text), make)
        if source.closed:
            raise UnexpectedEnd
        yield None


def _taken(source: TextSource, count: int, make: Callable[[str], Made]) -> Generator[Made, None, None]:
    if count:
        yield make(source.take(count))

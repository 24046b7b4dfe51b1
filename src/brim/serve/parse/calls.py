"""A call as most models write it: a JSON object with the tool's name and its arguments, read while it is written."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

from brim.serve.parse.pieces import Argued, Called, Piece, Said
from brim.serve.parse.source import Malformed, TextSource, UnexpectedEnd, json_string, json_value, next_character

_ARGUMENTS = ("arguments", "parameters")

Reading = Generator[Piece | None, None, bool]  # returns whether a call was made


def json_call(source: TextSource, number: int, opened: str = "", *, bare: bool = False) -> Reading:
    """A call as an object. What turns out to be none is content, with the mark that opened it.

    `bare`: nothing but its form says that it is a call, so it must have a name and arguments.
    """
    source.keep()
    called = False
    try:
        for piece in _object(source, number, bare):
            called = called or isinstance(piece, Called)
            yield piece
    except (Malformed, UnexpectedEnd):
        if not called:
            yield Said(opened + source.kept)
    return called


def _object(source: TextSource, number: int, bare: bool) -> Generator[Piece | None, None, None]:
    if (yield from next_character(source)) != "{":
        raise Malformed
    source.take(1)
    name, early, argued = "", "", False  # `early`: arguments that came before the name
    while (yield from _goes_on(source)):
        key = _decoded((yield from json_string(source)))
        if (yield from next_character(source)) != ":":
            raise Malformed
        source.take(1)
        if key == "name":
            name = _name((yield from _collected(source)))
            if early or not bare:
                yield Called(number, name)
        elif key in _ARGUMENTS and not name:
            early = _as_object((yield from _collected(source)))
        elif key in _ARGUMENTS:
            if bare:
                yield Called(number, name)
            argued = True
            yield from arguments(source, number)
        else:
            yield from _collected(source)
    if not name or (bare and not argued and not early):
        raise Malformed
    if not argued:
        yield Argued(number, early or "{}")


def arguments(source: TextSource, number: int) -> Generator[Piece | None, None, None]:
    """Arguments as they come; those written as JSON inside of a text are whole before they are shown."""
    first = yield from next_character(source)
    if first == "{":
        yield from json_value(source, lambda text: Argued(number, text))
    else:
        yield Argued(number, _as_object((yield from _collected(source))))


def _goes_on(source: TextSource) -> Generator[None, None, bool]:
    """Whether another key follows in an object; its end is taken."""
    while (found := (yield from next_character(source))) == ",":
        source.take(1)
    if found == "}":
        source.take(1)
        return False
    return True


def _collected(source: TextSource) -> Generator[None, None, str]:
    found = ""
    for piece in json_value(source, str):
        if piece is None:
            yield None
        else:
            found += piece
    return found


def _decoded(written: str) -> Any:
    try:
        return json.loads(written, strict=False)
    except ValueError:
        raise Malformed from None


def _name(written: str) -> str:
    name = _decoded(written)
    if not isinstance(name, str) or not name:
        raise Malformed
    return name


def _as_object(written: str) -> str:
    """Arguments as an object's text: some write it inside of a text, or null for none."""
    found = _decoded(written)
    if isinstance(found, str):
        return found or "{}"
    return "{}" if found is None else written

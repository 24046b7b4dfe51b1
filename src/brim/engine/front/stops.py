"""Stop strings in a text that grows: in go pieces of it, out comes where the first stop string is complete.

What a piece costs depends on its own length and on the number of stop strings, not on the text before it: each stop
string is an automaton (Knuth, Morris and Pratt) that remembers how much of it the text ends with. Its table is made
only as far as a text ever comes, so that a stop string that never begins costs nothing.

Does not know what tokens are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopFound:
    """A stop string that is complete."""

    end: int  # characters of the piece that was read, up to its last one
    text: str  # the stop string; it may have begun in pieces before

    @property
    def length(self) -> int:
        return len(self.text)


class StopMatcher:
    """All stop strings of one answer."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [_StopString(stop) for stop in stops]
        self._beginnings = frozenset(stop[0] for stop in stops)
        self.held = 0  # characters at the end of the text that a stop string may begin with

    def read(self, piece: str) -> StopFound | None:
        """The stop string that ends first in this piece, the longest where several do; none may be read after it."""
        if not self.held and self._beginnings.isdisjoint(piece):
            return None
        found: StopFound | None = None
        for stop in self._stops:
            end = stop.read(piece if found is None else piece[: found.end])
            if end and (found is None or (end, -len(stop.text)) < (found.end, -found.length)):
                found = StopFound(end, stop.text)
        self.held = max(stop.matched for stop in self._stops)
        return found


class _StopString:
    """How much of one stop string the text ends with."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        # [i]: how much of the string its first i + 1 characters end with, themselves aside; as far as `matched` came
        self._borders: list[int] = []

    def read(self, piece: str) -> int:
        """The number of characters up to the end of the stop string; 0 if it is not complete in this piece."""
        text, borders, matched = self.text, self._borders, self.matched
        for place, character in enumerate(piece):
            while matched and text[matched] != character:
                matched = borders[matched - 1]
            if text[matched] == character:
                matched += 1
                if matched == len(text):
                    return place + 1
                if matched > len(borders):
                    borders.append(self._next_border())
        self.matched = matched
        return 0

    def _next_border(self) -> int:
        """The first entry that `_borders` does not have yet, from those that it has."""
        text, borders = self.text, self._borders
        if not borders:
            return 0
        character, border = text[len(borders)], borders[-1]
        while border and text[border] != character:
            border = borders[border - 1]
        return border + (text[border] == character)

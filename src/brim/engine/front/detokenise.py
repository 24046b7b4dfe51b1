"""Text as it grows: tokens in, whole characters out, and stop strings found across token borders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # what a tokenizer shows for the first bytes of a character


class TextStream:
    """The text of one answer."""

    def __init__(self, tokenizer: Any, stops: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stops = tuple(stops)
        self._tokens: list[int] = []
        self._settled = 0  # tokens before this have become text for good
        self._shown = 0  # tokens before this are in `text`
        self._given = 0  # characters handed out
        self.text = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """The characters that can be shown now that this token is known."""
        self._tokens.append(token)
        before = self._decode(self._tokens[self._settled : self._shown])
        now = self._decode(self._tokens[self._settled :])
        if len(now) > len(before) and not now.endswith(_UNFINISHED):
            self.text += now[len(before) :]
            self._settled, self._shown = self._shown, len(self._tokens)
        self._cut_at_stop()
        return self._hand_out(len(self.text) if self.stopped else self._safe_length())

    def close(self) -> str:
        """What is still held back when the answer ends."""
        if not self.stopped:
            before = self._decode(self._tokens[self._settled : self._shown])
            self.text += self._decode(self._tokens[self._settled :])[len(before) :]
            self._shown = self._settled = len(self._tokens)
            self._cut_at_stop()
        return self._hand_out(len(self.text))

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))

    def _hand_out(self, until: int) -> str:
        piece = self.text[self._given : until]
        self._given = max(self._given, until)
        return piece

    def _cut_at_stop(self) -> None:
        places = ((self.text.find(stop, self._search_from(stop)), len(stop)) for stop in self._stops)
        # The one that ends first counts, so that it does not matter how the text is cut into tokens.
        found = min(((place + length, place) for place, length in places if place >= 0), default=None)
        if found is not None:
            self.text = self.text[: found[1]]
            self.stopped = True

    def _search_from(self, stop: str) -> int:
        return max(0, self._given - len(stop))

    def _safe_length(self) -> int:
        """All but an ending that could be the beginning of a stop string."""
        held = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(self.text)), held, -1):
                if self.text.endswith(stop[:length]):
                    held = length
                    break
        return len(self.text) - held

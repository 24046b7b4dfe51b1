"""Text as it grows: tokens in, whole characters out, and stop strings found across token borders.

A token costs the same however long the text is. `push` and `close` raise what the tokenizer raises, and nothing else:
a `push` that raised has not taken its token, and what was handed out before stays the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from typing import Any

from brim.engine.front.decoding import text_decoder
from brim.engine.front.stops import StopMatcher


class TextStream:
    """The text of one answer."""

    def __init__(
        self,
        tokenizer: Any,
        stops: Sequence[str],
        before: Sequence[int] = (),
        shown: Sequence[int] | None = (),
        *,
        include_stop: bool = False,
    ) -> None:
        """`before` are the tokens that it goes on from; `shown` are special tokens that are part of it, None: all.

        `include_stop`: a stop string that was found is part of it too.
        """
        self._decoder = text_decoder(tokenizer, before, shown)
        self._include_stop = include_stop
        self._stops = StopMatcher(stops) if stops else None
        self._given = StringIO()  # handed out
        self._held = ""  # complete, and perhaps the beginning of a stop string
        self.stop: str | None = None  # the stop string that was found

    @property
    def stopped(self) -> bool:
        return self.stop is not None

    @property
    def text(self) -> str:
        """All of it, also what is held back."""
        return self._given.getvalue() + self._held

    def push(self, token: int, *, searched: bool = True) -> str:
        """The characters that can be shown now that this token is known.

        `searched`: a stop string may end here. Those that would begin in text that was not searched are none.
        """
        piece = self._decoder.push(token)
        if searched:
            return self._take(piece)
        self._given.write(piece)
        return piece

    def close(self) -> str:
        """What is still held back when the answer ends."""
        piece = "" if self.stopped else self._take(self._decoder.close())
        rest, self._held = self._held, ""
        self._given.write(rest)
        return piece + rest

    def _take(self, piece: str) -> str:
        """Text that is new; what of it and of the text held back can be handed out."""
        if self._stops is not None and piece:
            found = self._stops.read(piece)
            whole = self._held + piece
            if found is not None:
                self.stop = found.text
                end = found.end if self._include_stop else found.end - found.length
                piece, self._held = whole[: len(self._held) + end], ""
            else:
                sure = len(whole) - self._stops.held
                piece, self._held = whole[:sure], whole[sure:]
        self._given.write(piece)
        return piece

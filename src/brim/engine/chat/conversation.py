"""A conversation: its system prompt and summary, and its exchanges. A record: every change makes another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from brim.engine.chat.media_files import given
from brim.engine.chat.turns import Exchange, Turn, exchanges_of, turns_of
from brim.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Conversation:
    """What is kept of a chat. `summary` stands for exchanges that were dropped, where somebody wrote one."""

    system: str | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    summary: str | None = None

    @property
    def turns(self) -> tuple[Turn, ...]:
        return turns_of(self.exchanges)

    def with_turn(self, turn: Turn) -> Conversation:
        """One turn more. A tool's result belongs to the exchange in which the tool was called."""
        if turn.role != "user" and not self.exchanges:
            raise InvalidRequest(f"role is {turn.role!r}; a conversation begins with a turn of the user")
        return replace(self, exchanges=exchanges_of((*self.turns, turn)))

    def with_exchanges(self, numbers: Sequence[int]) -> Conversation:
        """Only some of the exchanges."""
        return replace(self, exchanges=tuple(self.exchanges[number] for number in numbers))

    def until(self, turn: int) -> Conversation:
        """The turns before this one."""
        return replace(self, exchanges=exchanges_of(self.turns[:turn]))

    def pin(self, turn: int, pinned: bool) -> Conversation:
        """Pin the exchange that a turn is in."""
        last = 0
        for number, exchange in enumerate(self.exchanges):
            last += len(exchange.turns)
            if turn < last:
                before, after = self.exchanges[:number], self.exchanges[number + 1 :]
                return replace(self, exchanges=(*before, exchange.pin(pinned), *after))
        raise InvalidRequest(f"turn {turn}: the conversation has {last} turns, from 0 to {last - 1}")

    @property
    def messages(self) -> list[dict[str, Any]]:
        """As a chat template takes them: the instruction with the summary behind it, then the turns."""
        opening = "\n\n".join(text for text in (self.system, self.summary) if text)
        first = [{"role": "system", "content": opening}] if opening else []
        return [*first, *(turn.message for turn in self.turns)]

    @property
    def images(self) -> tuple[Any, ...]:
        """Of all turns, as an engine takes them."""
        return tuple(given(image) for turn in self.turns for image in turn.images)

    @property
    def audios(self) -> tuple[Any, ...]:
        return tuple(given(audio) for turn in self.turns for audio in turn.audios)

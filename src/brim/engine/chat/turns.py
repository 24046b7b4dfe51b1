"""What was said in a conversation, as records: turns, and the exchanges that they form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

ROLES = ("user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Turn:
    """One message. Images (files, bytes or PIL images) and audio (files, bytes or samples with their rate) stand before
    its text, in this order.
    """

    role: str
    content: str
    images: tuple[Any, ...] = ()
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    pinned: bool = False
    audios: tuple[Any, ...] = ()

    @property
    def message(self) -> dict[str, Any]:
        """As a chat template takes it."""
        content: Any = self.content
        media = [{"type": "image"} for _ in self.images] + [{"type": "audio"} for _ in self.audios]
        if media:
            content = [*media, {"type": "text", "text": self.content}]
        found = {"role": self.role, "content": content}
        return found | {"tool_calls": list(self.tool_calls)} if self.tool_calls else found


@dataclass(frozen=True, slots=True)
class Exchange:
    """A turn of the user and all that followed it: tool calls, their results, the answer."""

    turns: tuple[Turn, ...]

    @property
    def pinned(self) -> bool:
        return any(turn.pinned for turn in self.turns)

    @property
    def answered(self) -> bool:
        return self.turns[-1].role == "assistant"

    def pin(self, pinned: bool) -> Exchange:
        return Exchange(tuple(replace(turn, pinned=pinned) for turn in self.turns))


def exchanges_of(turns: Iterable[Turn]) -> tuple[Exchange, ...]:
    """Turns by exchange; each begins with a turn of the user (the first with whatever comes first)."""
    found: list[list[Turn]] = []
    for turn in turns:
        if turn.role == "user" or not found:
            found.append([])
        found[-1].append(turn)
    return tuple(Exchange(tuple(some)) for some in found)


def turns_of(exchanges: Sequence[Exchange]) -> tuple[Turn, ...]:
    return tuple(chain.from_iterable(exchange.turns for exchange in exchanges))

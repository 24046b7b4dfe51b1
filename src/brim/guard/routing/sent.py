"""What a router has sent since a replica last reported: requests that its statistics do not count yet.

In: requests as they are sent, and reports as they come. Out: blocks and answers by replica that are to be added to a
report. Where the prompts of conversations went is remembered too, so that their next turn follows before any report.
Both are bounded. Knows one router's requests only; other routers' are in the next report.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

_REMEMBERED = 1 << 16  # prompts
_LOOKED_BACK = 512  # blocks of a prompt, from its last on


@dataclass(frozen=True, slots=True)
class Sent:
    """A request on its way."""

    key: str
    at: float
    blocks: int
    answers: int


class SentSince:
    """Requests that went to one replica, until a report counts them or they have ended."""

    def __init__(self) -> None:
        self._sent: OrderedDict[str, Sent] = OrderedDict()  # in the order of time
        self.blocks = 0
        self.answers = 0

    def add(self, one: Sent) -> None:
        self.ended(one.key)
        self._sent[one.key] = one
        self.blocks += one.blocks
        self.answers += one.answers

    def ended(self, key: str) -> None:
        """It holds nothing any more."""
        one = self._sent.pop(key, None)
        if one is not None:
            self.blocks -= one.blocks
            self.answers -= one.answers

    def counted_until(self, moment: float) -> None:
        """A report counts what was sent up to then."""
        while self._sent and (first := next(iter(self._sent.values()))).at <= moment:
            self.ended(first.key)


class Conversations:
    """Where prompts went, by their last full block: the next turn of a conversation begins with it."""

    def __init__(self, most: int = _REMEMBERED) -> None:
        self._most = most
        self._went: OrderedDict[int, str] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._went)

    def went(self, digests: Sequence[int], replica: str) -> None:
        if not digests:
            return
        self._went[digests[-1]] = replica
        self._went.move_to_end(digests[-1])
        if len(self._went) > self._most:
            self._went.popitem(last=False)

    def find(self, digests: Sequence[int]) -> tuple[str, int] | None:
        """The replica that an earlier turn went to, and how many blocks that turn's prompt had."""
        went = self._went
        for depth in range(len(digests), max(0, len(digests) - _LOOKED_BACK), -1):
            replica = went.get(digests[depth - 1])
            if replica is not None:
                return replica, depth
        return None

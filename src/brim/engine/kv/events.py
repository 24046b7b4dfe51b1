"""What happens to the content of blocks: stored, removed, cleared; kept until somebody reads it.

In: a pool's changes, in the engine's thread, and what the stored blocks hold. Out: events in order. They are bounded:
where nobody reads them for long, they are dropped, and the next one says that everything may have changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

_KEPT = 1 << 15  # events


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Full blocks of one text that can be found from now on, one after the other."""

    digests: tuple[bytes, ...]
    parent: bytes | None  # the digest before the first; None: they begin the text
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    digests: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class BlocksCleared:
    """Nothing of what was stored before can be counted on."""


BlockEvent = BlocksStored | BlocksRemoved | BlocksCleared


class BlockEvents:
    """The events of one pool."""

    def __init__(self, block_size: int, kept: int = _KEPT) -> None:
        self._size = block_size
        self._kept = kept
        self._events: deque[BlockEvent] = deque()
        self._published: list[bytes] = []  # by the pool, and not described yet

    def published(self, digest: bytes) -> None:
        self._published.append(digest)

    def described(self, digests: Sequence[bytes], tokens: Sequence[int]) -> None:
        """What was published just now are some of the blocks of this text: `digests` from its first block on."""
        new, self._published = self._published, []
        wanted, first = set(new), len(digests)
        while first and digests[first - 1] in wanted:
            first -= 1
        if first < len(digests):
            parent = digests[first - 1] if first else None
            held = tuple(tokens[first * self._size : len(digests) * self._size])
            self._add(BlocksStored(tuple(digests[first:]), parent, held))

    def removed(self, digest: bytes) -> None:
        self._add(BlocksRemoved((digest,)))

    def cleared(self) -> None:
        self._events.clear()
        self._published.clear()
        self._events.append(BlocksCleared())

    def taken(self) -> list[BlockEvent]:
        """All events since the last time, removals in a row as one."""
        found: list[BlockEvent] = []
        while self._events:
            event = self._events.popleft()
            if isinstance(event, BlocksRemoved) and found and isinstance(last := found[-1], BlocksRemoved):
                found[-1] = BlocksRemoved(last.digests + event.digests)
            else:
                found.append(event)
        return found

    def _add(self, event: BlockEvent) -> None:
        if len(self._events) >= self._kept:
            self.cleared()
        self._events.append(event)

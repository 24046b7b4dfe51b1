"""What happened between two moments of a server, in words.

Counts that grow steadily under load (evicted blocks, refusals, preemptions) are told at most once in a while, with all
that has come together since; what is rare and grave is told at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from brim.serve.watch.record import Counts, EventKind

QUIET_SECONDS = 10.0  # between two events of a kind that comes often


@dataclass(frozen=True, slots=True)
class Change:
    kind: EventKind
    count: int
    text: str


@dataclass(frozen=True, slots=True)
class _CountedEvent:
    """A count whose growth is an event."""

    kind: EventKind
    field: str
    one: str
    many: str
    often: bool = False

    def change(self, count: int) -> Change:
        return Change(self.kind, count, self.one if count == 1 else self.many.format(count=f"{count:,}"))


_COUNTED = (
    _CountedEvent(
        EventKind.RESCUE,
        "rescues",
        "a step ran out of memory and was run again in parts",
        "{count} steps ran out of memory and were run again in parts",
    ),
    _CountedEvent(EventKind.RESCUE, "rebuilds", "the KV pool was rebuilt", "the KV pool was rebuilt {count} times"),
    _CountedEvent(EventKind.FAILED, "failed", "a request failed", "{count} requests failed"),
    _CountedEvent(
        EventKind.REFUSED,
        "refused",
        "a request was refused: the queue is full",
        "{count} requests were refused: the queue is full",
        often=True,
    ),
    _CountedEvent(
        EventKind.PREEMPTED, "preemptions", "a request was preempted", "{count} requests were preempted", often=True
    ),
    _CountedEvent(
        EventKind.EVICTED,
        "evicted_blocks",
        "a block of cached prefixes was evicted",
        "{count} blocks of cached prefixes were evicted",
        often=True,
    ),
    _CountedEvent(
        EventKind.ROLLED,
        "rolled_tokens",
        "conversations rolled: a token was dropped",
        "conversations rolled: {count} tokens were dropped",
        often=True,
    ),
)


class ChangeDetector:
    """Compares each moment with those before it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = Counts()
        self._told: dict[str, float] = {}  # when growth of this field was last an event
        self._untold: dict[str, int] = {}  # growth since

    def between(self, now: Counts) -> Iterator[Change]:
        before, self._last = self._last, now
        if now.status != before.status:
            yield Change(EventKind.STATE, 1, f"{now.status}: {now.status_reason}" if now.status_reason else now.status)
        for counted in _COUNTED:
            grown = max(0, getattr(now, counted.field) - getattr(before, counted.field))
            count = self._due(counted, grown)
            if count:
                yield counted.change(count)

    def _due(self, counted: _CountedEvent, grown: int) -> int:
        """How much growth is told now."""
        count = self._untold.get(counted.field, 0) + grown
        quiet = counted.often and self._clock() - self._told.get(counted.field, -QUIET_SECONDS) < QUIET_SECONDS
        self._untold[counted.field] = count if quiet else 0
        if quiet or not count:
            return 0
        self._told[counted.field] = self._clock()
        return count

"""Where readers put facts: bounded, however long a file is. The first of each kind are kept, and the last."""

from __future__ import annotations

from collections import Counter, deque
from typing import Generic, TypeVar

from brim.explain.facts import (
    Evidence,
    Figure,
    GivenFlag,
    HolderFact,
    Incident,
    RecordedFact,
    RefusedAllocation,
    Seen,
    Sign,
)

Kept = TypeVar("Kept")
_FIRST, _LAST = 200, 400
_SHOWN = 240  # characters of a line


class _FirstAndLast(Generic[Kept]):
    def __init__(self) -> None:
        self._first: list[Kept] = []
        self._last: deque[Kept] = deque(maxlen=_LAST)

    def append(self, one: Kept) -> None:
        if len(self._first) < _FIRST:
            self._first.append(one)
        else:
            self._last.append(one)

    def all(self) -> tuple[Kept, ...]:
        return (*self._first, *self._last)


class Findings:
    """What has been found so far in one or several files."""

    def __init__(self) -> None:
        self._sources: list[str] = []
        self._engines: Counter[str] = Counter()
        self._seen: _FirstAndLast[Seen] = _FirstAndLast()
        self._refusals: _FirstAndLast[RefusedAllocation] = _FirstAndLast()
        self._figures: _FirstAndLast[Figure] = _FirstAndLast()
        self._holders: _FirstAndLast[HolderFact] = _FirstAndLast()
        self._flags: _FirstAndLast[GivenFlag] = _FirstAndLast()
        self._recordings: list[RecordedFact] = []
        self._unread: list[str] = []

    def source(self, name: str) -> None:
        self._sources.append(name)

    def engine(self, name: str, votes: int = 1) -> None:
        self._engines[name] += votes

    def sign(self, sign: Sign, evidence: Evidence, count: int = 1) -> None:
        self._seen.append(Seen(sign, evidence, count))

    def refusal(self, refusal: RefusedAllocation) -> None:
        self._refusals.append(refusal)

    def figure(self, name: str, value: float, evidence: Evidence) -> None:
        self._figures.append(Figure(name, value, evidence))

    def holder(self, holder: HolderFact) -> None:
        self._holders.append(holder)

    def flag(self, name: str, value: str, evidence: Evidence) -> None:
        self._flags.append(GivenFlag(name, value, evidence))

    def recording(self, fact: RecordedFact) -> None:
        self._recordings.append(fact)

    def unread(self, why: str) -> None:
        self._unread.append(why)

    @property
    def is_empty(self) -> bool:
        found = (self._seen, self._refusals, self._figures, self._holders)
        return not self._recordings and not any(one.all() for one in found)

    def incident(self) -> Incident:
        named = self._engines.most_common(1)
        return Incident(
            sources=tuple(self._sources),
            engine=named[0][0] if named else "",
            seen=self._seen.all(),
            refusals=self._refusals.all(),
            figures=self._figures.all(),
            holders=self._holders.all(),
            flags=self._flags.all(),
            recordings=tuple(self._recordings),
            unread=tuple(self._unread),
        )


def evidence_of(source: str, number: int, text: str, time: str = "") -> Evidence:
    """Where a line is, with as much of it as is shown. Control characters do not reach a terminal."""
    shown = "".join(char if char.isprintable() else " " for char in text.strip()[: _SHOWN * 2])
    return Evidence(source, number, shown[:_SHOWN], time)

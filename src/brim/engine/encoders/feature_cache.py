"""Which features lie in which rows of a fixed piece of memory: found again by content, the oldest dropped for others.

Rows of an entry are next to each other. An entry that somebody needs is pinned and stays. A request's entries are all
placed, or none are: requests that each hold a part of what they need cannot wait for each other. Places are found
first, so that only what lies in them is dropped, and nothing where there is no place.

Knows nothing of tensors.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

_KEPT = 1 << 62  # the age of what must stay


@dataclass(slots=True, eq=False)
class CachedFeatures:
    """Rows of one part."""

    start: int
    rows: int
    ready: bool = False  # the features are there
    pins: int = 0


class FeatureCache:
    """Entries by what they show, the one that was used last at the end."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._entries: OrderedDict[Hashable, CachedFeatures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def pinned_rows(self) -> int:
        return sum(entry.rows for entry in self._entries.values() if entry.pins)

    def find(self, key: Hashable) -> CachedFeatures | None:
        return self._entries.get(key)

    def take(self, wanted: Sequence[tuple[Hashable, int]]) -> list[Hashable] | None:
        """Pin an entry for each of these (key, rows); the keys of new ones. None: there is no room now.

        A key that comes twice is pinned once. While nothing is pinned there is room for all that the cache can hold,
        even if entries that could be found again lie in the way: they are dropped.
        """
        unique = dict(wanted)
        known = [key for key in unique if key in self._entries]
        missing = {key: rows for key, rows in unique.items() if key not in self._entries}
        places = self._places(missing, set(known))
        if places is None and not self.pinned_rows and sum(unique.values()) <= self.rows:
            known, missing = [], unique  # those that lie in the way are encoded again
            places = dict(zip(unique, accumulate(unique.values(), initial=0), strict=False))
        if places is None:
            return None
        for key in self._in_the_way([range(places[key], places[key] + rows) for key, rows in missing.items()]):
            del self._entries[key]
        for key, start in places.items():
            self._entries[key] = CachedFeatures(start, missing[key])
        for key in unique:
            self._entries[key].pins += 1
            self._entries.move_to_end(key)
        return list(missing)

    def _places(self, missing: Mapping[Hashable, int], needed: Set[Hashable]) -> dict[Hashable, int] | None:
        """Where new entries go, one after the other; nothing is dropped yet. None: not all of them have a place."""
        ages = {key: age for age, key in enumerate(self._entries)}  # the oldest is 0
        taken = [
            _Span(one.start, one.start + one.rows, _KEPT if one.pins or key in needed else ages[key])
            for key, one in self._entries.items()
        ]
        places: dict[Hashable, int] = {}
        for key, rows in missing.items():
            start = _cheapest(taken, rows, self.rows)
            if start is None:
                return None
            places[key] = start
            taken = [one for one in taken if one.end <= start or one.start >= start + rows]
            taken.append(_Span(start, start + rows, _KEPT))
        return places

    def _in_the_way(self, spans: Sequence[range]) -> list[Hashable]:
        return [
            key
            for key, one in self._entries.items()
            if any(one.start < span.stop and span.start < one.start + one.rows for span in spans)
        ]

    def unpin(self, key: Hashable) -> None:
        """An entry that nobody needs stays until its rows are; one that is not ready is of no use, and goes."""
        entry = self._entries[key]
        entry.pins -= 1
        if not entry.pins and not entry.ready:
            del self._entries[key]

    def drop(self, key: Hashable) -> None:
        """Who has pinned it."""
        self._entries.pop(key, None)

    def clear(self) -> None:
        self._entries.clear()


class _Span(NamedTuple):
    """Rows that are taken, and how recently they were used."""

    start: int
    end: int
    age: int


def _cheapest(taken: list[_Span], rows: int, room: int) -> int | None:
    """Where so many rows would drop nothing, or nothing that was used later than elsewhere; None: nowhere.

    A place can be moved up to the end of what stays before it, without dropping more. So only ends are tried.
    """
    spans = sorted(taken)
    best: tuple[int, int, int] | None = None  # the newest that would be dropped, how many would be, and where
    last = 0  # of those that begin before the end of the place
    ages: deque[tuple[int, int]] = deque()  # (number, age) of those in the place that are newer than all behind them
    for number, start in enumerate([0, *(one.end for one in spans)]):
        if start + rows > room:
            break
        while last < len(spans) and spans[last].start < start + rows:
            while ages and ages[-1][1] <= spans[last].age:
                ages.pop()
            ages.append((last, spans[last].age))
            last += 1
        while ages and ages[0][0] < number:
            ages.popleft()
        newest = ages[0][1] if ages else -1
        if newest < _KEPT:
            best = min(best or (newest, last - number, start), (newest, last - number, start))
    return None if best is None else best[2]

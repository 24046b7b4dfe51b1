"""Which features lie in which rows of a fixed piece of memory: found again by content, the oldest dropped for others.

Rows of an entry are next to each other. An entry that somebody needs is pinned and stays. A request's entries are all
placed, or none are: requests that each hold a part of what they need cannot wait for each other.

Knows nothing of tensors.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Entry:
    """Rows of one part."""

    start: int
    rows: int
    ready: bool = False  # the features are there
    pins: int = 0


class Shelf:
    """Entries by what they show, the one that was used last at the end."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._entries: OrderedDict[Hashable, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def pinned_rows(self) -> int:
        return sum(entry.rows for entry in self._entries.values() if entry.pins)

    def find(self, key: Hashable) -> Entry | None:
        return self._entries.get(key)

    def take(self, wanted: Sequence[tuple[Hashable, int]]) -> list[Hashable] | None:
        """Pin an entry for each of these (key, rows); the keys of new ones. None: there is no room now.

        A key that comes twice is pinned once. While nothing is pinned there is room for all that the shelf can hold,
        even if entries that could be found again lie in the way: they are dropped.
        """
        new = self._take(dict(wanted))
        if new is None and not self.pinned_rows:
            self.clear()
            new = self._take(dict(wanted))
        return new

    def _take(self, unique: Mapping[Hashable, int]) -> list[Hashable] | None:
        known = [key for key in unique if key in self._entries]
        for key in known:
            self._entries[key].pins += 1
        new: list[Hashable] = []
        for key, rows in unique.items():
            if key in known:
                continue
            start = self._place(rows)
            if start is None:
                self._undo(known, new)
                return None
            self._entries[key] = Entry(start, rows, pins=1)
            new.append(key)
        for key in unique:
            self._entries.move_to_end(key)
        return new

    def _undo(self, known: list[Hashable], new: list[Hashable]) -> None:
        for key in new:
            del self._entries[key]
        for key in known:
            self._entries[key].pins -= 1

    def unpin(self, key: Hashable) -> None:
        """An entry that nobody needs stays until its rows are; one that is not ready is of no use, and goes."""
        entry = self._entries[key]
        entry.pins -= 1
        if not entry.pins and not entry.ready:
            del self._entries[key]

    def drop(self, key: Hashable) -> None:
        """Whoever has pinned it."""
        self._entries.pop(key, None)

    def clear(self) -> None:
        self._entries.clear()

    def _place(self, rows: int) -> int | None:
        """Where so many rows are free, or can be: the entries that were not used for longest are dropped."""
        while True:
            start = self._gap(rows)
            if start is not None:
                return start
            oldest = next((key for key, entry in self._entries.items() if not entry.pins), None)
            if oldest is None:
                return None
            del self._entries[oldest]

    def _gap(self, rows: int) -> int | None:
        start = 0
        for entry in sorted(self._entries.values(), key=lambda one: one.start):
            if entry.start - start >= rows:
                return start
            start = entry.start + entry.rows
        return start if self.rows - start >= rows else None

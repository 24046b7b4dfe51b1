"""Which request's tokens lie in which pages of a pool: notes of the host, which no device has to be asked for.

A note is by slot, and says whose tokens they are and how many. When pages run out, those of slots that are not part of
the step are taken: most of those requests have ended, and the others will be written again. Knows nothing of tensors.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np

from brim.engine.run.sampling.penalties import PAGE_TOKENS
from brim.units import ceil_div


@dataclass(slots=True, eq=False)
class SlotPages:
    """What the pool holds of the request in a slot."""

    request: tuple[str, int]  # its id, and which of its answers
    prompt: int  # tokens of the prompt, before those of the output
    output: int = -1  # tokens of the output that are there; -1: not even the prompt is
    pages: list[int] = field(default_factory=list)
    starts: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # of the pages, in the pool

    def index(self, place: int) -> int:
        """Where in the pool a token lies."""
        return self.pages[place // PAGE_TOKENS] * PAGE_TOKENS + place % PAGE_TOKENS


class PageNotes:
    """The pages of all slots."""

    def __init__(self, pages: int) -> None:
        self._pages = pages
        self._free = list(range(pages))
        self._kept: dict[int, SlotPages] = {}
        self._slots: AbstractSet[int] = frozenset()
        self._reclaimed = False

    def begin_step(self, slots: AbstractSet[int]) -> None:
        """The slots whose pages are needed now."""
        self._slots, self._reclaimed = slots, False

    def find(self, slot: int, request: tuple[str, int], output: int) -> SlotPages | None:
        """The note of a request of whose output so much is there."""
        kept = self._kept.get(slot)
        if kept is None or kept.request != request or kept.output < output:
            return None
        return kept

    def open(self, slot: int, request: tuple[str, int], prompt: int) -> SlotPages:
        """A note without pages, in place of what was in this slot."""
        self.drop(slot)
        kept = self._kept[slot] = SlotPages(request, prompt)
        return kept

    def drop(self, slot: int) -> None:
        kept = self._kept.pop(slot, None)
        if kept is not None:
            self._free += kept.pages

    def make_room(self, kept: SlotPages, tokens: int) -> bool:
        """Pages for so many tokens; False if there are not enough."""
        count = ceil_div(tokens, PAGE_TOKENS)
        if len(kept.pages) >= count:
            return True
        while len(kept.pages) < count:
            if not self._free and not self._reclaimed:
                self._reclaim()
            if not self._free:
                return False
            kept.pages.append(self._free.pop())
        kept.starts = np.array(kept.pages, dtype=np.int64) * PAGE_TOKENS
        return True

    def _reclaim(self) -> None:
        """Once a step. Pages are free that no note names, so that one that an interrupt lost comes back too."""
        self._reclaimed = True
        self._kept = {slot: kept for slot, kept in self._kept.items() if slot in self._slots}
        held = {page for kept in self._kept.values() for page in kept.pages}
        self._free = [page for page in range(self._pages) if page not in held]

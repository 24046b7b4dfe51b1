"""Which blocks of a text are in the pools: looked up once, and brought up to date by what has changed since.

In: the digests of a text that waits. Out: its blocks in every group, and how many of the first may be reused. A waiting
request is looked at in every step. A pool therefore notes each content that can be found from now on, or no longer
(`Changes`), and a `Finding` looks up those of its own again: as many as have come or gone, however long the text is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from brim.engine.kv.geometry import LayerGroup

if TYPE_CHECKING:
    from brim.engine.kv.blocks import BlockPool

_REMEMBERED = 1 << 14  # changes: several steps' worth, of blocks that are evicted and published


class PoolChanges:
    """The content that has come and gone in the pools of a ledger, the last of it."""

    def __init__(self) -> None:
        self.count = 0  # of all changes so far
        self._digests: deque[bytes] = deque(maxlen=_REMEMBERED)

    def note(self, digest: bytes) -> None:
        """Called before the change: after an interrupt, one is noted that was not made, and none is missed."""
        self.count += 1
        self._digests.append(digest)

    def since(self, count: int) -> Iterator[bytes] | None:
        """The changes after the first so many, in any order; None: there are more than are remembered."""
        new = self.count - count
        return islice(reversed(self._digests), new) if new <= len(self._digests) else None

    def forget(self) -> None:
        """Everything may have changed."""
        self.count += _REMEMBERED + 1
        self._digests.clear()


class PrefixMatch:
    """The blocks of a text, by group: scratch where a content is in none. Right when it was last brought up to date."""

    def __init__(self, digests: Sequence[bytes], changes: PoolChanges, forbidden: Iterable[range]) -> None:
        self.changes = changes
        self.blocks: list[np.ndarray] = []
        self._columns = {digest: column for column, digest in enumerate(digests)}
        self._forbidden = tuple(forbidden)  # numbers of first blocks that may not be reused alone
        self._seen = -1  # changes
        self._prefix: int | None = None

    def __len__(self) -> int:
        """Blocks that were looked for."""
        return len(self._columns)

    def bring_up_to_date(self, pools: Sequence[BlockPool]) -> None:
        changed = self.changes.since(self._seen) if self.blocks else None
        seen = self.changes.count
        if changed is None:
            found = [pool.find_all(self._columns) for pool in pools]
            self.blocks = [np.fromiter(blocks, np.int32, len(self)) for blocks in found]
            self._prefix = None
        else:
            for digest in changed:
                column = self._columns.get(digest)
                if column is not None:
                    self._prefix = None
                    for blocks, (block,) in zip(self.blocks, (pool.find_all([digest]) for pool in pools), strict=True):
                        blocks[column] = block
        self._seen = seen

    def prefix(self, groups: Sequence[LayerGroup], block_size: int) -> int:
        """How many of the first blocks can be reused: those that later tokens attend to are there, in every group."""
        if self._prefix is None:
            usable = np.ones(len(self) + 1, bool)
            for group, blocks in zip(groups, self.blocks, strict=True):
                usable &= _seen_blocks_present(blocks != 0, group.blocks_seen(block_size))
            for counts in self._forbidden:
                usable[counts.start : counts.stop] = False
            self._prefix = int(np.flatnonzero(usable)[-1])  # 0 always is
        return self._prefix


def _seen_blocks_present(present: np.ndarray, seen: int | None) -> np.ndarray:
    """For each number of first blocks: whether the last of them that the next token attends to are all there."""
    counts = np.arange(len(present) + 1)
    ends_of_gaps = np.zeros_like(counts)
    np.maximum.accumulate(np.where(present, 0, counts[1:]), out=ends_of_gaps[1:])
    there = counts - ends_of_gaps  # in a row before each end
    return there >= (counts if seen is None else np.minimum(counts, seen))

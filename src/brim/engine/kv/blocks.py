"""A pool of equal blocks: reference counts, reuse by content, LRU eviction, favoured content last.

Bookkeeping only. A block is *held* (its reference count is above 0), *cached* (its count is 0, but its content is known
and can be reused) or *free*. Block 0 is scratch: padding writes there and it is never read.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import chain, repeat
from operator import eq

import numpy as np

from brim.engine.kv.events import BlockEvents
from brim.engine.kv.prefix_matches import PoolChanges

SCRATCH = 0


class BlockPool:
    """Hands out blocks 1 to `blocks`."""

    def __init__(self, blocks: int, changes: PoolChanges | None = None) -> None:
        self.blocks = blocks
        self._changes = changes or PoolChanges()  # of what is found by content
        self._free = array("i", range(blocks, 0, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._favoured: OrderedDict[int, None] = OrderedDict()  # cached too, and evicted when no other is left
        self._favourites: set[bytes] = set()  # content that is favoured
        self._holders = array("i", [0]) * (blocks + 1)
        self._content: dict[int, bytes] = {}  # block -> digest
        self._by_content: dict[bytes, int] = {}
        self.evictions = 0  # cached blocks that were handed out again
        self.events: BlockEvents | None = None  # where somebody reads them

    @property
    def available(self) -> int:
        """Blocks that can be handed out now: free ones, and cached ones that would be evicted."""
        return len(self._free) + len(self._cached) + len(self._favoured)

    @property
    def held(self) -> int:
        return self.blocks - self.available

    @property
    def cached(self) -> int:
        return len(self._cached) + len(self._favoured)

    def take(self) -> int:
        """A block with one holder. The caller has made sure that one is available."""
        if self._free:
            block = self._free.pop()
        else:
            cache = self._cached or self._favoured
            self._changes.note(self._content[next(iter(cache))])
            block, _ = cache.popitem(last=False)
            digest = self._content.pop(block)
            del self._by_content[digest]
            self.evictions += 1
            if self.events is not None:
                self.events.removed(digest)
        self._holders[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more holder, of a block that is held or cached."""
        if self._holders[block] == 0:
            del self._cache_of(block)[block]
        self._holders[block] += 1

    def release(self, block: int) -> None:
        """One holder less. A block whose content is known stays cached until it is evicted."""
        holders = self._holders[block] - 1
        assert holders >= 0, f"block {block} released more often than held"
        cache = self._cache_of(block) if holders == 0 and block in self._content else None
        self._holders[block] = holders  # from here on nothing is called that could be stopped half-way
        if cache is not None:
            cache[block] = None
        elif holders == 0:
            self._free.append(block)

    def _cache_of(self, block: int) -> OrderedDict[int, None]:
        return self._favoured if self._content[block] in self._favourites else self._cached

    def favour(self, digest: bytes) -> None:
        """Evict the block with this content, there already or still to come, after all others."""
        block = self._by_content.get(digest, SCRATCH)
        if block in self._cached:
            del self._cached[block]
            self._favoured[block] = None
        self._favourites.add(digest)

    def disfavour(self, digest: bytes) -> None:
        """The opposite; it counts as used now."""
        block = self._by_content.get(digest, SCRATCH)
        if block in self._favoured:
            del self._favoured[block]
            self._cached[block] = None
        self._favourites.discard(digest)

    def holders(self, block: int) -> int:
        return self._holders[block]

    def writable(self, block: int) -> bool:
        """Whether it has one holder, and cannot be found by content."""
        return self._holders[block] == 1 and block not in self._content

    def find(self, digest: bytes) -> int | None:
        """The block with this content, if there is one."""
        return self._by_content.get(digest)

    def find_all(self, digests: Iterable[bytes]) -> Iterator[int]:
        """The block with each content; scratch where there is none."""
        return map(self._by_content.get, digests, repeat(SCRATCH))

    def contents(self) -> tuple[bytes, ...]:
        """The digests of all blocks that can be found."""
        return tuple(self._by_content)

    def publish(self, block: int, digest: bytes) -> None:
        """Publish a held block by its content. The first block of a content stays the one that is found."""
        assert self._holders[block] > 0, f"block {block} is not held and cannot be published"
        if digest not in self._by_content and block not in self._content:
            self._changes.note(digest)
            self._by_content[digest] = block
            self._content[block] = digest
            if self.events is not None:
                self.events.published(digest)

    def problems(self, tables: Iterable[Iterable[int]]) -> list[str]:
        """What contradicts these tables, or itself; nothing where the pool is consistent.

        All blocks at once: a million of them are looked at after every rescue.
        """
        entries = [np.fromiter(table, np.int64) for table in tables]
        held = np.bincount(np.concatenate([*entries, np.zeros(0, np.int64)]), minlength=self.blocks + 1)
        held[SCRATCH] = 0
        holders = np.array(self._holders)
        idle = np.bincount(self._idle(), minlength=self.blocks + 1)
        if len(held) > len(holders) or len(idle) > len(holders):
            return [f"a block above {self.blocks} is held or free"]
        found = [
            f"block {block} has {holders[block]} holders, and is in {held[block]} tables"
            for block in np.flatnonzero(holders != held)
        ]
        found += [f"block {block} is free {idle[block]} times" for block in np.flatnonzero(idle > 1)]
        found += [f"block {block} is held and free" for block in np.flatnonzero((idle > 0) & (holders > 0))]
        known = np.count_nonzero(idle) + np.count_nonzero(held)
        if known != self.blocks:
            found.append(f"{self.blocks - known} blocks are neither held nor free")
        return found + self._content_problems()

    def _idle(self) -> np.ndarray:
        cached = np.fromiter(chain(self._cached, self._favoured), np.intc, self.cached)
        return np.concatenate([np.array(self._free), cached])

    def _content_problems(self) -> list[str]:
        found, content = [], self._content
        blocks = map(self._by_content.get, content.values())  # where each content is found
        if len(content) != len(self._by_content) or not all(map(eq, content, blocks)):
            found.append("blocks are found by a content that they do not have")
        if not (self._cached.keys() <= content.keys() and self._favoured.keys() <= content.keys()):
            found.append("a block without known content is cached")
        elif not (
            self._favourites.isdisjoint(map(content.__getitem__, self._cached))
            and self._favourites.issuperset(map(content.__getitem__, self._favoured))
        ):
            found.append("a cached block is favoured for a content that is not")
        return found

    def forget_content(self) -> None:
        """Free every cached block, so that its content is not reused."""
        self._changes.forget()
        self._free.extend([*self._cached, *self._favoured])
        self._cached.clear()
        self._favoured.clear()
        self._content.clear()
        self._by_content.clear()
        if self.events is not None:
            self.events.cleared()

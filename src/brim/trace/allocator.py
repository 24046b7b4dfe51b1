"""What the CUDA caching allocator would reserve for a sequence of allocations and frees.

In: sizes in the order of allocations and frees. Out: bytes reserved from the device. Two behaviours: the
default (segments are reserved as needed, and never grow) and `expandable_segments:True` (a range of addresses per
pool, mapped page by page). One stream; no garbage collection, no `max_split_size`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

from brim.units import MIB, round_down, round_up

ROUNDING = 512
SMALL_LIMIT = MIB  # what is larger comes from the large pool
SMALL_SEGMENT = 2 * MIB  # also the page of the small pool's range
LARGE_SEGMENT = 20 * MIB  # also the page of the large pool's range
OWN_SEGMENT_FROM = 10 * MIB  # from here on, a segment of its own size
SEGMENT_ROUNDING = 2 * MIB
SMALLEST_REST = 512  # what is split off a block is at least this
SMALLEST_LARGE_REST = MIB  # or, in a large segment that cannot grow, more than this
_ADDRESSES = LARGE_SEGMENT << 80  # they cost nothing here, and no request may run out of them


@dataclass(slots=True, eq=False)
class _Block:
    """A run of addresses; neighbours are linked so that free ones can merge."""

    address: int
    size: int
    mapped: bool = True
    allocated: bool = False
    before: _Block | None = None
    after: _Block | None = None


class _FreeBlocks:
    """Free blocks, smallest and lowest first."""

    def __init__(self) -> None:
        self.keys: list[tuple[int, int]] = []
        self._blocks: dict[int, _Block] = {}

    def add(self, block: _Block) -> None:
        insort(self.keys, (block.size, block.address))
        self._blocks[block.address] = block

    def remove(self, block: _Block) -> None:
        del self.keys[bisect_left(self.keys, (block.size, block.address))]
        del self._blocks[block.address]

    def at_least(self, size: int) -> list[_Block]:
        """Blocks that are large enough, best fit first."""
        return [self._blocks[address] for _, address in self.keys[bisect_left(self.keys, (size, -1)) :]]

    def all(self) -> list[_Block]:
        return list(self._blocks.values())


class CachingAllocator:
    """What both behaviours share: two pools, best fit, splitting and merging."""

    def __init__(self) -> None:
        self._free = {True: _FreeBlocks(), False: _FreeBlocks()}
        self._live: dict[int, tuple[_Block, bool]] = {}
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self.peak_reserved_bytes = 0

    def allocate(self, handle: int, size: int) -> None:
        """Give `handle` a block of at least so many bytes."""
        size = max(ROUNDING, round_up(size, ROUNDING))
        small = size <= SMALL_LIMIT
        block = self._best_fit(size, small) or self._grow(size, small)
        self._free[small].remove(block)
        if block.size - size >= self._smallest_rest(small):
            rest = _Block(block.address + size, block.size - size, before=block, after=block.after)
            if block.after is not None:
                block.after.before = rest
            block.after, block.size = rest, size
            self._free[small].add(rest)
        block.allocated = True
        self._live[handle] = (block, small)
        self.allocated_bytes += block.size

    def free(self, handle: int) -> None:
        """Take a block back, merged with its free neighbours."""
        block, small = self._live.pop(handle)
        self.allocated_bytes -= block.size
        block.allocated = False
        self._free[small].add(self._merge(block, small))

    def empty_cache(self) -> None:
        """Release what is wholly free, and measure peaks from here on."""
        for small, free in self._free.items():
            for block in free.all():
                self._release(block, small)
        self.peak_reserved_bytes = self.reserved_bytes

    def _merge(self, block: _Block, small: bool) -> _Block:
        """A block that is in no list, joined with free neighbours of the same kind (mapped, or not)."""
        for neighbour in (block.before, block.after):
            if neighbour is None or neighbour.allocated or neighbour.mapped != block.mapped:
                continue
            self._unlist(neighbour, small)
            first, second = (neighbour, block) if neighbour is block.before else (block, neighbour)
            first.size += second.size
            first.after = second.after
            if second.after is not None:
                second.after.before = first
            block = first
        return block

    def _reserve(self, size: int) -> None:
        self.reserved_bytes += size
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)

    def _unlist(self, block: _Block, small: bool) -> None:
        self._free[small].remove(block)

    def _best_fit(self, size: int, small: bool) -> _Block | None:
        raise AssertionError("an allocator is one of the two below")

    def _grow(self, size: int, small: bool) -> _Block:
        raise AssertionError("an allocator is one of the two below")

    def _release(self, block: _Block, small: bool) -> None:
        raise AssertionError("an allocator is one of the two below")

    def _smallest_rest(self, small: bool) -> int:
        raise AssertionError("an allocator is one of the two below")


class SegmentAllocator(CachingAllocator):
    """The default behaviour."""

    def __init__(self) -> None:
        super().__init__()
        self._next_address = 0

    def _smallest_rest(self, small: bool) -> int:
        return SMALLEST_REST if small else SMALLEST_LARGE_REST + 1

    def _best_fit(self, size: int, small: bool) -> _Block | None:
        return next(iter(self._free[small].at_least(size)), None)

    def _grow(self, size: int, small: bool) -> _Block:
        if small:
            total = SMALL_SEGMENT
        elif size < OWN_SEGMENT_FROM:
            total = LARGE_SEGMENT
        else:
            total = round_up(size, SEGMENT_ROUNDING)
        block = _Block(self._next_address, total)
        self._next_address += total
        self._reserve(total)
        self._free[small].add(block)
        return block

    def _release(self, block: _Block, small: bool) -> None:
        if block.before is None and block.after is None:
            self._free[small].remove(block)
            self.reserved_bytes -= block.size


class ExpandableAllocator(CachingAllocator):
    """`expandable_segments:True`: addresses without memory behind them, mapped in pages as they are needed."""

    def __init__(self) -> None:
        super().__init__()
        self._unmapped: dict[bool, list[_Block]] = {
            small: [_Block(index * _ADDRESSES, _ADDRESSES, mapped=False)] for index, small in enumerate((True, False))
        }

    def _smallest_rest(self, small: bool) -> int:
        return SMALLEST_REST

    def _best_fit(self, size: int, small: bool) -> _Block | None:
        """A block that could grow counts as large as it could become: one that could not is taken before it."""
        best = None
        for block in self._free[small].at_least(size):
            if best is not None and self._could_become(block) >= self._could_become(best):
                break
            best = block
        return best

    @staticmethod
    def _could_become(block: _Block) -> int:
        return block.size + (block.after.size if block.after is not None and not block.after.mapped else 0)

    def _grow(self, size: int, small: bool) -> _Block:
        """Map pages into the lowest addresses that have room, together with a free block in front of them."""
        candidate = self._room(size, small)
        if not candidate.mapped:
            candidate = self._map(candidate, min(candidate.size, size), small)
        while candidate.size < size:
            assert candidate.after is not None
            missing = size - candidate.size
            candidate = self._map(candidate.after, min(missing, candidate.after.size), small)
        return candidate

    def _room(self, size: int, small: bool) -> _Block:
        for unmapped in sorted(self._unmapped[small], key=lambda block: block.address):
            start = unmapped
            if start.before is not None and not start.before.allocated:
                start = start.before
            found, block = 0, start
            while block is not None and not block.allocated and found < size:
                found += block.size
                block = block.after  # type: ignore[assignment]
            if found >= size:
                return start
        raise AssertionError("addresses never run out")

    def _map(self, block: _Block, size: int, small: bool) -> _Block:
        """Put memory behind the first pages of an unmapped block; the free block it becomes, merged."""
        mapped = min(round_up(size, SMALL_SEGMENT if small else LARGE_SEGMENT), block.size)
        self._unmapped[small].remove(block)
        if mapped < block.size:
            rest = _Block(block.address + mapped, block.size - mapped, mapped=False, before=block, after=block.after)
            if block.after is not None:
                block.after.before = rest
            block.after, block.size = rest, mapped
            self._unmapped[small].append(rest)
        block.mapped = True
        self._reserve(mapped)
        block = self._merge(block, small)
        self._free[small].add(block)
        return block

    def _unlist(self, block: _Block, small: bool) -> None:
        if block.mapped:
            self._free[small].remove(block)
        else:
            self._unmapped[small].remove(block)

    def _release(self, block: _Block, small: bool) -> None:
        """Unmap the pages that lie wholly inside a free block; what is left on either side stays free."""
        page = SMALL_SEGMENT if small else LARGE_SEGMENT
        start, end = round_up(block.address, page), round_down(block.address + block.size, page)
        if end <= start:
            return
        self._free[small].remove(block)
        last = block.address + block.size
        if start > block.address:
            front = _Block(block.address, start - block.address, before=block.before, after=block)
            if block.before is not None:
                block.before.after = front
            block.before = front
            self._free[small].add(front)
        if last > end:
            back = _Block(end, last - end, before=block, after=block.after)
            if block.after is not None:
                block.after.before = back
            block.after = back
            self._free[small].add(back)
        block.address, block.size, block.mapped = start, end - start, False
        self.reserved_bytes -= block.size
        self._unmapped[small].append(self._merge(block, small))

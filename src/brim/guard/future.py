"""How many blocks a batch will hold, step by step, until its requests have ended.

In: a `Claim` for each request: how it grows, and the last step in which it holds anything. Out: the most blocks that
are held at once, with one more request. Between two ends the batch only grows, so it is enough to look at the last step
of each claim: the blocks of all claims that have not ended before it.

Steps are numbered from the engine's start, and a request that generates grows by a token in each: as long as nothing
unforeseen happens, a claim and all sums made of it stay as they are while the steps go by. `Future` keeps the sums, in
the order of the ends; a claim that comes or goes changes them in one pass over those that end before it. A batch is
small, and such a pass takes as long as it has operations: they are few, in place, and none is between an array and a
Python number, which would cost as much again.

Knows nothing of requests, pools or policies.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.int64]

NEVER = 1 << 40  # a step that is not reached


class Claim(NamedTuple):
    """The blocks of one request. In step `t` it holds those of `offset + t` tokens, and at most `most`."""

    offset: int
    last: int  # the last step in which it holds any
    most: tuple[int, ...]  # by pool
    shared: tuple[int, ...]  # by pool: of its blocks, those that are counted in a claim of their own

    def held(self, step: int, block_size: int) -> tuple[int, ...]:
        """Blocks by pool that are counted for it in a step; none after its last."""
        if step > self.last:
            return (0,) * len(self.most)
        grown = -(-(self.offset + step) // block_size)
        return tuple(min(grown, most) - shared for most, shared in zip(self.most, self.shared, strict=True))


class _Pool(NamedTuple):
    """The claims in one pool, a column for each. What they share has been taken off."""

    offset: Row
    most: Row
    held: Row  # by all claims, in the last step of each


class Future:
    """The claims of a batch, and the blocks held in the last step of each."""

    def __init__(self, pools: int, block_size: int, room: int = 64) -> None:
        assert block_size & (block_size - 1) == 0, "a block is a power of two"
        self._size = block_size
        self._bits = block_size.bit_length() - 1
        self._shift = np.array(self._bits)
        self._number, self._limit = np.array(0), np.array(0)  # of the operation that is under way
        self._keys: list[Hashable] = []  # in the order of the ends, as the columns of the table
        self._lasts: list[int] = []
        self._claims: dict[Hashable, Claim] = {}
        self._make_table(pools, max(room, 1))
        self._always = (0,) * pools
        self._finals = [0] * pools  # blocks of all claims at their most
        self.changes = 0

    def _make_table(self, pools: int, columns: int) -> None:
        self._table = np.zeros((1 + 3 * pools, columns), dtype=np.int64)
        self._last: Row = self._table[0]
        self._pools = [_Pool(*self._table[1 + 3 * pool : 4 + 3 * pool]) for pool in range(pools)]
        self._scratch: Row = np.empty(columns, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def always(self) -> tuple[int, ...]:
        """By pool: blocks that are held in every step, besides those of the claims."""
        return self._always

    @always.setter
    def always(self, blocks: tuple[int, ...]) -> None:
        if blocks != self._always:
            self._always = blocks
            self.changes += 1

    def get(self, key: Hashable) -> Claim | None:
        return self._claims.get(key)

    def ended_before(self, step: int) -> list[Hashable]:
        """Claims whose last step has passed, though they are still here."""
        return self._keys[: bisect_left(self._lasts, step)]

    def finals(self) -> tuple[int, ...]:
        """By pool: the blocks of all claims when each is at its most, whichever ends first."""
        return tuple([final + always for final, always in zip(self._finals, self._always, strict=True)])

    def add(self, key: Hashable, claim: Claim) -> None:
        assert key not in self._claims, f"{key} has a claim already"
        count, last = len(self._keys), claim.last
        if count == self._table.shape[1]:
            before = self._table
            self._make_table(len(self._pools), 2 * count)
            self._table[:, :count] = before
        first, place = bisect_left(self._lasts, last), bisect_right(self._lasts, last)
        column = [last]
        for pool, (offset, most) in zip(self._pools, self._own(claim), strict=True):
            column += (offset, most, self._held_at(last, first, pool) + self._grown(offset, most, last))
            if place:
                held = pool.held[:place]
                np.add(held, self._growth(offset, most, place), held)
        if place < count:
            self._table[:, place + 1 : count + 1] = self._table[:, place:count]
        self._table[:, place] = column
        self._keys.insert(place, key)
        self._lasts.insert(place, last)
        self._claims[key] = claim
        self._sum_up(claim, 1)
        self.changes += 1

    def remove(self, key: Hashable) -> None:
        claim = self._claims.pop(key)
        count = len(self._keys)
        end = bisect_right(self._lasts, claim.last)
        place = self._keys.index(key, bisect_left(self._lasts, claim.last), end)
        for pool, (offset, most) in zip(self._pools, self._own(claim), strict=True):
            held = pool.held[:end]
            np.subtract(held, self._growth(offset, most, end), held)
        if place < count - 1:
            self._table[:, place : count - 1] = self._table[:, place + 1 : count]
        del self._keys[place], self._lasts[place]
        self._sum_up(claim, -1)
        self.changes += 1

    def replace_all(self, claims: Mapping[Hashable, Claim]) -> None:
        """Start over with these claims: cheaper than many changes."""
        ordered = sorted(claims.items(), key=lambda pair: pair[1].last)
        self._keys = [key for key, _ in ordered]
        self._lasts = [claim.last for _, claim in ordered]
        self._claims = dict(ordered)
        self._finals = [0] * len(self._pools)
        for _, claim in ordered:
            self._sum_up(claim, 1)
        self.changes += 1
        count = len(ordered)
        if count > self._table.shape[1]:
            self._make_table(len(self._pools), count)
        last = self._last[:count]
        last[:] = self._lasts
        going_on = last >= last[:, None]  # by end, by claim
        owns = np.array([self._own(claim) for _, claim in ordered]).reshape(count, len(self._pools), 2)
        for number, pool in enumerate(self._pools):
            offset, most = pool.offset[:count], pool.most[:count]
            offset[:], most[:] = owns[:, number].T
            held = last[:, None] + (offset + (self._size - 1))
            held >>= self._shift
            np.minimum(held, most, out=held)
            held *= going_on
            pool.held[:count] = held.sum(axis=1)

    def peaks_with(self, claim: Claim, lent: int = 0, returned: int = NEVER) -> tuple[int, ...]:
        """By pool: the most blocks held at once before this claim has ended, if it is added.

        Of its shared blocks in the first pool, `lent` are counted in claims that end with step `returned`: after
        that they are its own.
        """
        last = claim.last
        first, place = bisect_left(self._lasts, last), bisect_right(self._lasts, last)
        peaks = []
        for pool, (offset, most), always in zip(self._pools, self._own(claim), self._always, strict=True):
            peak = self._held_at(last, first, pool) + self._grown(offset, most, last) + lent * (last > returned)
            if place:
                held = self._growth(offset, most, place)
                np.add(held, pool.held[:place], held)
                if lent:
                    held[bisect_right(self._lasts, returned) :] += lent
                peak = max(peak, int(np.maximum.reduce(held)))
            peaks.append(always + peak)
            lent = 0  # in the first pool only
        return tuple(peaks)

    # -- one claim, and one step ---------------------------------------------------------------------------------

    def _own(self, claim: Claim) -> list[tuple[int, int]]:
        """By pool: offset and most blocks without what is shared. These are whole blocks, so both fall by as much."""
        bits, offset = self._bits, claim.offset
        return [
            (offset - (shared << bits), most - shared) for most, shared in zip(claim.most, claim.shared, strict=True)
        ]

    def _grown(self, offset: int, most: int, step: int) -> int:
        return min((offset + step + self._size - 1) >> self._bits, most)

    def _growth(self, offset: int, most: int, count: int) -> Row:
        """The blocks that one claim would have at each of the first ends. Overwritten by the next operation."""
        grown = self._scratch[:count]
        self._number[()] = offset + self._size - 1
        self._limit[()] = most
        np.add(self._last[:count], self._number, grown)
        np.right_shift(grown, self._shift, grown)
        np.minimum(grown, self._limit, out=grown)
        return grown

    def _held_at(self, step: int, first: int, pool: _Pool) -> int:
        """The blocks that the claims from a column on hold in a step."""
        count = len(self._keys)
        if first == count:
            return 0
        held = self._scratch[first:count]
        self._number[()] = step + self._size - 1
        np.add(pool.offset[first:count], self._number, held)
        np.right_shift(held, self._shift, held)
        np.minimum(held, pool.most[first:count], out=held)
        return int(np.add.reduce(held))

    def _sum_up(self, claim: Claim, sign: int) -> None:
        """Count the blocks of a claim at its most in, or out."""
        for pool, (most, shared) in enumerate(zip(claim.most, claim.shared, strict=True)):
            self._finals[pool] += sign * (most - shared)

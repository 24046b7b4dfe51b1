"""How many blocks a batch will hold, step by step, until its requests have ended.

In: a `Claim` for each request: how it grows, and the last step in which it holds anything. Out: the most blocks that
are held at once, with one more request. Between two ends the batch only grows, so it is enough to look at the last step
of each claim: the blocks of all claims that have not ended before it.

Steps are numbered from the engine's start, and a request that generates grows by a token in each: as long as nothing
unforeseen happens, a claim and all sums made of it stay as they are while the steps go by. `Future` keeps the sums, in
the order of the ends; a request that starts or leaves changes them in one pass.

Knows nothing of requests, pools or policies.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.int64]

NEVER = 1 << 40  # a step that is not reached
_LAST, _OFFSET, _POOLS = 0, 1, 2  # rows of the table; then `most`, `shared` and `held` of each pool


@dataclass(frozen=True, slots=True)
class Claim:
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


def constant(blocks: tuple[int, ...], last: int) -> Claim:
    """A claim that does not grow."""
    return Claim(NEVER, last, blocks, (0,) * len(blocks))


class Future:
    """The claims of a batch, and the blocks held in the last step of each."""

    def __init__(self, pools: int, block_size: int, room: int = 64) -> None:
        self._pools = pools
        self._size = block_size
        self._keys: list[Hashable] = []  # in the order of the ends, as the columns of the table
        self._lasts: list[int] = []
        self._claims: dict[Hashable, Claim] = {}
        self._table = self._empty(room)
        self._finals = [0] * pools  # blocks of all claims at their most
        self.changes = 0

    def __len__(self) -> int:
        return len(self._keys)

    def get(self, key: Hashable) -> Claim | None:
        return self._claims.get(key)

    def ended_before(self, step: int) -> list[Hashable]:
        """Claims whose last step has passed, though they are still here."""
        return self._keys[: bisect_left(self._lasts, step)]

    def finals(self) -> tuple[int, ...]:
        """By pool: the blocks of all claims when each is at its most, whichever ends first."""
        return tuple(self._finals)

    def add(self, key: Hashable, claim: Claim) -> None:
        assert key not in self._claims, f"{key} has a claim already"
        count = len(self._keys)
        if count == self._table.shape[1]:
            self._table = np.concatenate((self._table, self._empty(count)), axis=1)
        first, place = bisect_left(self._lasts, claim.last), bisect_right(self._lasts, claim.last)
        own = claim.held(claim.last, self._size)
        held = [self._held_at(claim.last, first, pool) + own[pool] for pool in range(self._pools)]
        self._count(claim, 1, place)
        table = self._table
        table[:, place + 1 : count + 1] = table[:, place:count]
        table[:, place] = (claim.last, claim.offset, *claim.most, *claim.shared, *held)
        self._keys.insert(place, key)
        self._lasts.insert(place, claim.last)
        self._claims[key] = claim
        self._sum_up(claim, 1)
        self.changes += 1

    def remove(self, key: Hashable) -> None:
        claim = self._claims.pop(key)
        count = len(self._keys)
        end = bisect_right(self._lasts, claim.last)
        place = self._keys.index(key, bisect_left(self._lasts, claim.last), end)
        self._count(claim, -1, end)
        self._table[:, place : count - 1] = self._table[:, place + 1 : count]
        del self._keys[place], self._lasts[place]
        self._sum_up(claim, -1)
        self.changes += 1

    def replace_all(self, claims: Mapping[Hashable, Claim]) -> None:
        """Begin anew with these claims: cheaper than many changes."""
        ordered = sorted(claims.items(), key=lambda pair: pair[1].last)
        self._keys = [key for key, _ in ordered]
        self._lasts = [claim.last for _, claim in ordered]
        self._claims = dict(ordered)
        self._finals = [0] * self._pools
        for _, claim in ordered:
            self._sum_up(claim, 1)
        self.changes += 1
        count, pools = len(ordered), self._pools
        self._table = self._empty(max(count, self._table.shape[1]))
        if not ordered:
            return
        self._table[:, :count] = np.array(
            [(claim.last, claim.offset, *claim.most, *claim.shared, *([0] * pools)) for _, claim in ordered]
        ).T
        last, offset = self._table[_LAST, :count], self._table[_OFFSET, :count]
        grown = (last[:, None] + (offset + self._size - 1)) // self._size  # by end, by claim
        ended = last < last[:, None]
        for pool in range(pools):
            held = np.minimum(grown, self._most(pool, count)) - self._shared(pool, count)
            held[ended] = 0
            self._held(pool, count)[:] = held.sum(axis=1)

    def peaks_with(self, claim: Claim, lent: int = 0, returned: int = NEVER) -> tuple[int, ...]:
        """By pool: the most blocks held at once before this claim has ended, if it is added.

        Of its shared blocks in the first pool, `lent` are counted in claims that end with step `returned`: after
        that they are its own.
        """
        first, place = bisect_left(self._lasts, claim.last), bisect_right(self._lasts, claim.last)
        returns = bisect_right(self._lasts, returned) if lent else place
        grown = self._grown(claim, place)
        own = claim.held(claim.last, self._size)
        peaks = []
        for pool, (most, shared) in enumerate(zip(claim.most, claim.shared, strict=True)):
            peak = self._held_at(claim.last, first, pool) + own[pool]
            if lent and pool == 0 and claim.last > returned:
                peak += lent
            if place:
                held = np.minimum(grown, most)
                held += self._held(pool, place)
                if lent and pool == 0:
                    held[returns:] += lent
                peak = max(peak, int(held.max()) - shared)
            peaks.append(peak)
        return tuple(peaks)

    # -- columns of the table ------------------------------------------------------------------------------------

    def _empty(self, columns: int) -> Row:
        return np.zeros((_POOLS + 3 * self._pools, max(columns, 1)), dtype=np.int64)

    def _most(self, pool: int, count: int) -> Row:
        return self._table[_POOLS + pool, :count]

    def _shared(self, pool: int, count: int) -> Row:
        return self._table[_POOLS + self._pools + pool, :count]

    def _held(self, pool: int, count: int) -> Row:
        """The blocks held at each of the first ends."""
        return self._table[_POOLS + 2 * self._pools + pool, :count]

    def _grown(self, claim: Claim, count: int) -> Row:
        """The blocks that one claim would have at each of the first ends, if it grew without limit."""
        grown = self._table[_LAST, :count] + (claim.offset + self._size - 1)
        grown //= self._size
        return grown

    def _held_at(self, step: int, first: int, pool: int) -> int:
        """The blocks that the claims from a column on hold in a step."""
        count = len(self._keys)
        if first == count:
            return 0
        grown = (self._table[_OFFSET, first:count] + (step + self._size - 1)) // self._size
        held = np.minimum(grown, self._most(pool, count)[first:]) - self._shared(pool, count)[first:]
        return int(held.sum())

    def _sum_up(self, claim: Claim, sign: int) -> None:
        """Count the blocks of a claim at its most in, or out."""
        for pool, (most, shared) in enumerate(zip(claim.most, claim.shared, strict=True)):
            self._finals[pool] += sign * (most - shared)

    def _count(self, claim: Claim, sign: int, count: int) -> None:
        """Count a claim in, or out, at the first ends."""
        grown = self._grown(claim, count)
        for pool, (most, shared) in enumerate(zip(claim.most, claim.shared, strict=True)):
            held = self._held(pool, count)
            held += sign * (np.minimum(grown, most) - shared)

"""Blocks that several requests hold, counted once.

A block belongs to the request that took it until another one shares it. From then on it is common, until nobody holds
it any more: it is counted here, and not with its holders (`RequestBlocks.common`). So at any time

    blocks held = the sum over requests (blocks in the table - common ones) + common blocks
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np

from brim.engine.kv.request_blocks import RequestBlocks


@dataclass(frozen=True, slots=True)
class Shareable:
    """Blocks that are held, and that one more request would share."""

    common: int = 0
    owned: int = 0  # by one request so far
    owners: frozenset[int] = frozenset()  # slots

    @property
    def blocks(self) -> int:
        return self.common + self.owned


_NOBODY, _SEVERAL = -1, -2  # in place of the slot of a block's owner


class CommonBlocks:
    """Which blocks of a pool belong to one request, and which to several."""

    def __init__(self, blocks: int) -> None:
        self.changed_slots: set[int] = set()  # of requests whose `common` changed; cleared by the one who reads it
        self._owners = array("i", [_NOBODY]) * (blocks + 1)  # slots
        self._owners_of = np.frombuffer(self._owners, np.intc)  # the same, for many blocks at once
        self._requests: dict[int, RequestBlocks] = {}  # by slot: the last one that took a block
        self._common: set[int] = set()

    def __len__(self) -> int:
        return len(self._common)

    def __contains__(self, block: int) -> bool:
        return block in self._common

    def shareable(self, blocks: np.ndarray) -> Shareable:
        """What sharing these blocks would mean, of which some may not be held."""
        owners = self._owners_of[blocks]
        owned = owners[owners >= 0]
        slots = np.flatnonzero(np.bincount(owned)).tolist()
        return Shareable(int(np.count_nonzero(owners == _SEVERAL)), len(owned), frozenset(slots))

    def taken(self, block: int, request: RequestBlocks) -> None:
        self._owners[block] = request.slot
        self._requests[request.slot] = request

    def shared(self, block: int, request: RequestBlocks) -> None:
        """Another request holds it too."""
        owner = self._owners[block]
        if owner != _SEVERAL:
            self._owners[block] = _SEVERAL
            self._common.add(block)
            self._count(self._requests[owner], 1)
        self._count(request, 1)

    def left(self, block: int, request: RequestBlocks) -> None:
        """It is no longer in the request's table."""
        if block in self._common:
            self._count(request, -1)

    def returned(self, block: int, request: RequestBlocks) -> None:
        """The opposite of `left`."""
        if block in self._common:
            self._count(request, 1)

    def freed(self, block: int) -> None:
        """Nobody holds it any more."""
        self._owners[block] = _NOBODY
        self._common.discard(block)

    def _count(self, request: RequestBlocks, blocks: int) -> None:
        request.common += blocks
        self.changed_slots.add(request.slot)

"""Blocks that several requests hold, counted once.

A block belongs to the request that took it until another one shares it. From then on it is common, until nobody holds
it any more: it is counted here, and not with its holders (`RequestBlocks.common`). So at any time

    blocks held = the sum over requests (blocks in the table - common ones) + common blocks
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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


class CommonBlocks:
    """Which blocks of a pool belong to one request, and which to several."""

    def __init__(self, blocks: int) -> None:
        self.changed_slots: set[int] = set()  # of requests whose `common` changed; cleared by the one who reads it
        self._owners: list[RequestBlocks | None] = [None] * (blocks + 1)
        self._common: set[int] = set()

    def __len__(self) -> int:
        return len(self._common)

    def shareable(self, blocks: Iterable[int]) -> Shareable:
        """What sharing these held blocks would mean."""
        owners = [self._owners[block] for block in blocks]
        common = owners.count(None)
        slots = frozenset([owner.slot for owner in owners if owner is not None])
        return Shareable(common, len(owners) - common, slots)

    def taken(self, block: int, request: RequestBlocks) -> None:
        self._owners[block] = request

    def shared(self, block: int, request: RequestBlocks) -> None:
        """Another request holds it too."""
        owner = self._owners[block]
        if owner is not None:
            self._owners[block] = None
            self._common.add(block)
            self._count(owner, 1)
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
        self._owners[block] = None
        self._common.discard(block)

    def _count(self, request: RequestBlocks, blocks: int) -> None:
        request.common += blocks
        self.changed_slots.add(request.slot)

"""Host memory for the blocks of preempted requests: which part of it holds what, and what the device is to copy.

`HostRoom` hands out parts of a bounded arena. A `HostCopy` holds content, not block numbers: it can be copied back into
any blocks. `CopyOut` and `CopyBack` are orders that the ledger keeps for the device, which carries them out in the
order of its own work. Bookkeeping only: the memory itself is in `brim.engine.run.host_memory`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from brim.units import round_up

ALIGNMENT = 64  # bytes: of every copy


@dataclass(frozen=True, slots=True)
class HostSizes:
    """What a copy takes: the bytes of a block of each group, and of a slot's recurrent states."""

    block_bytes: tuple[int, ...]
    state_bytes: int = 0

    def copy_bytes(self, spans: Iterable[range]) -> int:
        blocks = sum(len(span) * size for span, size in zip(spans, self.block_bytes, strict=True))
        return round_up(blocks + self.state_bytes, ALIGNMENT)


@dataclass(frozen=True, slots=True)
class HostCopy:
    """A request as it was when it was preempted."""

    place: int  # its first byte in the arena
    bytes: int
    tokens: int  # that were computed
    reused: int  # of them, those found in the prefix cache when it first started
    columns: tuple[range, ...]  # by group: the blocks of its table that are there


@dataclass(frozen=True, slots=True)
class CopyOut:
    """Blocks and a slot to copy to the host, before anything is written to them."""

    copy: HostCopy
    slot: int
    blocks: tuple[tuple[int, ...], ...]  # by group, one for each column


@dataclass(frozen=True, slots=True)
class Move:
    """Blocks of one group to copy back: which of the copy's, and where to."""

    numbers: tuple[int, ...]
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CopyBack:
    """What of a copy goes back to the device: what was not found there by content."""

    copy: HostCopy
    slot: int
    moves: tuple[Move, ...]  # by group


class HostRoom:
    """Hands out parts of an arena of host memory, each in the smallest gap that it fits in."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self._held: list[tuple[int, int]] = []  # (start, end), in order

    @property
    def held_bytes(self) -> int:
        return sum(end - start for start, end in self._held)

    @property
    def largest_bytes(self) -> int:
        """The largest part that can be taken."""
        return max(end - start for start, end in self._gaps())

    def take(self, wanted_bytes: int) -> int:
        """The first byte of a part of this size. The caller has made sure that there is one."""
        _, place = min((end - start, start) for start, end in self._gaps() if end - start >= wanted_bytes)
        held = place, place + wanted_bytes
        self._held.insert(bisect_left(self._held, held), held)
        return place

    def give_back(self, copy: HostCopy) -> None:
        self._held.remove((copy.place, copy.place + copy.bytes))

    def problems(self, copies: Iterable[HostCopy]) -> list[str]:
        """What contradicts these copies, which are all that there are; nothing where all is well."""
        wanted = sorted((copy.place, copy.place + copy.bytes) for copy in copies)
        if wanted == self._held:
            return []
        held, needed = self.held_bytes, sum(end - start for start, end in wanted)
        return [f"host memory: {held} bytes are held, and waiting requests have copies of {needed} bytes there"]

    def _gaps(self) -> list[tuple[int, int]]:
        starts = [0, *(end for _, end in self._held)]
        ends = [*(start for start, _ in self._held), self.total_bytes]
        return list(zip(starts, ends, strict=True))

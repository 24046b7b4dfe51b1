"""Which chunks of a step run through a recurrent mixer as one batch, and in which pieces: pure functions.

Chunks of equal length that all have a past, or all have none, are rows of one batch. The memory of a batch is bounded
twice: by tokens (rows times the length of a piece) and by rows, each of which has a state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from brim.engine.device.layout import ChunkPlace


@dataclass(frozen=True, slots=True)
class Pieces:
    """How a module's transient memory is bounded: it runs a chunk in pieces, each continuing from the one before."""

    tokens: int  # of a piece
    continues: bool = True  # False: several tokens always start from nothing (Mamba-1), so a past goes token by token

    def of(self, length: int, has_past: bool) -> Iterator[tuple[int, int]]:
        """Start and end of each piece, counted from the chunk's first token."""
        start = 0
        while start < length:
            size = self.tokens if self.continues or not (has_past or start) else 1
            left = length - start
            if self.continues and left == size + 1:
                size = left  # a single token left over would run as a decode, which does not clamp the time step
            yield start, start + min(size, left)
            start += min(size, left)

    def rows(self, length: int, has_past: bool) -> int:
        """How many chunks of this length may run at once."""
        longest = max(stop - start for start, stop in self.of(length, has_past))
        return max(self.tokens // longest, 1)


@dataclass(frozen=True, slots=True)
class ChunkBatch:
    """Chunks of one length, all with a past or all without, that run as the rows of one batch."""

    chunks: tuple[ChunkPlace, ...]

    @property
    def length(self) -> int:
        return self.chunks[0].length

    @property
    def has_past(self) -> bool:
        return self.chunks[0].context > 0

    @property
    def slots(self) -> list[int]:
        return [chunk.slot for chunk in self.chunks]

    @property
    def places(self) -> list[int]:
        """Where the tokens lie in the packed row, chunk by chunk."""
        return [place for chunk in self.chunks for place in range(chunk.start, chunk.start + chunk.length)]


def batches(chunks: Sequence[ChunkPlace], pieces: Pieces, most_rows: int) -> Iterator[ChunkBatch]:
    """Every chunk once, in as few batches as the bounds allow."""
    alike: dict[tuple[int, bool], list[ChunkPlace]] = {}
    for chunk in chunks:
        alike.setdefault((chunk.length, chunk.context > 0), []).append(chunk)
    for (length, has_past), found in alike.items():
        rows = min(pieces.rows(length, has_past), most_rows)
        for start in range(0, len(found), rows):
            yield ChunkBatch(tuple(found[start : start + rows]))

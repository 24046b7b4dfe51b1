"""A scheduled step: which tokens of which requests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from brim.engine.requests.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens [start, start + length) of a request's prompt (or of what is recomputed after a preemption)."""

    sequence: Sequence
    slot: int
    start: int
    length: int
    draws: bool  # it reaches the last known token, so the next one is drawn
    state_from: int | None = None  # the slot whose recurrent state it continues from, where that is not its own


@dataclass(frozen=True, slots=True)
class StepBounds:
    """What a step may contain: so many tokens at most, and, where a failed step is run in parts, some requests only."""

    tokens: int
    only: frozenset[tuple[str, int]] | None = None  # keys of requests; None: any

    def allow(self, sequence: Sequence) -> bool:
        return self.only is None or sequence.request.key in self.only


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: a token for each of `decodes`, then the chunks."""

    decodes: tuple[Sequence, ...]
    slots: tuple[int, ...]  # of the decodes
    lengths: tuple[int, ...]  # tokens of each decode, the one being computed included
    chunks: tuple[Chunk, ...]

    @property
    def tokens(self) -> int:
        return len(self.decodes) + sum(chunk.length for chunk in self.chunks)

    @property
    def drawing(self) -> tuple[Sequence, ...]:
        """The sequences that get a token from this step, in the order of the rows."""
        return self.decodes + tuple(chunk.sequence for chunk in self.chunks if chunk.draws)

    @property
    def sequences(self) -> Iterator[Sequence]:
        yield from self.decodes
        for chunk in self.chunks:
            yield chunk.sequence

    def __bool__(self) -> bool:
        return bool(self.decodes or self.chunks)

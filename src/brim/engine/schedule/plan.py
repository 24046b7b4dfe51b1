"""A scheduled step: which tokens of which requests, and which of them are drafted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, chain, repeat

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
class DraftTokens:
    """Tokens that may follow the one that a decode computes; they are computed with it."""

    tokens: tuple[int, ...] = ()
    snapshot: int | None = None  # the row that keeps the recurrent state of before, where there is one

    @property
    def rows(self) -> int:
        """Tokens that are computed, each of which draws the next."""
        return 1 + len(self.tokens)

    def accepted(self, drawn: list[int]) -> int:
        """How many drafted tokens are those that were drawn in their places, up to the first that is not."""
        for place, token in enumerate(self.tokens):
            if drawn[place] != token:
                return place
        return len(self.tokens)


NO_DRAFT = DraftTokens()


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Limits of every step."""

    max_batch: int
    max_batch_tokens: int
    reuse_prefixes: bool = True
    has_states: bool = False  # recurrent layers keep a state in a request's slot
    max_drafted: int = 0  # most requests of a step with drafts


@dataclass(frozen=True, slots=True)
class StepBounds:
    """What a step may contain: so many tokens at most, and, where a failed step is run in parts, some requests only."""

    tokens: int
    only: frozenset[tuple[str, int]] | None = None  # keys of requests; None: any
    calm: bool = True  # no step ran out of memory lately

    def allow(self, sequence: Sequence) -> bool:
        return self.only is None or sequence.request.key in self.only


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: a token for each of `decodes`, each with its draft, then the chunks."""

    decodes: tuple[Sequence, ...]
    slots: tuple[int, ...]  # of the decodes
    lengths: tuple[int, ...]  # tokens of each decode, the one being computed included
    chunks: tuple[Chunk, ...]
    drafts: tuple[
        DraftTokens, ...
    ] = ()  # one for each decode, those without tokens first; or none: nothing was drafted

    @property
    def tokens(self) -> int:
        return self.decode_rows + sum(chunk.length for chunk in self.chunks)

    @property
    def decode_rows(self) -> int:
        """Tokens before those of the chunks."""
        return len(self.decodes) + sum(len(draft.tokens) for draft in self.drafts)

    @property
    def drawing(self) -> tuple[Sequence, ...]:
        """The sequences that get a token from this step, in the order of the rows."""
        return self.decodes + tuple(chunk.sequence for chunk in self.chunks if chunk.draws)

    @property
    def drawn_rows(self) -> Iterator[tuple[Sequence, DraftTokens]]:
        """The sequences that get tokens, in the order of their rows, each with the draft that some of them verify."""
        return zip(self.drawing, chain(self.drafts, repeat(NO_DRAFT)), strict=False)

    @property
    def row_sequences(self) -> Iterator[Sequence]:
        """The sequence of each row that draws: one with a draft has several."""
        return (sequence for sequence, draft in self.drawn_rows for _ in range(draft.rows))

    @property
    def last_rows(self) -> list[int]:
        """Among the rows that draw, the last of each sequence in `drawing`."""
        return [end - 1 for end in accumulate(draft.rows for _, draft in self.drawn_rows)]

    @property
    def sequences(self) -> Iterator[Sequence]:
        yield from self.decodes
        for chunk in self.chunks:
            yield chunk.sequence

    def __bool__(self) -> bool:
        return bool(self.decodes or self.chunks)

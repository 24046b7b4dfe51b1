"""Log-probabilities of the tokens of a prompt (`PromptScores`): arrays that read like a tuple of records.

A long prompt has tens of thousands of positions, and a record for each, made and collected, would take longer than a
step of the model. They are made when somebody looks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import overload

import numpy as np

from brim.engine.schedule.events import TokenLogprobs


@dataclass(frozen=True, slots=True, eq=False)
class PromptScores(Sequence[TokenLogprobs]):
    """One for each token but the first of a prompt, in order."""

    tokens: np.ndarray  # int64 [positions]
    logprobs: np.ndarray  # float32 [positions]
    top_tokens: np.ndarray  # int64 [positions, k]
    top_logprobs: np.ndarray  # float32 [positions, k], from the likeliest down
    ranks: np.ndarray  # int64 [positions], 1 is the likeliest

    @classmethod
    def joined(cls, parts: Sequence[PromptScores]) -> PromptScores:
        """Positions that follow each other."""
        if len(parts) == 1:
            return parts[0]
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    def behind(self, count: int) -> PromptScores:
        """Without the first positions."""
        return PromptScores(*(getattr(self, field.name)[count:] for field in fields(self))) if count else self

    def __len__(self) -> int:
        return len(self.tokens)

    def __iter__(self) -> Iterator[TokenLogprobs]:
        for token, logprob, tokens, values, rank in zip(
            *(getattr(self, field.name).tolist() for field in fields(self)), strict=True
        ):
            yield TokenLogprobs(token, logprob, tuple(zip(tokens, values, strict=True)), rank)

    @overload
    def __getitem__(self, place: int) -> TokenLogprobs: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[TokenLogprobs, ...]: ...

    def __getitem__(self, place: int | slice) -> TokenLogprobs | tuple[TokenLogprobs, ...]:
        if isinstance(place, slice):
            return tuple(PromptScores(*(getattr(self, field.name)[place] for field in fields(self))))
        top = zip(self.top_tokens[place].tolist(), self.top_logprobs[place].tolist(), strict=True)
        return TokenLogprobs(int(self.tokens[place]), float(self.logprobs[place]), tuple(top), int(self.ranks[place]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))

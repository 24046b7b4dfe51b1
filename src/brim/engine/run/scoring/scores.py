"""What is said of the tokens of a prompt (`PromptLogprobs`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch


@dataclass(frozen=True, slots=True, eq=False)
class PromptLogprobs:
    """How likely the prompt's own tokens were."""

    logprob: torch.Tensor  # float32 [positions]
    top_logprobs: torch.Tensor  # float32 [positions, k], from the likeliest down
    top_tokens: torch.Tensor  # int64 [positions, k]
    rank: torch.Tensor  # int64 [positions]; 1 is the likeliest

    def part(self, first: int, count: int, alternatives: int) -> PromptLogprobs:
        """Those of some positions, with as many alternatives or fewer."""
        here = slice(first, first + count)
        return PromptLogprobs(
            self.logprob[here],
            self.top_logprobs[here, :alternatives],
            self.top_tokens[here, :alternatives],
            self.rank[here],
        )


def joined(parts: Sequence[PromptLogprobs]) -> PromptLogprobs:
    """Positions that follow each other."""
    if len(parts) == 1:
        return parts[0]
    return PromptLogprobs(
        **{field.name: torch.cat([getattr(part, field.name) for part in parts]) for field in fields(PromptLogprobs)}
    )


def slices(rows: int, most: int) -> list[slice]:
    """All rows, no more than `most` at once."""
    return [slice(first, min(first + most, rows)) for first in range(0, rows, most)]

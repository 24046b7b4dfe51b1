"""Log-probabilities of prompt tokens, for the chunks of a step that ask for them.

In: a planned step and its hidden states. Out: for each such chunk how likely its own tokens were, on the device. No row
of logits is stored: what scoring takes beyond its results is bounded (`EngineSettings.scoring_memory`). Chunks that
follow each other are scored together: each pass over the rows reads all weights of the head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from brim.engine.device.staging import Staging
from brim.engine.run.scoring.pieces import piece_size, score_in_pieces
from brim.engine.run.scoring.running import reduction_for
from brim.engine.run.scoring.scores import PromptLogprobs, joined, slices
from brim.engine.run.scoring.whole_rows import rows_at_once, score_whole_rows
from brim.engine.schedule.plan import Chunk, StepPlan
from brim.engine.weights.head import LogitsHead
from brim.engine.weights.text_model import TextModel

if TYPE_CHECKING:
    import torch

_NO_TOKEN = 0  # of a row whose score nobody asks for, between others
_ROWS_BETWEEN = 1  # so many rows between two chunks are scored too: the last of a prompt says nothing of it


@dataclass(frozen=True, slots=True)
class _ChunkRows:
    """Rows of a run that are one chunk's."""

    chunk: int
    first: int  # row of the run
    rows: int
    alternatives: int


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """Rows of a step that are scored together."""

    start: int  # row of the step
    targets: tuple[int, ...]
    parts: tuple[_ChunkRows, ...]

    @property
    def alternatives(self) -> int:
        return max(part.alternatives for part in self.parts)


def scored_runs(plan: StepPlan) -> list[ScoredRows]:
    """The rows of a step whose scores are asked for."""
    runs: list[ScoredRows] = []
    end = -1  # row behind the last run
    for number, start, chunk in _chunks_and_rows(plan):
        following, alternatives = _following(chunk), chunk.sequence.request.params.prompt_logprobs
        if not following or alternatives is None:
            continue
        if runs and start - end <= _ROWS_BETWEEN:
            last = runs.pop()
            targets = (*last.targets, *(_NO_TOKEN,) * (start - end))
            part = _ChunkRows(number, len(targets), len(following), alternatives)
            runs.append(ScoredRows(last.start, (*targets, *following), (*last.parts, part)))
        else:
            runs.append(ScoredRows(start, following, (_ChunkRows(number, 0, len(following), alternatives),)))
        end = start + len(following)
    return runs


def _chunks_and_rows(plan: StepPlan) -> Iterator[tuple[int, int, Chunk]]:
    start = plan.decode_rows
    for number, chunk in enumerate(plan.chunks):
        yield number, start, chunk
        start += chunk.length


def _following(chunk: Chunk) -> tuple[int, ...]:
    """The tokens of the prompt that this chunk says the likelihood of."""
    return chunk.sequence.request.prompt[chunk.start + 1 : chunk.start + chunk.length + 1]


class PromptScorer:
    """Scores the prompts of an engine's steps within `memory` bytes."""

    def __init__(self, text_model: TextModel, head: LogitsHead | None, memory: int, device: torch.device) -> None:
        self._text_model = text_model
        self._head = head  # None: only whole rows of logits can be computed
        self._memory = memory
        self._reduction = reduction_for(device)
        self.whole_rows = rows_at_once(text_model.vocab, text_model.dtype.itemsize, memory)

    def score(self, plan: StepPlan, hidden: torch.Tensor, staging: Staging) -> dict[int, PromptLogprobs]:
        """Scores by the number of the chunk."""
        scores: dict[int, PromptLogprobs] = {}
        for run in scored_runs(plan):
            targets = staging.send([np.array(run.targets, dtype=np.int64)])[0]
            rows = hidden[run.start : run.start + len(run.targets)]
            found = self._scored(rows, targets, run.alternatives)
            for part in run.parts:
                scores[part.chunk] = found.part(part.first, part.rows, part.alternatives)
        return scores

    def head_rows(self, plan: StepPlan) -> list[int]:
        """Rows of each call of the class's whole head, in order: what ranks do together."""
        if self._head is not None:
            return []
        runs = scored_runs(plan)
        return [here.stop - here.start for run in runs for here in slices(len(run.targets), self.whole_rows)]

    def _scored(self, hidden: torch.Tensor, targets: torch.Tensor, alternatives: int) -> PromptLogprobs:
        head = self._head
        if head is None:
            return score_whole_rows(self._text_model, hidden, targets, alternatives, self.whole_rows)
        size = piece_size(len(hidden), head, alternatives, self._reduction, self._memory)
        parts = []
        for here in slices(len(hidden), size.rows):
            given = self._text_model.head_input(hidden[here])
            parts.append(score_in_pieces(given, targets[here], alternatives, head, self._reduction, size))
        return joined(parts)

"""A step while it is being launched, as those see it who keep the ranks of a split model together."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from brim.engine.ranks.collectives import StepWork
from brim.engine.run.graphs import DecodeGraphs
from brim.engine.schedule.plan import StepPlan

if TYPE_CHECKING:
    import torch


class RunningStep:
    """A planned step, and how it is run: by a graph that holds it, or operation by operation.

    `scored_rows`: rows of each call of the head that scores prompts.
    """

    def __init__(
        self, plan: StepPlan, graphs: DecodeGraphs | None, scored_rows: Callable[[StepPlan], list[int]]
    ) -> None:
        self.graphs = graphs
        self.replayed = False
        self._plan = plan
        self._scored_rows = scored_rows

    def work(self) -> StepWork:
        """Rows of the model's passes, and the tokens that are drawn. A graph has rows of padding."""
        plan = self._plan
        drawn = plan.decode_rows + sum(chunk.draws for chunk in plan.chunks)
        if self.graphs is not None:
            rows = self.graphs.size_for(plan.decode_rows)
            return StepWork(rows, (rows,), drawn)
        return StepWork(plan.tokens, (*self._scored_rows(plan), *([drawn] if drawn else [])), drawn)

    def replay_padding(self) -> bool:
        if self.graphs is None:
            return False
        try:
            self.graphs.replay_padding(self._plan.decode_rows)
        except RuntimeError:  # all of torch's own: the caller issues the collectives one by one
            return False
        self.replayed = True
        return True


def largest_work(drawing_rows: int, max_batch_tokens: int, scored_rows: int) -> StepWork:
    """No step has more rows in any of its parts. `scored_rows`: of prompts, in one call of the head."""
    return StepWork(max_batch_tokens, (drawing_rows, min(scored_rows, max_batch_tokens)), drawing_rows)


@dataclass(frozen=True, slots=True)
class RankHooks:
    """What keeps the ranks of a split model in step. A rank that is alone needs nothing."""

    check_plan: Callable[[StepPlan], None] = lambda plan: None
    same_tokens: Callable[[torch.Tensor], torch.Tensor] = lambda tokens: tokens
    ends_alike: Callable[[RunningStep], AbstractContextManager[None]] = lambda running: nullcontext()

"""A step while it is being launched, as those see it who keep the ranks of a split model together."""

from __future__ import annotations

from brim.engine.ranks.collectives import StepWork
from brim.engine.run.graphs import DecodeGraphs
from brim.engine.run.prompt_scores import ROWS_AT_ONCE, scored_rows
from brim.engine.schedule.plan import StepPlan


class RunningStep:
    """A planned step, and how it is run: by a graph that holds it, or operation by operation."""

    def __init__(self, plan: StepPlan, graphs: DecodeGraphs | None) -> None:
        self.graphs = graphs
        self.replayed = False
        self._plan = plan

    def work(self) -> StepWork:
        """Rows of the model's passes, and the tokens that are drawn. A graph has rows of padding."""
        plan = self._plan
        drawn = plan.decode_rows + sum(chunk.draws for chunk in plan.chunks)
        if self.graphs is not None:
            rows = self.graphs.size_for(plan.decode_rows)
            return StepWork(rows, (rows,), drawn)
        return StepWork(plan.tokens, (*scored_rows(plan), *([drawn] if drawn else [])), drawn)

    def replay_padding(self) -> bool:
        if self.graphs is None:
            return False
        try:
            self.graphs.replay_padding(self._plan.decode_rows)
        except RuntimeError:  # all of torch's own: the caller issues the collectives one by one
            return False
        self.replayed = True
        return True


def largest_work(drawing_rows: int, max_batch_tokens: int) -> StepWork:
    """No step has more rows in any of its parts."""
    return StepWork(max_batch_tokens, (drawing_rows, min(ROWS_AT_ONCE, max_batch_tokens)), drawing_rows)
